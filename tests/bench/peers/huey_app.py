"""Huey."""

from __future__ import annotations

import os
from typing import Any

import ledger
from huey import RedisHuey

huey = RedisHuey("bench", url=os.environ["BENCH_REDIS"])


@huey.task(name="noop")
def noop(text: str) -> None:
    ledger.do_noop(text)


@huey.task(name="stamp")
def stamp(sent: float) -> None:
    ledger.do_stamp(sent)


@huey.task(name="spin")
def spin(seconds: float) -> None:
    ledger.do_spin(seconds)


@huey.task(name="hang")
def hang(seconds: float) -> None:
    ledger.do_hang(seconds)


TASKS = {"noop": noop, "stamp": stamp, "spin": spin, "hang": hang}


def connect() -> None:
    huey.storage.conn.ping()


def submit_one_by_one(kind: str, values: list[Any]) -> None:
    task = TASKS[kind]
    for value in values:
        task(value)


submit_bulk = submit_one_by_one
"""It has no bulk path."""
