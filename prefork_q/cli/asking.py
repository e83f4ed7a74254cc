"""How `ctl` asks: which socket, how long, and what a refusal is. Light: probes use it often."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import click

from prefork_q.cli.output import say
from prefork_q.control.client import CommandFailed, NoAnswer, ask
from prefork_q.errors import ConfigurationError, Invalid
from prefork_q.places import default_ctl_socket, default_state_dir

TIMEOUT = 1.7
"""Seconds to wait for the answer: with the start of this program no question takes more than two."""

socket_option = click.option(
    "--socket",
    metavar="PATH",
    help="The master's control socket.  [default: $PREFORK_Q_CTL_SOCKET, else as `run` chooses it]",
)


def find_socket() -> str:
    """Return the control socket that the environment names, or that `run` would choose in it.

    Raises:
        ConfigurationError: the environment names a configuration file, which is wrong, and there is no
            socket where `run` would make it without one.
    """
    named = os.environ.get("PREFORK_Q_CTL_SOCKET")
    if named:
        return os.path.expanduser(named)
    state_dir = os.environ.get("PREFORK_Q_STATE_DIR") or default_state_dir(os.environ)
    usual = os.path.expanduser(default_ctl_socket(os.environ, state_dir))
    if os.environ.get("PREFORK_Q_CONFIG"):
        # Only then: it costs more than all the rest of the command.
        from prefork_q.config import load

        try:
            return str(load({}, os.environ).ctl_socket)
        except ConfigurationError:
            # The node that runs has read the file when it was right, and is asked all the same: for its
            # state, or for a reload, which it refuses and says why.
            if not os.path.exists(usual):
                raise
    return usual


def question(name: str, socket: str | None, arguments: Mapping[str, Any] | None = None) -> Any:
    """Return the master's answer, None if it did not come in time.

    Raises:
        NotRunning: there is no master.
        click.ClickException: it refuses; the text says why.
    """
    try:
        return ask(socket or find_socket(), name, dict(arguments or {}), timeout=TIMEOUT)
    except NoAnswer as error:
        say(f"prefork-q: {error}")
        return None
    except CommandFailed as failure:
        if failure.answer_code == Invalid.code:
            raise click.UsageError(str(failure)) from failure
        raise click.ClickException(str(failure)) from failure
