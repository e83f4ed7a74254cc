// The views. Each has `requests(route)`, what it asks for, and `show(answers, route)`, which draws what came.

const LISTED = 50; // tasks on a page
const QUEUES_SHOWN = 100;
const SUMMARY = 160; // characters of an error in a listing
const SAMPLES = 150; // of the rates; five minutes

const path = (id) => `#task/${encodeURIComponent(id)}`;

const samples = { completed: [], failed: [] };

function showNumbers(totals) {
  const put = (name, text) => write(document.querySelector(`[data-number=${name}]`), text);
  for (const name of ["pending", "processing", "delayed", "dead"]) put(name, count(totals[name]));
  put("oldest", totals.pending ? duration(totals.oldest_pending_age_s) : "–");
  by("dead-number").classList.toggle("bad", totals.dead > 0);
  by("dead-badge").hidden = totals.dead === 0;
  write(by("dead-badge"), count(totals.dead));
  for (const name of ["completed", "failed"]) {
    put(name, count(totals[`${name}_per_minute`]));
    samples[name] = [...samples[name], totals[`${name}_per_minute`]].slice(-SAMPLES);
    sparkline(by(`${name}-line`), samples[name]);
  }
}

// -- overview

const queues = new Table("queues", [
  { name: "Queue", kind: "name", show: (cell, queue) => link(cell, `#tasks${query({ queue: queue.name })}`, queue.name) },
  { name: "State", show: (cell, queue) => badge(cell, queue.paused ? "paused" : "open") },
  { name: "Pending", kind: "number", show: (cell, queue) => write(cell, count(queue.pending)) },
  { name: "Oldest wait", kind: "number", show: (cell, queue) =>
    write(cell, queue.pending ? duration(queue.oldest_pending_age_s) : "–") },
  { name: "Submitted", kind: "number", show: (cell, queue) => write(cell, count(queue.submitted_total)) },
  { name: "", kind: "actions", show: (cell, queue) => {
    const known = cell.querySelector("button") ?? cell.appendChild(button("", "", () =>
      setPaused(cell.dataset.queue, cell.dataset.paused === "false")));
    cell.dataset.queue = queue.name;
    cell.dataset.paused = queue.paused;
    const verb = queue.paused ? "Resume" : "Pause";
    write(known, verb);
    known.setAttribute("aria-label", `${verb} queue ${queue.name}`);
  } },
], (queue) => queue.name);

const workers = new Table("workers", [
  { name: "Worker", show: (cell, worker) => write(cell, worker.slot) },
  { name: "State", show: (cell, worker) => {
    const isWell = !worker.condition || worker.condition === "well" || worker.condition === "busy";
    badge(cell, isWell ? worker.state : worker.condition);
  } },
  { name: "Runs", kind: "wide", show: showRunning },
  { name: "Held", kind: "number", show: (cell, worker) => write(cell, count(worker.held)) },
  { name: "Succeeded", kind: "number", show: (cell, worker) => write(cell, count(worker.completed)) },
  { name: "Failed", kind: "number", show: (cell, worker) => write(cell, count(worker.failed)) },
  { name: "RSS", kind: "number", show: (cell, worker) => write(cell, bytes(worker.rss_bytes)) },
  { name: "PSS", kind: "number", show: (cell, worker) => write(cell, bytes(worker.pss_bytes)) },
  { name: "Restarts", kind: "number", show: (cell, worker) => write(cell, count(worker.restarts)) },
  { name: "Pid", kind: "number", show: (cell, worker) => write(cell, worker.pid ?? "–") },
], (worker) => `${worker.slot} ${worker.state === "draining" ? worker.pid : ""}`);

function showRunning(cell, worker) {
  const list = cell.querySelector("ul") ?? cell.appendChild(element("ul"));
  while (list.children.length > worker.running.length) list.lastChild.remove();
  worker.running.forEach((run, n) => {
    const line = list.children[n] ?? list.appendChild(element("li", {}, element("a"), element("span")));
    link(line, path(run.id), run.type);
    const again = run.attempt > 1 ? `, attempt ${run.attempt}` : "";
    write(line.lastChild, ` for ${duration(run.runtime_s)}${again}`);
    line.lastChild.setAttribute("title", `since ${run.started_at}`);
  });
}

