"""`ctl stacks`: what every thread of every worker is doing."""

from __future__ import annotations

import time
from typing import Any

import click

from prefork_q.cli.asking import TIMEOUT, find_socket, question, socket_option
from prefork_q.cli.exits import TIMED_OUT
from prefork_q.cli.output import print_json, print_text, printable
from prefork_q.cli.parameters import json_option
from prefork_q.control.client import NoAnswer, ask
from prefork_q.control.commands import COMMANDS

PAUSE = 0.05
"""Seconds between two questions while the workers are being asked."""


@click.command("stacks", help=COMMANDS["stacks"].help)
@socket_option
@json_option
@click.pass_obj
def stacks(group_socket: str | None, socket: str | None, is_json: bool) -> int:
    path = socket or group_socket or find_socket()
    until = time.monotonic() + TIMEOUT
    answer = question("stacks", path)
    while answer is not None and not answer["done"]:
        time.sleep(PAUSE)
        answer = _again(path, answer["number"], until - time.monotonic())
    if answer is None:
        return TIMED_OUT
    if is_json:
        print_json(answer["workers"])
    else:
        for worker in answer["workers"]:
            show(worker)
    return 0


def show(worker: dict[str, Any]) -> None:
    """Print the threads of a worker, each like a traceback."""
    click.echo(f"worker {worker['slot']}, generation {worker['generation']}, pid {worker['pid']}")
    if not worker["answered"]:
        click.echo("  it does not answer; is it stopped?\n")
        return
    for thread in worker["threads"]:
        task = f", runs {thread['type']} {thread['task']}" if thread["task"] else ""
        click.echo(printable(f"{thread['name']}{task} (most recent call last):"))
        print_text(thread["stack"])
        click.echo()


def _again(path: str, number: int, left: float) -> dict[str, Any] | None:
    """Return the answer as far as it is; None: there is no time left."""
    if left <= 0:
        return None
    try:
        answer: dict[str, Any] = ask(path, "stacks", {"number": number}, timeout=left)
    except NoAnswer:
        return None
    return answer
