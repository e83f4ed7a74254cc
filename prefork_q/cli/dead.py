"""`prefork-q dead`: the tasks that cannot succeed by themselves; looking, retrying, deleting."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Iterator, Sequence

import click

from prefork_q.cli.options import name
from prefork_q.cli.output import cause, counted, print_json, print_table, say
from prefork_q.cli.parameters import json_option
from prefork_q.cli.reach import Reach, reaching
from prefork_q.cli.record import missing, print_task
from prefork_q.errors import NotFound
from prefork_q.inspector import PAGE_LIMIT
from prefork_q.presentation import as_json
from prefork_q.states import Status
from prefork_q.units import timestamp


@click.group("dead")
def command() -> None:
    """Dead tasks: list, show, retry, delete."""


@command.command("list")
@click.option("--type", "type_", callback=name, metavar="TYPE", help="Only tasks of this type.")
@click.option("--limit", type=click.IntRange(1), default=50, show_default=True, help="How many at most.")
@json_option
@reaching
def list_(reach: Reach, type_: str | None, limit: int, is_json: bool) -> None:
    """List dead tasks, the newest first."""
    tasks = list(itertools.islice(reach.tasks(Status.DEAD, type=type_), limit))
    if is_json:
        print_json({"tasks": [as_json(task) for task in tasks]})
        return
    print_table(
        ("id", "type", "died", "attempts", "crashes", "error"),
        (
            (t.id, t.type, t.finished_at and timestamp(t.finished_at), t.attempts, t.crashes, cause(t.error))
            for t in tasks
        ),
        numbers=("attempts", "crashes"),
    )


@command.command("show")
@click.argument("id")
@json_option
@reaching
def show(reach: Reach, id: str, is_json: bool) -> None:
    """Show the dead task ID, with its error and traceback."""
    task = reach.inspector.get(id)
    if task is None:
        raise missing(id)
    if task.status is not Status.DEAD:
        raise NotFound(f"task {id} is {task.status}, not dead")
    print_json(as_json(task)) if is_json else print_task(task)


def selecting(function: Callable[..., object]) -> Callable[..., object]:
    """Decorate a command with the ways to choose dead tasks."""
    function = click.option("--all", "is_all", is_flag=True, help="All dead tasks.")(function)
    function = click.option(
        "--type", "type_", callback=name, metavar="TYPE", help="All dead tasks of this type."
    )(function)
    return click.argument("ids", metavar="[ID]...", nargs=-1)(function)


@command.command("retry")
@selecting
@reaching
def retry(reach: Reach, ids: tuple[str, ...], type_: str | None, is_all: bool) -> int:
    """Give dead tasks a new life: they are pending again, attempts and crashes start anew."""
    nonce = str(uuid.uuid4())
    chosen = _choose(reach, ids, type_, is_all)
    return _apply(lambda batch: reach.broker.retry(batch, nonce=nonce), chosen, "retried", bool(ids))


@command.command("delete")
@selecting
@click.option("--yes", is_flag=True, help="Do not ask.")
@reaching
def delete(reach: Reach, ids: tuple[str, ...], type_: str | None, is_all: bool, yes: bool) -> int:
    """Delete dead tasks for good."""
    chosen = _choose(reach, ids, type_, is_all)
    dead = sum(_is_dead(reach, id) for id in ids)
    # Where there is nothing to delete, what is said of each id is all that there is to say.
    if not yes and (dead or not ids):
        of_type = f" of type {type_}" if type_ else ""
        what = counted(dead, "dead task") if ids else f"all dead tasks{of_type}"
        click.confirm(f"Delete {what} for good?", abort=True, err=True)
    return _apply(reach.broker.delete, chosen, "deleted", bool(ids))


def _choose(reach: Reach, ids: tuple[str, ...], type_: str | None, is_all: bool) -> Iterator[str]:
    """Return the ids of the chosen tasks: those named, or those of pages as they are read."""
    if bool(ids) + bool(type_) + is_all != 1:
        raise click.UsageError("Choose tasks by their ids, by --type TYPE, or by --all.")
    return iter(ids) if ids else (task.id for task in reach.tasks(Status.DEAD, type=type_))


def _is_dead(reach: Reach, id: str) -> bool:
    task = reach.inspector.get(id)
    return task is not None and task.status is Status.DEAD


def _refusal(id: str, word: str) -> str:
    return str(missing(id)) if word == "missing" else f"task {id} is not dead"


def _apply(
    verb: Callable[[Sequence[str]], list[str]], chosen: Iterator[str], done: str, is_named: bool
) -> int:
    """Carry out a verb batch by batch and say what it did; 1 if a task that was named refused."""
    count, refused = 0, 0
    try:
        while batch := list(itertools.islice(chosen, PAGE_LIMIT)):
            for id, word in zip(batch, verb(batch), strict=True):
                count += word == "ok"
                if word != "ok" and is_named:
                    refused += 1
                    say(_refusal(id, word))
    finally:
        say(f"{counted(count, 'task')} {done}")
    return 1 if refused else 0
