"""Celery."""

from __future__ import annotations

import os
from typing import Any

import ledger
from celery import Celery

IS_LEAN = os.environ.get("BENCH_VARIANT") == "lean"
app = Celery(
    "celery_app", broker=os.environ["BENCH_REDIS"], backend=None if IS_LEAN else os.environ["BENCH_REDIS"]
)
if IS_LEAN:
    app.conf.update(task_ignore_result=True, worker_prefetch_multiplier=64)


@app.task(name="noop")
def noop(text: str) -> None:
    ledger.do_noop(text)


@app.task(name="stamp")
def stamp(sent: float) -> None:
    ledger.do_stamp(sent)


@app.task(name="spin")
def spin(seconds: float) -> None:
    ledger.do_spin(seconds)


@app.task(name="hang")
def hang(seconds: float) -> None:
    ledger.do_hang(seconds)


TASKS = {"noop": noop, "stamp": stamp, "spin": spin, "hang": hang}


def connect() -> None:
    with app.connection_for_write() as connection:
        connection.ensure_connection(timeout=5)


def submit_one_by_one(kind: str, values: list[Any]) -> None:
    task = TASKS[kind]
    for value in values:
        task.delay(value)


submit_bulk = submit_one_by_one
"""It has no bulk path: group() sends one by one."""