const overview = {
  requests: () => ({ queues: "queues", node: "node" }),

  show({ queues: listed, node }) {
    if (listed?.document) {
      const all = listed.document.queues;
      const isPlain = all.length <= QUEUES_SHOWN;
      const first = (queue) => (queue.paused ? 2 : 0) + (queue.pending ? 1 : 0);
      const shown = isPlain ? all : [...all].sort((a, b) => first(b) - first(a)).slice(0, QUEUES_SHOWN);
      queues.fill(shown);
      const more = `${count(all.length - shown.length)} more queues are not shown; these wait or are paused.`;
      write(by("queues-empty"), all.length ? (isPlain ? "" : more) : "Nothing was ever submitted.");
    }
    if (node) this.showNode(node);
  },

  showNode({ document, error }) {
    if (error instanceof Away) return;
    const status = document ?? { workers: [], leaving: [], degraded: [] };
    workers.fill([...status.workers, ...status.leaving]);
    write(by("workers-empty"), error ? error.message : "");
    write(by("node-name"), document ? `${status.node}, ${status.version}` : "");
    const wrong = status.state === "running" || !document ? status.degraded : [`the node is ${status.state}`, ...status.degraded];
    by("degraded").hidden = wrong.length === 0;
    if (by("degraded").dataset.shown !== JSON.stringify(wrong)) {
      by("degraded").dataset.shown = JSON.stringify(wrong);
      by("degraded").replaceChildren(...wrong.map((reason) => element("li", {}, reason)));
    }
  },
};

// -- listings

function summary({ error }) {
  if (!error) return "";
  const text = `${error.type}: ${error.message}`;
  return text.length > SUMMARY ? `${text.slice(0, SUMMARY)} …` : text;
}

const idColumn = { name: "Id", kind: "id", show: (cell, task) => link(cell, path(task.id), task.id) };
const typeColumn = { name: "Type", kind: "name", show: (cell, task) => write(cell, task.type) };
const queueColumn = { name: "Queue", kind: "name", show: (cell, task) => write(cell, task.queue) };
const attemptsColumn = { name: "Attempts", kind: "number", show: (cell, task) =>
  write(cell, `${count(task.attempts)} of ${count(task.max_attempts)}`) };
const errorColumn = { name: "Error", kind: "wide", show: (cell, task) => write(cell, summary(task)) };

// A listing with pages. It remembers the cursors of the pages before, so that there is a way back.
class Listing {
  constructor(name, table, parameters) {
    this.name = name;
    this.table = table;
    this.parameters = parameters;
    this.form = by(`${name}-filter`);
    this.before = [];
    this.cursor = null;
    this.next = null;
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.filter();
    });
    this.form.addEventListener("change", () => this.filter());
    this.newer = button("Newer", "The page before", () => this.turn(this.before.pop() ?? null));
    this.older = button("Next page", "The next page", () => {
      this.before.push(this.cursor);
      this.turn(this.next);
    });
    this.place = element("span");
    by(`${name}-pages`).append(this.newer, this.place, this.older);
  }

  filter() {
    location.hash = `${this.name}${query(Object.fromEntries(new FormData(this.form)))}`;
  }

  enter(route) {
    for (const name of this.parameters) this.form.elements[name].value = route.query.get(name) ?? "";
    this.before = [];
    this.cursor = this.next = null;
    this.table.fill([]);
    write(by(`${this.name}-empty`), "…");
    this.showPages();
  }

  turn(cursor) {
    this.cursor = cursor;
    this.next = null;
    this.showPages();
    forgetWhatComes();
    pollNow();
    by(`${this.name}-heading`).focus();
  }

  requests(route) {
    const asked = Object.fromEntries(this.parameters.map((name) => [name, route.query.get(name)]));
    return { page: `${this.name}${query({ ...asked, limit: LISTED, cursor: this.cursor })}` };
  }

  show({ page }) {
    if (!page?.document) return;
    const { tasks, next } = page.document;
    this.next = next;
    this.table.fill(tasks);
    const nothing = next ? "Nothing on this page; the next ones may have more." : "There are none.";
    write(by(`${this.name}-empty`), tasks.length ? "" : nothing);
    this.showPages();
  }

  showPages() {
    this.newer.disabled = this.before.length === 0;
    this.older.disabled = this.next === null;
    by(`${this.name}-pages`).hidden = this.newer.disabled && this.older.disabled;
    write(this.place, `page ${this.before.length + 1}`);
  }
}

