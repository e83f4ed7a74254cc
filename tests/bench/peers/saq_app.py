"""SAQ."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import ledger
from saq import Queue

queue = Queue.from_url(os.environ["BENCH_REDIS"])


async def noop(ctx: Any, *, text: str) -> None:
    ledger.do_noop(text)


async def stamp(ctx: Any, *, sent: float) -> None:
    ledger.do_stamp(sent)


async def spin(ctx: Any, *, seconds: float) -> None:
    await asyncio.to_thread(ledger.do_spin, seconds)


async def hang(ctx: Any, *, seconds: float) -> None:
    await asyncio.to_thread(ledger.do_hang, seconds)


settings = {"queue": queue, "functions": [noop, stamp, spin, hang], "concurrency": 10}
MEMBERS = {"noop": "text", "stamp": "sent", "spin": "seconds", "hang": "seconds"}
loop = asyncio.new_event_loop()


def connect() -> None:
    loop.run_until_complete(queue.connect())


def submit_one_by_one(kind: str, values: list[Any]) -> None:
    async def submit() -> None:
        for value in values:
            await queue.enqueue(kind, **{MEMBERS[kind]: value})

    loop.run_until_complete(submit())


def submit_bulk(kind: str, values: list[Any]) -> None:
    """It has no bulk path; what it has is many at once."""

    async def submit() -> None:
        for start in range(0, len(values), 100):
            await asyncio.gather(
                *(queue.enqueue(kind, **{MEMBERS[kind]: value}) for value in values[start : start + 100])
            )

    loop.run_until_complete(submit())
