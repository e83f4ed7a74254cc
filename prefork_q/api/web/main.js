// Which view is shown, and the loop that keeps it fresh: one set of requests at a time, at most one each two
// seconds, none while the page is hidden.

const EVERY = 2000; // ms between the end of one set and the next
const SLOWEST = 15_000; // ms, however long the sets take

const views = { overview, tasks, dead, task: one_task };

let route = readRoute();
let timer;
let isAsking = false;
let isWanted = false; // somebody wants to see news at once
let waiting = []; // who waits for that
let trouble = null; // {kind, since}
let shownAt = ""; // when all that was asked for came last

function readRoute() {
  const [place, search = ""] = location.hash.slice(1).split("?");
  const [name, id = ""] = place.split("/");
  const view = Object.hasOwn(views, name) ? name : "overview";
  return { view, id: decoded(id), query: new URLSearchParams(search) };
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function enter() {
  const before = route.view;
  route = readRoute();
  showSection(route.view);
  views[route.view].enter?.(route);
  if (!by("unlock").hidden) return;
  if (before !== route.view) {
    by(`${route.view}-heading`).focus({ preventScroll: true });
    scrollTo(0, 0);
  }
  pollNow();
}

// What was asked until now is not drawn any more.
function forgetWhatComes() {
  route = { ...route };
}

function showSection(name) {
  const isLocked = !by("unlock").hidden;
  for (const view of Object.keys(views)) by(view).hidden = isLocked || view !== name;
  for (const anchor of document.querySelectorAll("nav a")) {
    const isHere = !isLocked && anchor.dataset.view === name;
    isHere ? anchor.setAttribute("aria-current", "page") : anchor.removeAttribute("aria-current");
  }
}

// Asks as soon as nothing else is asked; returns when the answer is drawn.
function pollNow() {
  isWanted = true;
  const seen = new Promise((resolve) => waiting.push(resolve));
  if (!isAsking) poll();
  return seen;
}

async function poll() {
  clearTimeout(timer);
  if (isAsking || document.hidden || !by("unlock").hidden) return release();
  isAsking = true;
  isWanted = false;
  const served = waiting;
  waiting = [];
  const asked = route;
  const began = performance.now();
  try {
    const answers = await ask({ totals: "metrics", ...views[asked.view].requests(asked) });
    if (asked === route) show(answers, asked);
    else isWanted = true;
  } finally {
    isAsking = false;
    for (const resolve of served) resolve();
    // A slow API is asked less often.
    const wait = Math.min(SLOWEST, Math.max(EVERY, 3 * (performance.now() - began)));
    timer = setTimeout(poll, isWanted ? 0 : wait);
  }
}

function release() {
  for (const resolve of waiting) resolve();
  waiting = [];
}

async function ask(requests) {
  const answers = await Promise.all(Object.entries(requests).map(async ([name, path]) => {
    try {
      return [name, await call("GET", path)];
    } catch (error) {
      if (error instanceof Away || error instanceof Refused) return [name, { error }];
      throw error;
    }
  }));
  return Object.fromEntries(answers);
}

function show(answers, asked) {
  const { totals, node, ...others } = answers;
  // Without its master the node is not shown, which is no trouble of the API's.
  const errors = [totals, ...Object.values(others)].map((answer) => answer.error).filter(Boolean);
  if (node?.error && ![404, 503].includes(node.error.status)) errors.push(node.error);
  const isGone = (error) => asked.view === "task" && error.status === 404;
  if (errors.some(noteLock)) return;
  if (totals.document) showNumbers(totals.document);
  views[asked.view].show(answers, asked);
  judge(errors.filter((error) => !isGone(error)));
  by("forget").hidden = !token.get();
}

function judge(errors) {
  const worst = errors.find((error) => error instanceof Away)
    ?? errors.find((error) => error.status === 503) ?? errors[0];
  if (!worst) {
    if (trouble) tell(`Back after ${duration((Date.now() - trouble.since) / 1000)}.`);
    trouble = null;
    write(by("state"), "Live");
    write(by("notice"), "");
    shownAt = clock(Date.now());
    write(by("updated"), `at ${shownAt}`);
  } else {
    const isAway = worst instanceof Away;
    const kind = isAway ? "The API is away" : worst.status === 503 ? "Redis is away" : "Refused";
    const isRefused = kind === "Refused";
    write(by("state"), kind);
    write(by("updated"), shownAt && !isRefused ? `; shown: ${shownAt}` : "");
    if (isRefused) write(by("notice"), `The API refuses to show this: ${worst.message}`);
    // Said once, in its first words: a screen reader would read each change aloud.
    if (trouble?.kind !== kind) {
      trouble = { kind, since: trouble?.since ?? Date.now() };
      const since = `${kind} since ${clock(trouble.since)}: ${worst.message}.`;
      if (!isRefused) write(by("notice"), `${since} What is shown is older; it is tried again all the time.`);
    }
  }
  document.body.dataset.state = worst ? (worst.status && worst.status !== 503 ? "refused" : "away") : "live";
}

// -- the token

// Asks for a token if this error says that one is needed. Returns whether it does.
function noteLock(error) {
  if (error.status !== 401) return false;
  if (!by("unlock").hidden) return true;
  const had = token.get();
  token.forget();
  by("forget").hidden = true;
  by("unlock").hidden = false;
  write(by("unlock-reason"), had ? "The API does not know the token any more." : "This API asks for a token.");
  write(by("state"), "Locked");
  write(by("notice"), "");
  write(by("updated"), "");
  document.body.dataset.state = "locked";
  trouble = null;
  showSection(route.view);
  by("token").focus();
  return true;
}

by("unlock-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const given = by("token").value.trim();
  // Nothing else may stand in a header.
  if (!/^[\x21-\x7e]+$/.test(given)) {
    write(by("unlock-reason"), "A token has no spaces and no characters beyond ASCII.");
    return;
  }
  by("token").value = "";
  token.set(given);
  by("unlock").hidden = true;
  write(by("state"), "Connecting …");
  enter();
  by(`${route.view}-heading`).focus();
});

by("forget").addEventListener("click", () => {
  token.forget();
  // With everything that was shown.
  location.reload();
});

by("skip").addEventListener("click", (event) => {
  event.preventDefault();
  by("main").focus();
});

addEventListener("hashchange", enter);
document.addEventListener("visibilitychange", () => {
  if (!document.hidden) pollNow();
  else clearTimeout(timer);
});
addEventListener("online", () => pollNow());

enter();
