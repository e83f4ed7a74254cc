"""RQ."""

from __future__ import annotations

import os
from typing import Any

import ledger
from redis import Redis
from rq import Queue

redis = Redis.from_url(os.environ["BENCH_REDIS"])
queue = Queue(connection=redis)


def noop(text: str) -> None:
    ledger.do_noop(text)


def stamp(sent: float) -> None:
    ledger.do_stamp(sent)


def spin(seconds: float) -> None:
    ledger.do_spin(seconds)


def hang(seconds: float) -> None:
    ledger.do_hang(seconds)


def connect() -> None:
    redis.ping()


def submit_one_by_one(kind: str, values: list[Any]) -> None:
    for value in values:
        queue.enqueue(f"rq_app.{kind}", value)


def submit_bulk(kind: str, values: list[Any]) -> None:
    for start in range(0, len(values), 500):
        queue.enqueue_many(
            [Queue.prepare_data(f"rq_app.{kind}", args=(value,)) for value in values[start : start + 500]]
        )
