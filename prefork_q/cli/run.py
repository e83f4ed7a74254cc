"""`prefork-q run`: puts a node together and is its master.

Everything that can be wrong is found before the first process is made: the configuration, the state
folder, the control socket, the API's addresses, the embedded server's program. The code of the
children is imported by the children: the master has no Redis client, no web framework and no user code.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from importlib.metadata import version
from io import TextIOWrapper
from pathlib import Path
from typing import Any, NoReturn

import click

from prefork_q.cli.listen import listening, name_of
from prefork_q.cli.log import open_events
from prefork_q.cli.manager import warn_of_limits
from prefork_q.cli.options import config_options, load_config
from prefork_q.cli.rereading import Rereading, master_settings
from prefork_q.cli.roles import Roles
from prefork_q.config import OPTIONS, Config, misspelt, require_ctl_folder
from prefork_q.control.server import ControlServer
from prefork_q.events import Events, Sink
from prefork_q.folder import acquire_state_folder
from prefork_q.master.master import Master
from prefork_q.master.sdnotify import Notifier
from prefork_q.master.settings import MasterSettings
from prefork_q.options import PREFIX
from prefork_q.store import StoreSettings, find_server
from prefork_q.watcher import require_watchfiles

STANDARD_FDS = 3
LEAST_SLOTS = 64
LEAST_THREADS = 16
"""Room for workers, and for threads of each, to which a running node can be scaled."""


@click.command("run")
@config_options([option.name for option in OPTIONS])
def command(config: Path | None, **given: Any) -> int:
    """Run the service in the foreground: master, workers, keeper, API and, without a URL, a server.

    TARGET names the handlers: package.module:attribute or path/to/file.py:attribute. It is also the key
    target and the variable PREFORK_Q_TARGET.

    Each option is also a key in the configuration file and a variable: --drain-timeout is
    drain_timeout and PREFORK_Q_DRAIN_TIMEOUT. Flags beat variables, which beat the file.

    TERM and INT stop the service: running tasks get the drain timeout, then are given back; a second
    one, or QUIT, gives them back at once. HUP reloads code and configuration with no gap. TSTP and CONT
    let the workers claim nothing more, and again. TTIN and TTOU are for one worker more or less. USR1
    reopens the log file. USR2 writes the stacks of all workers to the log.
    """

    def read() -> Config:
        settings = load_config(config, given)
        if settings.target is None:
            raise click.UsageError("Name the handlers, as in: prefork-q run package.module:attribute")
        return settings

    named = os.environ.get(f"{PREFIX}CONFIG")
    return run(read, config or (Path(named) if named else None))


def run(read: Callable[[], Config], config_file: Path | None = None) -> int:
    """Run a node until it is told to stop; return the exit code.

    Args:
        read: returns the configuration; called once more for each reload.
        config_file: where it reads; watched, if a change is to reload.

    Raises:
        ConfigurationError: it cannot be started so; nothing is left behind.
    """
    config = read()
    if isinstance(sys.stdout, TextIOWrapper):
        # What handlers print is seen at once, and none of it waits in a buffer that a fork would double.
        sys.stdout.reconfigure(line_buffering=True)
    config.require_socket_paths()
    require_ctl_folder(config, os.environ)
    if config.no_fork:
        require_possible_alone(config)
    if config.reload:
        require_watchfiles()
    with ExitStack() as stack:
        # Taken out of the environment at once: no child of this process may notify.
        notifier = Notifier.take(os.environ)
        stack.callback(notifier.close)
        # The master never waits for a reader of its log; its children do, for a while.
        events = open_events(config, {})
        sink = events.sink
        stack.callback(sink.close)
        for warning in misspelt(os.environ):
            events.emit("option_unknown", level="warning", detail=warning)
        if config.needs_state_dir:
            stack.callback(acquire_state_folder(config.state_dir).close)
        store = StoreSettings(find_server(), config.state_dir) if config.embedded else None
        control = ControlServer(config.ctl_socket, events)
        control.open()
        stack.callback(control.close)
        sockets = stack.enter_context(listening(config.http_addresses, os.environ, config.token_file))
        if config.no_fork:
            announce(config, store, [name_of(one) for one in sockets], events)
            live_alone(config, store, sockets, events, control, stack)
        settings = master_settings(config, first_settings(config, sink))
        roles = Roles(config, settings, store, events, config_file)
        reread = Rereading(read, config, settings, store, events, config_file)
        master = Master(settings, roles.entrypoints(), events, sockets, control, reread, notifier)
        announce(config, store, [name_of(one) for one in sockets], events)
        if notifier.is_open:
            warn_of_limits(config, events)
        return master.run()


def require_possible_alone(config: Config) -> None:
    """Refuse what cannot be done without a fork.

    Raises:
        ConfigurationError: names each such option.
    """
    from prefork_q.cli.solo import require_possible

    require_possible(config)


def live_alone(
    config: Config,
    store: StoreSettings | None,
    sockets: Sequence[socket.socket],
    events: Events,
    control: ControlServer,
    stack: ExitStack,
) -> NoReturn:
    """Be the whole node in this process, and end it; `stack` is closed before."""
    from prefork_q.cli.solo import leave, run_alone

    code = run_alone(config, store, sockets, events, control)
    stack.close()
    # At once: what still runs was given back.
    leave(code)


def first_settings(config: Config, sink: Sink) -> MasterSettings:
    """Return what stays for the life of the node; there is room to grow."""
    return MasterSettings(
        version=version("prefork-q"),
        workers=config.workers,
        slots=max(LEAST_SLOTS, 2 * config.workers),
        most_threads=max(LEAST_THREADS, 2 * config.threads),
        keep_fds=(sink.fileno(),) if sink.fileno() >= STANDARD_FDS else (),
    )


def announce(config: Config, store: StoreSettings | None, names: list[str], events: Events) -> None:
    """Tell what will run, the embedded server loudest: its folder holds the tasks."""
    if store is not None:
        events.emit(
            "embedded_server", level="warning", server=str(store.binary), state_dir=str(config.state_dir),
            detail="this node runs its own server; the tasks are kept in that folder, or give --redis-url",
        )  # fmt: skip
        if config.log_file is not None or not events.is_on("warning"):
            print(f"prefork-q: embedded {store.binary}, state in {config.state_dir}", file=sys.stderr)
    for name in names:
        events.emit("listening", http=name)
    events.emit("configured", level="debug", **config.shown())
