"""`prefork-q`: its commands, imported when they are asked for, and what an error does to the exit code.

`prefork-q ctl status` is what probes call, often: it imports neither pydantic nor a Redis client.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import threading
from typing import Any

import click

from prefork_q.cli.exits import EXIT_CODES, FAILED, INTERRUPTED, TIMED_OUT
from prefork_q.cli.output import print_text
from prefork_q.errors import PreforkQError

COMMANDS = ("run", "ctl", "task", "dead", "queue", "check", "api", "openapi", "systemd")
"""Each is the object `command` of the module of that name beside this one."""


class Commands(click.Group):
    """A group that imports a command when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"prefork_q.cli.{cmd_name}").command
        return command


def print_version(ctx: click.Context, parameter: click.Parameter, is_asked: bool) -> None:
    if is_asked:
        from importlib.metadata import version  # costs 15 ms that no other command needs

        click.echo(f"prefork-q {version('prefork-q')}")
        ctx.exit()


@click.command(
    cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=print_version,
    help="Show the version.",
)
def prefork_q() -> None:
    """A task queue on Redis with prefork workers.

    Exit codes: 0 done; 1 failed; 2 wrong usage; 69 the service or Redis cannot be reached; 75
    timed out, try again; 78 wrong configuration.
    """


def main() -> None:
    """Run the command line and exit."""
    shed_inheritance()
    code = run()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        # Whoever read it has gone.
        code = code or FAILED
    # The interpreter would take its modules apart first: up to half a second, for nothing; and wait for
    # threads that the handlers' import has left, perhaps for ever.
    others = set(threading.enumerate()) - {threading.main_thread()}
    if not others or not all(thread.daemon for thread in others):
        os._exit(code)
    sys.exit(code)


def shed_inheritance() -> None:
    """Undo what whoever started the program may have left: blocked signals, children that are not waited for,
    closed standard streams.

    A closed one would be the number of the next descriptor that is opened, and what somebody prints would
    go into a connection.
    """
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for fd, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        try:
            os.fstat(fd)
        except OSError:
            # The lowest number that is free.
            os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(fd, True)
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(fd, mode, closefd=False))


def run(arguments: list[str] | None = None) -> int:
    """Run the command that `arguments` name (by default those of the process); return its exit code."""
    try:
        code: Any = prefork_q.main(arguments, prog_name="prefork-q", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except click.Abort as abort:
        click.echo("interrupted" if isinstance(abort.__cause__, KeyboardInterrupt) else "not done", err=True)
        return INTERRUPTED if isinstance(abort.__cause__, KeyboardInterrupt) else FAILED
    except PreforkQError as error:
        print_text(f"prefork-q: {error}", err=True)
        return EXIT_CODES.get(error.code, FAILED)
    except TimeoutError as error:
        click.echo(f"prefork-q: {error}", err=True)
        return TIMED_OUT
    return code if isinstance(code, int) else 0
