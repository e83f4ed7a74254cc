// What is changed from here, and how it is told.

const TOGETHER = 4; // requests at once, when several tasks are selected
const TOLD_FOR = 8000; // ms

let toldTimer;

function tell(text, isError = false) {
  clearTimeout(toldTimer);
  by("told").className = isError ? "error" : "";
  write(by("told"), text);
  // What went wrong stays until the next word.
  if (!isError) toldTimer = setTimeout(() => write(by("told"), ""), TOLD_FOR);
}

function confirmed(heading, text, yes) {
  const dialog = by("confirm");
  write(by("confirm-heading"), heading);
  write(by("confirm-text"), text);
  write(by("confirm-yes"), yes);
  return new Promise((resolve) => {
    const close = (answer) => () => dialog.close(answer);
    by("confirm-yes").onclick = close("yes");
    by("confirm-no").onclick = close("no");
    dialog.onclose = () => resolve(dialog.returnValue === "yes");
    dialog.returnValue = "no"; // what Escape leaves
    dialog.showModal();
  });
}

const plural = (n, word) => `${count(n)} ${word}${n === 1 ? "" : "s"}`;

// Makes one request for each id, a few at a time, and tells how it went.
async function forEach(ids, done, request) {
  const left = [...ids];
  const failures = [];
  const work = async () => {
    for (let id = left.shift(); id !== undefined; id = left.shift()) {
      try {
        await request(id);
      } catch (error) {
        failures.push(error);
      }
    }
  };
  await Promise.all(Array.from({ length: Math.min(TOGETHER, left.length) }, work));
  const well = ids.length - failures.length;
  if (failures.length) {
    const text = `${plural(failures.length, "task")} not ${done}: ${failures[0].message}`;
    tell(well ? `${plural(well, "task")} ${done}; ${text}` : text, true);
  } else {
    tell(`${plural(well, "task")} ${done}.`);
  }
  failures.forEach(noteLock);
  await pollNow();
}

const retry = (ids) =>
  forEach(ids, "retried", (id) => call("POST", `dead/${encodeURIComponent(id)}/retry`));

async function remove(ids) {
  const what = ids.length === 1 ? `the dead task ${ids[0]}` : `${count(ids.length)} dead tasks`;
  const text = `This deletes ${what} for good: payload, error and all. It cannot be undone.`;
  if (!await confirmed("Delete?", text, ids.length === 1 ? "Delete it" : "Delete them")) return;
  await forEach(ids, "deleted", (id) => call("DELETE", `dead/${encodeURIComponent(id)}`));
}

async function cancel(id) {
  const text = `If task ${id} runs already it is asked to stop, and is cancelled unless it succeeds first.`;
  if (!await confirmed("Cancel this task?", text, "Cancel the task")) return;
  await one(async () => {
    const { document } = await call("POST", `tasks/${encodeURIComponent(id)}/cancel`);
    return document.cancel_requested ? "The task was asked to stop." : "The task is cancelled.";
  });
}

const setPaused = (queue, isPaused) =>
  one(async () => {
    await call("POST", `queues/${encodeURIComponent(queue)}/${isPaused ? "pause" : "resume"}`);
    return isPaused
      ? `Queue ${queue} is paused: nothing more is claimed from it.`
      : `Queue ${queue} goes on.`;
  });

async function one(request) {
  try {
    tell(await request());
  } catch (error) {
    tell(`Not done: ${error.message}`, true);
    noteLock(error);
  }
  await pollNow();
}
