"""`prefork-q ctl`: asks the node's master over its Unix socket. The commands come from its own table.

Probes call this often, so nothing is imported here that a question does not need.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from prefork_q.cli.asking import question, socket_option
from prefork_q.cli.changes import drain, reload, restart, scale
from prefork_q.cli.exits import DEGRADED, NOT_RUNNING, TIMED_OUT
from prefork_q.cli.output import print_json, printable, say
from prefork_q.cli.parameters import json_option
from prefork_q.cli.showing import show_metrics, show_pairs, show_status, show_workers
from prefork_q.cli.stacks import stacks
from prefork_q.cli.top import top
from prefork_q.control.client import NotRunning
from prefork_q.control.commands import COMMANDS, Command


@click.group("ctl")
@socket_option
@click.pass_context
def command(ctx: click.Context, socket: str | None) -> None:
    """Ask the master of this node.

    Exit codes of `status`: 0 healthy, 1 degraded, 3 not running; of all: 75 no answer in time.
    """
    ctx.obj = socket


SHOW: dict[str, Callable[[Any], None]] = {
    "ping": show_pairs,
    "status": show_status,
    "workers": show_workers,
    "metrics": show_metrics,
    "quiet": show_pairs,
    "resume": show_pairs,
}
"""The commands that are one question, and how their answers are printed."""


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


for _command in (status, scale, reload, drain, restart, stacks, top):
    command.add_command(_command)
for _name in SHOW:
    if _name != "status":
        command.add_command(build(COMMANDS[_name]))
