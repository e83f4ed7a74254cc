"""streaq."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import ledger
from streaq import Worker

worker = Worker(redis_url=os.environ["BENCH_REDIS"])


@worker.task(name="noop")
async def noop(text: str) -> None:
    ledger.do_noop(text)


@worker.task(name="stamp")
async def stamp(sent: float) -> None:
    ledger.do_stamp(sent)


@worker.task(name="spin")
async def spin(seconds: float) -> None:
    await asyncio.to_thread(ledger.do_spin, seconds)


@worker.task(name="hang")
async def hang(seconds: float) -> None:
    await asyncio.to_thread(ledger.do_hang, seconds)


TASKS = {"noop": noop, "stamp": stamp, "spin": spin, "hang": hang}
loop = asyncio.new_event_loop()


def connect() -> None:
    """Connects with the first call."""


def submit_one_by_one(kind: str, values: list[Any]) -> None:
    async def submit() -> None:
        async with worker:
            for value in values:
                await TASKS[kind].enqueue(value)

    loop.run_until_complete(submit())


def submit_bulk(kind: str, values: list[Any]) -> None:
    async def submit() -> None:
        async with worker:
            for start in range(0, len(values), 500):
                await worker.enqueue_many(
                    [TASKS[kind].enqueue(value) for value in values[start : start + 500]]
                )

    loop.run_until_complete(submit())
