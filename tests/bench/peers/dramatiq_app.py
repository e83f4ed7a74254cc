"""Dramatiq."""

from __future__ import annotations

import os
from typing import Any

import dramatiq
import ledger
from dramatiq.brokers.redis import RedisBroker

broker = RedisBroker(url=os.environ["BENCH_REDIS"])
if os.environ.get("BENCH_VARIANT") == "results":
    from dramatiq.results import Results
    from dramatiq.results.backends import RedisBackend

    broker.add_middleware(Results(backend=RedisBackend(url=os.environ["BENCH_REDIS"])))
    OPTIONS: dict[str, Any] = {"store_results": True}
else:
    OPTIONS = {}
dramatiq.set_broker(broker)


@dramatiq.actor(actor_name="noop", **OPTIONS)
def noop(text: str) -> None:
    ledger.do_noop(text)


@dramatiq.actor(actor_name="stamp", **OPTIONS)
def stamp(sent: float) -> None:
    ledger.do_stamp(sent)


@dramatiq.actor(actor_name="spin", **OPTIONS)
def spin(seconds: float) -> None:
    ledger.do_spin(seconds)


@dramatiq.actor(actor_name="hang", **OPTIONS)
def hang(seconds: float) -> None:
    ledger.do_hang(seconds)


TASKS = {"noop": noop, "stamp": stamp, "spin": spin, "hang": hang}


def connect() -> None:
    broker.client.ping()


def submit_one_by_one(kind: str, values: list[Any]) -> None:
    task = TASKS[kind]
    for value in values:
        task.send(value)


submit_bulk = submit_one_by_one
"""It has no bulk path."""
