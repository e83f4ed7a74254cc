"""taskiq on Redis: streams (acknowledged) or a list (not)."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import ledger
from taskiq_redis import ListQueueBroker, RedisAsyncResultBackend, RedisStreamBroker

VARIANT = os.environ.get("BENCH_VARIANT", "stream")
URL = os.environ["BENCH_REDIS"]
if VARIANT == "list":
    broker: Any = ListQueueBroker(URL)
else:
    broker = RedisStreamBroker(URL)
if VARIANT == "results":
    broker = broker.with_result_backend(RedisAsyncResultBackend(URL, result_ex_time=86_400))


@broker.task(task_name="noop")
async def noop(text: str) -> None:
    ledger.do_noop(text)


@broker.task(task_name="stamp")
async def stamp(sent: float) -> None:
    ledger.do_stamp(sent)


@broker.task(task_name="spin")
def spin(seconds: float) -> None:
    ledger.do_spin(seconds)


@broker.task(task_name="hang")
def hang(seconds: float) -> None:
    ledger.do_hang(seconds)


TASKS = {"noop": noop, "stamp": stamp, "spin": spin, "hang": hang}
loop = asyncio.new_event_loop()


def connect() -> None:
    loop.run_until_complete(broker.startup())


def submit_one_by_one(kind: str, values: list[Any]) -> None:
    task = TASKS[kind]

    async def submit() -> None:
        for value in values:
            await task.kiq(value)

    loop.run_until_complete(submit())


def submit_bulk(kind: str, values: list[Any]) -> None:
    """It has no bulk path; what it has is many at once."""
    task = TASKS[kind]

    async def submit() -> None:
        for start in range(0, len(values), 100):
            await asyncio.gather(*(task.kiq(value) for value in values[start : start + 100]))

    loop.run_until_complete(submit())
