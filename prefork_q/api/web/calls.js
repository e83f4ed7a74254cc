// Requests to the API. A token that was typed in goes along as a header; there are no cookies.

const TOKEN = "prefork-q.token";
const PATIENCE = 12_000; // ms; the API itself gives Redis five seconds

class Refused extends Error { // the API answered, and said no
  constructor(status, detail) {
    super(detail);
    this.status = status;
  }
}

class Away extends Error {} // nobody answered, or somebody else than the API

const token = {
  get: () => sessionStorage.getItem(TOKEN),
  set: (text) => sessionStorage.setItem(TOKEN, text),
  forget: () => sessionStorage.removeItem(TOKEN),
};

let clockAhead = 0; // ms by which the server's clock is ahead of this one's
const serverNow = () => Date.now() + clockAhead;

async function call(method, path) {
  const headers = { Accept: "application/json" };
  if (token.get()) headers.Authorization = `Bearer ${token.get()}`;
  let reply, text;
  try {
    // Relative, so that it works below a path of a proxy too.
    reply = await fetch(path, {
      method, headers, cache: "no-store", redirect: "error", signal: AbortSignal.timeout(PATIENCE),
    });
    text = await reply.text();
  } catch (error) {
    throw new Away(error.name === "TimeoutError" ? "it does not answer in time" : "it cannot be reached");
  }
  readClock(reply.headers.get("Date"));
  const document = parsed(text);
  if (!reply.ok) {
    if (typeof document?.detail !== "string") throw new Away(`something else answers: HTTP ${reply.status}`);
    throw new Refused(reply.status, document.detail);
  }
  if (reply.status !== 204 && document === undefined) throw new Away("something else answers, not in JSON");
  return { document, text };
}

const get = async (path) => (await call("GET", path)).document;

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

// JSON for people. Numbers stay as they were written where the browser can tell how (64 bits are more
// than a JavaScript number holds).
function pretty(text, member) {
  const value = JSON.parse(text, (key, part, context) => {
    const source = context?.source;
    const isKept = typeof part !== "number" || source === undefined || String(part) === source;
    return isKept || !JSON.rawJSON ? part : JSON.rawJSON(source);
  });
  return JSON.stringify(value[member], null, 2);
}

function readClock(date) {
  const ahead = Date.parse(date ?? "") - Date.now();
  // The header has whole seconds.
  if (Number.isFinite(ahead)) clockAhead = Math.abs(ahead) > 2000 ? ahead : 0;
}

function query(parameters) {
  const given = Object.entries(parameters).filter(([, value]) => value);
  return given.length ? `?${new URLSearchParams(given)}` : "";
}
