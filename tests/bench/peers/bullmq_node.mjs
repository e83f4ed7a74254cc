// BullMQ on Node: worker and submitter. A count of the calls goes to a file of its own every 5 ms, since
// Node has no shared memory with the bench; who measures reads it.
//
//   node bullmq_node.mjs work
//   node bullmq_node.mjs fill KIND N one|bulk

import { closeSync, openSync, writeSync } from "node:fs";
import { createRequire } from "node:module";

const require = createRequire(process.env.BENCH_NODE_MODULES + "/");
const { Queue, Worker } = require("bullmq");
const url = new URL(process.env.BENCH_REDIS);
const connection = { host: url.hostname, port: Number(url.port), maxRetriesPerRequest: null };
const concurrency = process.env.BENCH_VARIANT === "tuned" ? 100 : 1;
const [action, kind, n, way] = process.argv.slice(2);

if (action === "work") {
  const count = openSync(`${process.env.BENCH_LEDGER}.node.${process.pid}`, "w");
  let calls = 0, written = 0;
  setInterval(() => {
    if (calls === written) return;
    written = calls;
    writeSync(count, String(calls).padEnd(16), 0);
  }, 5);
  const lines = openSync(process.env.BENCH_LEDGER.replace(/\.cells$/, ".lines"), "a");
  new Worker("bench", async (job) => {
    if (job.name === "stamp") {
      const now = process.hrtime.bigint();
      writeSync(lines, `${job.data.value.toFixed(9)} ${(Number(now) / 1e9).toFixed(9)}\n`);
    }
    calls += 1;
  }, { connection, concurrency });
} else {
  const queue = new Queue("bench", { connection });
  await queue.waitUntilReady();
  const text = "x".repeat(89);
  const started = process.hrtime.bigint();
  if (way === "one") {
    for (let i = 0; i < Number(n); i += 1) await queue.add(kind, { text });
  } else {
    for (let i = 0; i < Number(n); i += 500) {
      await queue.addBulk(Array.from({ length: Math.min(500, Number(n) - i) }, () => ({ name: kind, data: { text } })));
    }
  }
  console.log(JSON.stringify({ seconds: Number(process.hrtime.bigint() - started) / 1e9, n: Number(n) }));
  process.exit(0);
}
