"""arq."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import ledger
from arq import create_pool
from arq.connections import ArqRedis, RedisSettings

SETTINGS = RedisSettings.from_dsn(os.environ["BENCH_REDIS"])


async def noop(ctx: Any, text: str) -> None:
    ledger.do_noop(text)


async def stamp(ctx: Any, sent: float) -> None:
    ledger.do_stamp(sent)


async def spin(ctx: Any, seconds: float) -> None:
    await asyncio.to_thread(ledger.do_spin, seconds)


async def hang(ctx: Any, seconds: float) -> None:
    await asyncio.to_thread(ledger.do_hang, seconds)


class WorkerSettings:
    functions = (noop, stamp, spin, hang)
    redis_settings = SETTINGS
    if os.environ.get("BENCH_VARIANT") == "tuned":
        max_jobs = 100
        poll_delay = 0.01


loop = asyncio.new_event_loop()
pool: ArqRedis | None = None


def connect() -> None:
    global pool
    pool = loop.run_until_complete(create_pool(SETTINGS))


def submit_one_by_one(kind: str, values: list[Any]) -> None:
    async def submit() -> None:
        assert pool is not None
        for value in values:
            await pool.enqueue_job(kind, value)

    loop.run_until_complete(submit())


def submit_bulk(kind: str, values: list[Any]) -> None:
    """It has no bulk path; what it has is many at once."""

    async def submit() -> None:
        assert pool is not None
        for start in range(0, len(values), 50):
            await asyncio.gather(*(pool.enqueue_job(kind, value) for value in values[start : start + 50]))

    loop.run_until_complete(submit())
