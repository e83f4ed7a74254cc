"""`ctl` commands that change the node: scale, reload, restart, drain."""

from __future__ import annotations

import os
import select
import time
from contextlib import suppress
from typing import Any

import click

from prefork_q.cli.asking import TIMEOUT, find_socket, question, socket_option
from prefork_q.cli.exits import FAILED, TIMED_OUT
from prefork_q.cli.output import print_json, print_pairs, printable, say
from prefork_q.cli.parameters import duration, json_option
from prefork_q.control.client import NoAnswer, NotRunning, ask
from prefork_q.control.commands import COMMANDS

PAUSE = 0.1
"""Seconds between two questions while something is waited for."""
LAST_BREATH = 5.0
"""Seconds between the end of the control socket and that of the master's process."""
SILENCE = 30.0
"""Seconds for which a master that drains may answer nothing."""


@click.command(
    "scale", help=COMMANDS["scale"].help,
    # -2 is a number of workers, no option.
    context_settings={"ignore_unknown_options": True},
)  # fmt: skip
@click.argument("to", metavar="N|+N|-N")
@socket_option
@json_option
@click.pass_obj
def scale(group_socket: str | None, socket: str | None, is_json: bool, to: str) -> int:
    return _tell(question("scale", socket or group_socket, {"to": to}), is_json)


def _worker(ctx: click.Context, parameter: click.Parameter, value: str) -> int:
    if not (value.isascii() and value.isdigit()):
        raise click.BadParameter(f"{value!r} is not a worker's number; `ctl workers` shows them")
    return int(value)


@click.command("restart", help=COMMANDS["restart"].help)
@click.argument("worker", callback=_worker, metavar="WORKER")
@socket_option
@json_option
@click.pass_obj
def restart(group_socket: str | None, socket: str | None, is_json: bool, worker: int) -> int:
    return _tell(question("restart", socket or group_socket, {"worker": worker}), is_json)


@click.command("reload", help=COMMANDS["reload"].help)
@click.option("--wait", "is_waiting", is_flag=True, help="Wait until it is done; exit 1 if it fails.")
@click.option(
    "--timeout", default="5m", callback=duration, metavar="DURATION", show_default=True,
    help="With --wait: wait no longer than this; exit 75, while the reload goes on.",
)  # fmt: skip
@socket_option
@json_option
@click.pass_obj
def reload(
    group_socket: str | None, socket: str | None, is_json: bool, is_waiting: bool, timeout: float
) -> int:
    path = socket or group_socket or find_socket()
    answer = question("reload", path)
    if answer is None or not is_waiting:
        return _tell(answer, is_json)
    outcome = until_reloaded(path, answer["number"], timeout)
    if outcome is None:
        say(f"prefork-q: the reload is not done after {timeout:g} s, and goes on: see `ctl status`")
        return TIMED_OUT
    if is_json:
        print_json(outcome)
    elif outcome["outcome"] == "done":
        print_pairs((("generation", outcome["generation"]),))
    if outcome["outcome"] == "done":
        return 0
    say(outcome["traceback"] or "")
    say(f"prefork-q: the reload failed: {printable(outcome['reason'])}")
    return FAILED


@click.command("drain", help=COMMANDS["drain"].help + " Waits until all is stopped.")
@socket_option
@json_option
@click.pass_obj
def drain(group_socket: str | None, socket: str | None, is_json: bool) -> int:
    path = socket or group_socket or find_socket()
    answer = question("drain", path)
    if answer is None:
        return TIMED_OUT
    if not until_stopped(path, answer["pid"]):
        say("prefork-q: the master does not answer any more, and has not ended")
        return TIMED_OUT
    return _tell({"pid": answer["pid"], "state": "stopped"}, is_json)


def until_reloaded(path: str, number: int, timeout: float) -> dict[str, Any] | None:
    """Wait for the end of the reload of this number, or of a later one, and return what is known of it.

    None: it has not ended within `timeout` seconds.

    Raises:
        NotRunning: the master is gone.
    """
    deadline = time.monotonic() + timeout
    while (left := deadline - time.monotonic()) > 0:
        with suppress(NoAnswer):
            status = ask(path, "status", timeout=min(TIMEOUT, left))
            known: dict[str, Any] | None = status["reload"]
            if known is not None and known["number"] >= number and known["outcome"] != "running":
                return known
            if status["state"] == "draining":
                return {"number": number, "outcome": "failed", "generation": status["generation"],
                        "reason": "the node stops", "traceback": None}  # fmt: skip
        time.sleep(min(PAUSE, max(0.0, left)))
    return None


def until_stopped(path: str, pid: int) -> bool:
    """Wait until nobody listens at the socket any more, and then for the end of the process. As long as the
    master answers that may take as long as it does.

    Returns:
        False if it has not ended, and was silent for `SILENCE`.
    """
    answered_at = time.monotonic()
    while True:
        try:
            ask(path, "ping", timeout=TIMEOUT)
            answered_at = time.monotonic()
        except NoAnswer:
            # Perhaps it was cut off in the middle of one. The next question will tell.
            if time.monotonic() - answered_at > SILENCE:
                return False
        except NotRunning:
            break
        time.sleep(PAUSE)
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:
        # Gone already, or in another pid namespace: then its socket was all that there is to see.
        return True
    try:
        poller = select.poll()
        poller.register(pidfd, select.POLLIN)
        return bool(poller.poll(LAST_BREATH * 1000))
    finally:
        os.close(pidfd)


def _tell(answer: dict[str, Any] | None, is_json: bool) -> int:
    if answer is None:
        return TIMED_OUT
    if is_json:
        print_json(answer)
    else:
        print_pairs(answer.items())
    return 0
