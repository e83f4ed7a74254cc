"""`prefork-q queue`: what waits in which queue; pausing, resuming and purging one."""

from __future__ import annotations

import time

import click

from prefork_q.cli.output import counted, print_json, print_table, say
from prefork_q.cli.parameters import json_option
from prefork_q.cli.reach import Reach, reaching
from prefork_q.errors import NotFound
from prefork_q.presentation import queue_as_json

PURGE_BATCH = 500


@click.group("queue")
def command() -> None:
    """Queues: list, pause, resume, purge."""


@command.command("list")
@json_option
@reaching
def list_(reach: Reach, is_json: bool) -> None:
    """List the queues that somebody works on, or that tasks were ever submitted to."""
    queues = reach.inspector.counts().queues
    if is_json:
        print_json({"queues": [queue_as_json(queue) for queue in queues]})
        return
    print_table(
        ("queue", "pending", "paused", "oldest pending", "submitted"),
        ((q.name, q.pending, q.is_paused, _age(q.oldest_pending_age), q.submitted) for q in queues),
        numbers=("pending", "oldest pending", "submitted"),
    )


@command.command("pause")
@click.argument("name")
@reaching
def pause(reach: Reach, name: str) -> None:
    """Claim nothing more from the queue NAME, on no node; tasks that run go on."""
    _require(reach.broker.pause(name), name)
    say(f"queue {name} is paused")


@command.command("resume")
@click.argument("name")
@reaching
def resume(reach: Reach, name: str) -> None:
    """Claim from the queue NAME again."""
    _require(reach.broker.resume(name), name)
    say(f"queue {name} is resumed")


@command.command("purge")
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
@reaching
def purge(reach: Reach, name: str, yes: bool) -> None:
    """Delete the pending tasks of the queue NAME, the newest first; those that run or are delayed stay.

    Goes in small steps, so that the service goes on meanwhile, and may be interrupted at any time.
    """
    counts = {queue.name: queue.pending for queue in reach.inspector.counts().queues}
    if name not in counts:
        raise NotFound(f"nobody works on queue {name}, and no task was ever submitted to it")
    if not yes:
        what = counted(counts[name], "pending task")
        click.confirm(f"Delete {what} of queue {name} for good?", abort=True, err=True)
    deleted, left = 0, PURGE_BATCH
    told_at = time.monotonic()
    try:
        # Less than a full batch: the queue was empty then. What is submitted later stays.
        while left == PURGE_BATCH:
            left, gone = reach.broker.purge(name, limit=PURGE_BATCH)
            deleted += gone
            if time.monotonic() - told_at > 1:
                told_at = time.monotonic()
                say(f"{deleted:,} of {counts[name]:,} deleted")
    finally:
        say(f"{counted(deleted, 'task')} deleted")


def _require(word: str, name: str) -> None:
    if word == "missing":
        raise NotFound(f"nobody works on queue {name}, and no task was ever submitted to it")


def _age(seconds: float | None) -> str | None:
    return None if seconds is None else f"{seconds:,.1f} s"