const tasks = new Listing("tasks", new Table("tasks-table", [
  idColumn,
  typeColumn,
  queueColumn,
  { name: "Status", show: (cell, task) => badge(cell, task.status) },
  attemptsColumn,
  { name: "Submitted", kind: "time", show: (cell, task) => moment(cell, task.created_at) },
  { name: "Ended or due", kind: "time", show: (cell, task) =>
    moment(cell, task.finished_at ?? (task.status === "delayed" ? task.run_at : undefined)) },
  errorColumn,
], (task) => task.id), ["status", "type", "queue"]);

by("find").addEventListener("submit", (event) => {
  event.preventDefault();
  location.hash = path(by("find").elements.id.value.trim());
});

// -- the dead

const selected = new Set();
const selectAll = element("input", { type: "checkbox", "aria-label": "Select all on this page" });

const dead = new class extends Listing {
  enter(route) {
    super.enter(route);
    selected.clear();
    this.showSelected([]);
  }

  show(answers) {
    super.show(answers);
    if (answers.page?.document) this.showSelected(answers.page.document.tasks);
  }

  showSelected(listed) {
    this.ids = listed.map((task) => task.id);
    for (const id of selected) if (!this.ids.includes(id)) selected.delete(id);
    selectAll.checked = selected.size > 0 && selected.size === this.ids.length;
    selectAll.indeterminate = selected.size > 0 && selected.size < this.ids.length;
    by("retry-selected").disabled = by("delete-selected").disabled = selected.size === 0;
    write(by("selected-count"), selected.size ? `${count(selected.size)} selected` : "");
  }

  select(ids, isSelected) {
    for (const id of ids) isSelected ? selected.add(id) : selected.delete(id);
    for (const box of this.table.body.querySelectorAll("input")) box.checked = selected.has(box.value);
    this.showSelected(this.ids.map((id) => ({ id })));
  }
}("dead", new Table("dead-table", [
  { name: "", head: selectAll, kind: "select", show: (cell, task) => {
    const box = cell.querySelector("input") ?? cell.appendChild(element("input", { type: "checkbox" }));
    box.value = task.id;
    box.checked = selected.has(task.id);
    box.setAttribute("aria-label", `Select ${task.type} ${task.id}`);
    box.onchange = () => dead.select([task.id], box.checked);
  } },
  idColumn,
  typeColumn,
  queueColumn,
  { name: "Died", kind: "time", show: (cell, task) => moment(cell, task.finished_at) },
  attemptsColumn,
  errorColumn,
  { name: "", kind: "actions", show: (cell, task) => {
    if (cell.firstChild) return;
    cell.append(
      button("Retry", `Retry ${task.type} ${task.id}`, () => retry([task.id])),
      button("Delete …", `Delete ${task.type} ${task.id}`, () => remove([task.id]), "danger"),
    );
  } },
], (task) => task.id), ["type", "queue"]);

selectAll.addEventListener("change", () => dead.select(dead.ids, selectAll.checked));
by("retry-selected").addEventListener("click", () => retry([...selected]));
by("delete-selected").addEventListener("click", () => remove([...selected]));

// -- one task

