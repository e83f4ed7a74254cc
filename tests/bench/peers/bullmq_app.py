"""BullMQ's Python port. It has no program of its own for workers: this file is one."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import ledger
from bullmq import Queue, Worker

URL = os.environ["BENCH_REDIS"]
CONCURRENCY = 20 if os.environ.get("BENCH_VARIANT") == "tuned" else 1
MEMBERS = {"noop": "text", "stamp": "sent", "spin": "seconds", "hang": "seconds"}
loop = asyncio.new_event_loop()
queue: Queue | None = None


async def process(job: Any, token: str) -> None:
    value = job.data[MEMBERS[job.name]]
    if job.name in ("noop", "stamp"):
        getattr(ledger, f"do_{job.name}")(value)
    else:
        await asyncio.to_thread(getattr(ledger, f"do_{job.name}"), value)


async def work() -> None:
    Worker("bench", process, {"connection": URL, "concurrency": CONCURRENCY})
    await asyncio.Event().wait()


def connect() -> None:
    global queue

    async def make() -> Queue:
        return Queue("bench", {"connection": URL})

    queue = loop.run_until_complete(make())


def submit_one_by_one(kind: str, values: list[Any]) -> None:
    async def submit() -> None:
        assert queue is not None
        for value in values:
            await queue.add(kind, {MEMBERS[kind]: value})

    loop.run_until_complete(submit())


def submit_bulk(kind: str, values: list[Any]) -> None:
    async def submit() -> None:
        assert queue is not None
        for start in range(0, len(values), 500):
            await queue.addBulk(
                [{"name": kind, "data": {MEMBERS[kind]: value}} for value in values[start : start + 500]]
            )

    loop.run_until_complete(submit())


if __name__ == "__main__":
    asyncio.run(work())
