"""The project."""

from __future__ import annotations

import os
from typing import Any

import ledger

from prefork_q import App, Client, NewTask, NotFound
from prefork_q.ids import new_id

app = App()
client = Client(os.environ["BENCH_REDIS"])
MEMBERS = {"noop": "text", "stamp": "sent", "spin": "seconds", "hang": "seconds"}


@app.task("noop")
def noop(text: str) -> None:
    ledger.do_noop(text)


@app.task("stamp")
def stamp(sent: float) -> None:
    ledger.do_stamp(sent)


@app.task("spin")
def spin(seconds: float) -> None:
    ledger.do_spin(seconds)


@app.task("hang")
def hang(seconds: float) -> None:
    ledger.do_hang(seconds)


def connect() -> None:
    try:
        client.get(new_id())
    except NotFound:
        return


def submit_one_by_one(kind: str, values: list[Any]) -> None:
    member = MEMBERS[kind]
    for value in values:
        client.submit(kind, {member: value})


def submit_bulk(kind: str, values: list[Any]) -> None:
    member = MEMBERS[kind]
    client.submit_many(NewTask(kind, {member: value}) for value in values)
