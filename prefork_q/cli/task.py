"""`prefork-q task`: submit, look, wait, cancel, and why one is not running."""

from __future__ import annotations

import itertools
import sys
from contextlib import suppress
from typing import Any

import click

from prefork_q.cli.explain import explain as reasons_for
from prefork_q.cli.explain import is_unknown
from prefork_q.cli.options import name
from prefork_q.cli.output import print_json, print_pairs, print_table, say
from prefork_q.cli.parameters import duration, json_option
from prefork_q.cli.reach import Reach, reaching
from prefork_q.cli.record import missing, print_task
from prefork_q.errors import Conflict, Invalid, Unavailable
from prefork_q.presentation import as_json
from prefork_q.states import Status
from prefork_q.strict_json import decode
from prefork_q.task import TaskRecord
from prefork_q.units import timestamp


@click.group("task")
def command() -> None:
    """Tasks: submit, show, wait, cancel, list, explain."""


@command.command("submit")
@click.argument("type_", metavar="TYPE")
@click.argument("payload", metavar="[JSON]", default="{}")
@click.option("--queue", metavar="NAME", help="The queue.  [default: default]")
@click.option("--delay", callback=duration, metavar="DURATION", help="Run it after this time.")
@click.option("--max-attempts", type=int, metavar="N", help="How often it is run at most.  [default: 3]")
@click.option("--idempotency-key", metavar="KEY", help="The same key again gives the same task.")
@click.option("--wait", "is_waiting", is_flag=True, help="Wait for its end and print its result.")
@click.option(
    "--timeout", callback=duration, metavar="DURATION",
    help="With --wait: give up after this time, with exit code 75; the task stays.",
)  # fmt: skip
@json_option
@reaching
def submit(
    reach: Reach,
    type_: str,
    payload: str,
    is_waiting: bool,
    timeout: float | None,
    is_json: bool,
    **options: Any,
) -> None:
    """Submit a task of TYPE; JSON is its payload, an object (`-`: read it from stdin).

    Prints the id, or with --wait the result. The handlers are not known here: what is not given of queue
    and attempts is the default below, whatever the handler declares, and a payload that does not fit its
    handler shows when the task runs.
    """
    if timeout is not None and not is_waiting:
        raise click.UsageError("--timeout is for --wait.")
    given = {name: value for name, value in options.items() if value is not None}
    with reach.client() as client:
        task = client.submit(type_, _read(payload), **given)
        if not is_json:
            _warn_if_unknown(reach, type_)
        if not is_waiting:
            print_json({"id": task.id, "status": task.status}) if is_json else click.echo(task.id)
            return
        say(f"task {task.id}")
        print_json(client.wait(task.id, timeout=timeout))


@command.command("show")
@click.argument("id")
@json_option
@reaching
def show(reach: Reach, id: str, is_json: bool) -> None:
    """Show the task ID."""
    task = _get(reach, id)
    print_json(as_json(task)) if is_json else print_task(task)


@command.command("wait")
@click.argument("id")
@click.option(
    "--timeout", callback=duration, metavar="DURATION", help="Give up after this time, with exit code 75."
)
@reaching
def wait(reach: Reach, id: str, timeout: float | None) -> None:
    """Wait for the end of the task ID and print its result, as JSON. Exit code 1: it did not succeed."""
    with reach.client() as client:
        print_json(client.wait(id, timeout=timeout))


@command.command("cancel")
@click.argument("id")
@reaching
def cancel(reach: Reach, id: str) -> None:
    """Cancel the task ID; one that runs is asked to stop, and is cancelled when it is put back."""
    match reach.broker.cancel(id):
        case "cancelled":
            say(f"task {id} is cancelled")
        case "requested":
            say(f"task {id} runs: it was asked to stop, and will not be retried")
        case "ended":
            raise Conflict(f"task {id} has ended")
        case _:
            raise missing(id)


@command.command("list")
@click.option(
    "--status", type=click.Choice([status.value for status in Status]), help="Only tasks of this status."
)
@click.option("--type", "type_", callback=name, metavar="TYPE", help="Only tasks of this type.")
@click.option("--queue", callback=name, metavar="NAME", help="Only tasks of this queue.")
@click.option("--limit", type=click.IntRange(1), default=50, show_default=True, help="How many at most.")
@json_option
@reaching
def list_(
    reach: Reach, status: str | None, type_: str | None, queue: str | None, limit: int, is_json: bool
) -> None:
    """List tasks. Of those that succeeded or were cancelled the last 10,000 are listed."""
    found = reach.tasks(Status(status) if status else None, type=type_, queue=queue)
    tasks = list(itertools.islice(found, limit))
    if is_json:
        print_json({"tasks": [as_json(task) for task in tasks]})
        return
    print_table(
        ("id", "type", "queue", "status", "attempts", "created"),
        (
            (task.id, task.type, task.queue, task.status.value, task.attempts, timestamp(task.created_at))
            for task in tasks
        ),
        numbers=("attempts",),
    )


@command.command("explain")
@click.argument("id")
@json_option
@reaching
def explain(reach: Reach, id: str, is_json: bool) -> None:
    """Say why the task ID is not running."""
    task = _get(reach, id)
    reasons = reasons_for(task, reach.inspector)
    if is_json:
        print_json(
            {"id": id, "status": task.status.value, "reasons": [reason._asdict() for reason in reasons]}
        )
        return
    print_pairs((reason.reason.replace("_", " "), reason.detail) for reason in reasons)


def _warn_if_unknown(reach: Reach, type: str) -> None:
    # The task is there: that nothing more can be said of it now is no failure.
    with suppress(Unavailable):
        if is_unknown(type, reach.inspector.nodes()):
            say(f"no live worker knows the type {type}: the task waits for one that does")


def _read(text: str) -> dict[str, Any]:
    body = sys.stdin.buffer.read() if text == "-" else text.encode("utf-8", "surrogateescape")
    try:
        payload = decode(body)
    except Invalid as error:
        raise click.BadParameter(error.detail, param_hint="JSON") from None
    if not isinstance(payload, dict):
        raise click.BadParameter(
            "the payload is an object: its members are the handler's arguments", param_hint="JSON"
        )
    return payload


def _get(reach: Reach, id: str) -> TaskRecord:
    task = reach.inspector.get(id)
    if task is None:
        raise missing(id)
    return task