const one_task = {
  enter() {
    this.shown = null;
    by("task-actions").replaceChildren();
    by("task-body").replaceChildren(element("p", {}, "…"));
    write(by("task-heading"), "Task");
  },

  requests: (route) => ({ task: `tasks/${encodeURIComponent(route.id)}` }),

  show({ task }) {
    if (task.error instanceof Refused && task.error.status === 404) {
      this.shown = null;
      by("task-actions").replaceChildren();
      by("task-body").replaceChildren(element("p", { class: "empty" }, task.error.message));
      return;
    }
    if (!task.document) return;
    // A result can be large, and somebody may be reading: only what changed is drawn anew.
    if (this.shown !== task.text) this.draw(task.document, task.text);
    this.shown = task.text;
    for (const cell of by("task-body").querySelectorAll("dd[data-time]")) moment(cell, cell.dataset.time, false);
  },

  draw(task, text) {
    write(by("task-heading"), `Task ${task.type}`);
    this.drawActions(task);
    const facts = [
      ["Id", task.id], ["Status", task.status], ["Queue", task.queue],
      ["Attempts", `${task.attempts} of ${task.max_attempts}`],
      ["Crashes", task.crashes], ["Lost leases", task.losses || undefined],
      ["Time limit", task.timeout_s && duration(task.timeout_s)],
      ["Submitted", null, task.created_at], ["Due", null, task.run_at],
      ["Started", null, task.started_at], ["Ended", null, task.finished_at],
      ["Progress", task.progress && progressText(task.progress)],
      ["Cancelling", task.cancel_requested ? "it was asked to stop" : undefined],
    ];
    by("task-body").replaceChildren(
      list(facts),
      ...(task.error ? errorParts(task.error) : []),
      ...block("Result", "result" in task ? pretty(text, "result") : undefined),
      ...block("Payload", pretty(text, "payload")),
    );
  },

  drawActions(task) {
    const made = [];
    if (task.status === "dead") {
      made.push(button("Retry", "Retry this task", () => retry([task.id]), "primary"));
      made.push(button("Delete …", "Delete this task", () => remove([task.id]), "danger"));
    }
    if (["pending", "delayed", "processing"].includes(task.status) && !task.cancel_requested) {
      made.push(button("Cancel …", "Cancel this task", () => cancel(task.id), "danger"));
    }
    const hadFocus = by("task-actions").contains(document.activeElement);
    by("task-actions").replaceChildren(...made);
    if (hadFocus) by("task-heading").focus();
  },
};

function progressText({ fraction, note }) {
  const part = typeof fraction === "number" ? `${Math.round(fraction * 100)} %` : "";
  return [part, note].filter(Boolean).join(", ");
}

function list(facts) {
  const made = element("dl", { class: "facts" });
  for (const [name, text, time] of facts) {
    if (text === undefined || (text === null && !time)) continue;
    const value = element("dd", time ? { "data-time": time } : {});
    if (name === "Status") badge(value, text);
    else if (!time) value.append(String(text));
    made.append(element("div", {}, element("dt", {}, name), value));
  }
  return made;
}

function block(heading, text) {
  if (text === undefined || text === "" || text === null) return [];
  const body = element("pre", { tabindex: "0", role: "region", "aria-label": heading }, text);
  return [element("h3", {}, heading), body];
}

function errorParts(error) {
  const cause = error.cause;
  const death = cause ? [
    ["Signal", cause.signal ?? undefined], ["Exit code", cause.exit_code ?? undefined],
    ["Time limit", cause.timed_out ? "it ran out" : undefined],
    ["Peak memory", cause.peak_rss_bytes ? bytes(cause.peak_rss_bytes) : undefined],
  ] : [];
  return [
    element("h3", {}, "Error"),
    element("p", { class: "error" }, `${error.type}: ${error.message}`),
    ...block("Traceback", error.traceback),
    ...(cause ? [element("h3", {}, "How its worker died"), list(death)] : []),
    ...block("Stack at death", cause?.stack),
  ];
}
