"""`prefork-q ctl`: asks the node's master over its Unix socket. The commands come from its own table.

Probes call this often, so nothing is imported here that a question does not need.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from prefork_q.cli.exits import DEGRADED, NOT_RUNNING, TIMED_OUT
from prefork_q.cli.output import elapsed, mebibytes, print_json, print_pairs, print_table, printable, say
from prefork_q.control.client import NoAnswer, NotRunning, ask
from prefork_q.control.commands import COMMANDS, Command
from prefork_q.places import default_ctl_socket, default_state_dir

TIMEOUT = 1.7
"""Seconds to wait for the answer: with the start of this program no question takes more than two."""

socket_option = click.option(
    "--socket",
    metavar="PATH",
    help="The master's control socket.  [default: $PREFORK_Q_CTL_SOCKET, else as `run` chooses it]",
)

json_option = click.option("--json", "is_json", is_flag=True, help="Print JSON.")


@click.group("ctl")
@socket_option
@click.pass_context
def command(ctx: click.Context, socket: str | None) -> None:
    """Ask the master of this node.

    Exit codes of `status`: 0 healthy, 1 degraded, 3 not running; of all: 75 no answer in time.
    """
    ctx.obj = socket


def find_socket() -> str:
    """Return the control socket that the environment names, or that `run` would choose in it.

    Raises:
        ConfigurationError: the environment names a configuration file, which is wrong.
    """
    named = os.environ.get("PREFORK_Q_CTL_SOCKET")
    if named:
        return named
    if os.environ.get("PREFORK_Q_CONFIG"):
        # Only then: it costs more than all the rest of the command.
        from prefork_q.config import load

        return str(load({}, os.environ).ctl_socket)
    state_dir = os.environ.get("PREFORK_Q_STATE_DIR") or default_state_dir(os.environ)
    return str(Path(default_ctl_socket(os.environ, state_dir)).expanduser())


def show_status(status: dict[str, Any]) -> None:
    """Print the state of the node for people."""
    redis = status["redis"]
    print_pairs(
        (
            ("prefork-q", status["version"]),
            ("node", status["node"]),
            ("state", status["state"]),
            ("pid", status["pid"]),
            ("up", elapsed(status["uptime_s"])),
            ("redis", redis["version"] if redis["reachable"] else "unreachable"),
            ("health", "degraded" if status["degraded"] else "good"),
            *(("", reason) for reason in status["degraded"]),
        )
    )
    click.echo()
    show_workers(status["workers"])
    click.echo()
    roles = [
        (name if len(members) == 1 else f"{name} {n}", member)
        for name, role in status["roles"].items()
        for members in [role if isinstance(role, list) else [role]]
        for n, member in enumerate(members)
    ]
    print_table(
        ("role", "pid", "state", "restarts"),
        ((name, role["pid"], role["state"], role["restarts"]) for name, role in roles),
        numbers=("pid", "restarts"),
    )
    click.echo()
    show_numbers(status["totals"])


def show_workers(workers: list[dict[str, Any]]) -> None:
    """Print the workers and what each runs."""
    print_table(
        ("worker", "pid", "state", "running", "held", "completed", "failed", "rss", "restarts", "runs"),
        map(_worker, workers),
        numbers=("worker", "pid", "running", "held", "completed", "failed", "rss", "restarts"),
    )


def show_numbers(numbers: dict[str, Any]) -> None:
    """Print what is a number by its name; the rest is for programs (`--json`)."""
    print_pairs((name.replace("_", " "), value) for name, value in numbers.items() if isinstance(value, int))


def show_metrics(metrics: dict[str, Any]) -> None:
    """Print the numbers of this node, and those of each type of task."""
    show_numbers(metrics["totals"] | metrics["counters"])
    click.echo()
    print_table(
        ("type", "completed", "failed", "retried", "dead", "mean"),
        (
            (name, n["completed"], n["failed"], n["retried"], n["dead"], _mean(n["durations"]))
            for name, n in metrics["types"].items()
        ),
        numbers=("completed", "failed", "retried", "dead", "mean"),
    )


def show_pairs(answer: dict[str, Any]) -> None:
    """Print an answer of few members."""
    print_pairs(answer.items())


SHOW: dict[str, Callable[[Any], None]] = {
    "ping": show_pairs,
    "status": show_status,
    "workers": show_workers,
    "metrics": show_metrics,
}


def build(asked: Command) -> click.Command:
    """Return the command line's command for one of the master's."""

    @click.pass_obj
    def run(group_socket: str | None, socket: str | None, is_json: bool) -> int:
        answer = question(asked.name, socket or group_socket)
        if answer is None:
            return TIMED_OUT
        print_json(answer) if is_json else SHOW[asked.name](answer)
        return 0

    return click.command(asked.name, help=asked.help)(socket_option(json_option(run)))


@click.command("status", help=COMMANDS["status"].help)
@socket_option
@json_option
@click.option("--check", "is_check", is_flag=True, help="Print nothing but what is wrong.")
@click.pass_obj
def status(group_socket: str | None, socket: str | None, is_json: bool, is_check: bool) -> int:
    try:
        answer = question("status", socket or group_socket)
    except NotRunning as error:
        say(f"prefork-q: not running: {error}")
        return NOT_RUNNING
    if answer is None:
        return TIMED_OUT
    if is_json:
        print_json(answer)
    elif is_check:
        for reason in answer["degraded"]:
            click.echo(printable(reason))
    else:
        show_status(answer)
    return DEGRADED if answer["degraded"] else 0


def question(name: str, socket: str | None) -> Any:
    """Return the master's answer, None if it did not come in time.

    Raises:
        NotRunning: there is no master.
    """
    try:
        return ask(socket or find_socket(), name, timeout=TIMEOUT)
    except NoAnswer as error:
        say(f"prefork-q: {error}")
        return None


for _asked in COMMANDS.values():
    command.add_command(status if _asked.name == "status" else build(_asked))


def _worker(worker: dict[str, Any]) -> tuple[object, ...]:
    running = worker["running"]
    return (
        worker["slot"],
        worker["pid"],
        worker["state"],
        f"{len(running)}/{worker['threads']}",
        worker["held"],
        worker["completed"],
        worker["failed"],
        mebibytes(worker["rss_bytes"]),
        worker["restarts"],
        ", ".join(map(_run, running)) or None,
    )


def _run(running: dict[str, Any]) -> str:
    return f"{running['type']} {running['id']} for {running['runtime_s']:.1f} s"


def _mean(durations: dict[str, Any]) -> str | None:
    return f"{durations['sum'] / durations['count']:.3f} s" if durations["count"] else None
