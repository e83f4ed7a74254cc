"""`prefork-q run --no-fork`: worker, keeper and API as threads of one process, for debuggers.

The worker's fetch loop has the main thread, as in a process of its own, and handlers run on its
processor threads: one that a debugger holds keeps nobody else, so its lease is renewed. What needs a
second process, to be killed or replaced, is refused at the start.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import termios
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Final, NoReturn

from prefork_q.api.process import ApiProcess
from prefork_q.app import App
from prefork_q.cli.conductor import API, KEEPER, WORKER, Conductor
from prefork_q.cli.handlers import load_handlers, run_template_hooks, warn_of_queues
from prefork_q.cli.roles import LOG_PATIENCE, keeper_settings, worker_settings
from prefork_q.config import Config
from prefork_q.control.server import ControlServer
from prefork_q.errors import ConfigurationError
from prefork_q.events import Events
from prefork_q.fresh import import_fresh
from prefork_q.ipc.birth import Birth
from prefork_q.ipc.channel import Channel
from prefork_q.ipc.fork import INTERNAL_ERROR, fork
from prefork_q.ipc.messages import Go, Ready
from prefork_q.ipc.scoreboard import Scoreboard
from prefork_q.keeper.keeper import Keeper
from prefork_q.master.settings import node_name
from prefork_q.store import StoreSettings, last_words, run_store, socket_path
from prefork_q.worker.worker import Worker

GENERATION: Final = 1
MOST_HELD: Final = 640
"""Tasks, as in a worker of a node with a master."""
STDIN: Final = 0
STORE_START: Final = 10.0
"""Seconds that the embedded server has to listen; loading its data takes no part of them."""
STORE_END: Final = 10.0
"""Seconds that the embedded server has to leave, after which it is killed."""
STRAGGLERS: Final = 8.0
"""Seconds for keeper and API after the worker's end; both have bounds of their own, which are shorter."""
LOOK: Final = 0.05
"""Seconds between two looks at what is waited for; a signal is handled meanwhile."""


def require_possible(config: Config) -> None:
    """Refuse what one process cannot do.

    Raises:
        ConfigurationError: names each such option.
    """
    given = config.model_fields_set
    wrong = [
        text
        for is_given, text in (
            ("workers" in given and config.workers > 1, "workers: there is one (use threads)"),
            (config.api_processes > 1, "api_processes: the API is a thread"),
            ("grace" in given, "grace: there is no hard time limit, which would need a process to kill"),
            (config.max_rss is not None, "max_rss: nobody would replace the process"),
            (config.max_tasks is not None, "max_tasks: nobody would replace the process"),
            (config.preload != "auto", "preload: nothing is forked"),
            (config.reload, "reload: start it again instead"),
        )
        if is_given
    ]
    if wrong:
        raise ConfigurationError(f"these options cannot work with no_fork: {'; '.join(wrong)}")


def run_alone(
    config: Config,
    store: StoreSettings | None,
    listeners: Sequence[socket.socket],
    events: Events,
    control: ControlServer,
) -> int:
    """Be the whole node until told to stop; return the exit code. Handlers may still run then.

    Raises:
        ConfigurationError: the handlers cannot be imported.
    """
    restore_terminal = keep_terminal()
    events.sink.patience = LOG_PATIENCE
    board = Scoreboard(1, config.threads, MOST_HELD)
    # Before the handlers are imported, while there is one thread.
    server = None if store is None else Store(store, board)
    try:
        app = load(config)
        warn_of_time_limits(app, events)
        warn_of_queues(app, config, events)
        return Solo(config, app, board, listeners, events, control, server).run()
    finally:
        if server is not None:
            server.end()
        restore_terminal()


def keep_terminal() -> Callable[[], None]:
    """Return what sets the terminal as it is now: a prompt that is cut off leaves it without echo."""
    try:
        modes = termios.tcgetattr(STDIN)
    except termios.error:
        return lambda: None

    def restore() -> None:
        with suppress(OSError, termios.error):
            # Where it is not ours at present, the kernel would stop us for touching it.
            if os.tcgetpgrp(STDIN) == os.getpgrp():
                termios.tcsetattr(STDIN, termios.TCSANOW, modes)

    return restore


def leave(code: int) -> NoReturn:
    """End the process, whatever its threads do."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            # Whoever read it has gone.
            continue
    os._exit(code)


def load(config: Config) -> App:
    """Import the handlers and run the hook that elsewhere runs before workers are forked.

    Raises:
        ConfigurationError: that does not work; the text has the traceback.
    """
    import_fresh()
    app = load_handlers(config)
    try:
        run_template_hooks(app)
    except Exception as error:
        raise ConfigurationError(f"the hook on_template_start failed\n{traceback.format_exc()}") from error
    return app


def warn_of_time_limits(app: App, events: Events) -> None:
    """Say once that time limits are soft here."""
    limited = sorted(name for name, handler in app.handlers.items() if handler.timeout)
    if limited:
        events.emit(
            "soft_limits_only", level="warning", types=limited,
            detail="with no_fork a time limit raises TaskTimeout in the handler, also in one that a debugger "
            "holds; what does not heed it is not killed",
        )  # fmt: skip


class Store:
    """The embedded server, a child of this process."""

    def __init__(self, settings: StoreSettings, board: Scoreboard) -> None:
        ours, theirs = Channel.pair()
        ours.send(Go())
        birth = Birth("store", 0, "store", GENERATION, os.getpid(), theirs, board)
        self._pid = fork(lambda: run_store(birth, settings), keep_fds=(theirs.fileno(),))
        theirs.close()
        self._channel = ours
        self._has_ended = False
        self._state_dir = settings.state_dir
        self._wait_for(socket_path(settings.state_dir))

    def _wait_for(self, path: Path) -> None:
        """Wait until it listens, for a while: whoever connects earlier would tell of an outage."""
        deadline = time.monotonic() + STORE_START
        while not self.has_ended() and time.monotonic() < deadline:
            with socket.socket(socket.AF_UNIX) as probe:
                if probe.connect_ex(str(path)) == 0:
                    return
            time.sleep(LOOK)

    def has_ended(self) -> bool:
        """Whether it is gone."""
        if not self._has_ended:
            try:
                self._has_ended = os.waitpid(self._pid, os.WNOHANG)[0] != 0
            except ChildProcessError:
                # A handler waited for any child, and got this one.
                self._has_ended = True
        return self._has_ended

    def said_at_its_end(self) -> str | None:
        """Return what to tell of its end, None while it lives."""
        if not self.has_ended():
            return None
        reason = last_words(self._state_dir)
        return f"the embedded server has ended{f': {reason}' if reason else ''}"

    def end(self) -> None:
        """Let it save and leave, then make it."""
        for number, seconds in ((signal.SIGTERM, STORE_END), (signal.SIGKILL, STORE_END)):
            if self.has_ended():
                break
            os.kill(self._pid, number)
            deadline = time.monotonic() + seconds
            while not self.has_ended() and time.monotonic() < deadline:
                time.sleep(LOOK)
        self._channel.close()


class Solo:
    """The threads of one process that is a node."""

    def __init__(
        self,
        config: Config,
        app: App,
        board: Scoreboard,
        listeners: Sequence[socket.socket],
        events: Events,
        control: ControlServer,
        store: Store | None,
    ) -> None:
        self._config = config
        self._app = app
        self._board = board
        self._listeners = listeners
        self._events = events
        self._node = node_name()
        self._slot = board.worker(0)
        self._conductor = Conductor(
            self._slot, control, events,
            version=version("prefork-q"), drain_timeout=config.drain_timeout,
            end_of_store=store.said_at_its_end if store is not None else lambda: None,
        )  # fmt: skip

    def run(self) -> int:
        """Work until told to stop; return the exit code."""
        conductor, pid = self._conductor, os.getpid()
        incarnation = f"{self._node}.0.1"
        self._slot.open(incarnation, GENERATION)
        self._slot.pid = pid
        self._slot.is_alive = True
        log = self._events.with_process(worker=0, gen=GENERATION, pid=pid)
        worker = Worker(
            self._birth(WORKER, "solo", incarnation), self._app, worker_settings(self._config), log,
            on_stop=conductor.ask_to_stop,
        )  # fmt: skip
        chores = [(KEEPER, self._keeper())]
        if self._listeners:
            chores.append((API, self._api()))
        self._events.emit("started", version=version("prefork-q"), node=self._node, pid=pid, no_fork=True)
        for role, work in chores:
            self._start(role, partial(self._live, role, work))
        conducting = self._start("conductor", partial(self._live, "conductor", conductor.run))
        self._live(WORKER, worker.live)
        deadline = time.monotonic() + STRAGGLERS
        while conducting.is_alive() and time.monotonic() < deadline:
            conducting.join(LOOK)
        self._events.emit("stopped", exit_code=conductor.exit_code)
        return conductor.exit_code

    def _keeper(self) -> Callable[[], object]:
        birth = self._birth(KEEPER, KEEPER, f"{self._node}.keeper")
        settings = keeper_settings(self._config, self._node, version("prefork-q"))
        log = self._events.with_process(role=KEEPER, pid=os.getpid())
        keeper = Keeper(self._board, birth.channel, settings, log, master_pid=os.getpid())

        def run() -> None:
            keeper.tell(Ready())
            keeper.run()

        return run

    def _api(self) -> Callable[[], object]:
        birth = replace(self._birth(API, API, f"{self._node}.api"), listeners=tuple(self._listeners))
        log = self._events.with_process(role=API, api=0, pid=os.getpid())
        api = ApiProcess(birth, self._config, log, has_signals=False)
        return lambda: api.run(self._app)

    def _birth(self, role: str, title: str, incarnation: str) -> Birth:
        channel = self._conductor.channel(role)
        return Birth(title, 0, incarnation, GENERATION, os.getpid(), channel, self._board)

    def _live(self, role: str, work: Callable[[], object]) -> None:
        """Do the work of a role to its end, and tell the conductor of that."""
        failure = 0
        try:
            work()
        except Exception:
            failure = INTERNAL_ERROR
            trace = traceback.format_exc()
            self._events.emit("failed", level="error", role=role, traceback=trace)
        finally:
            self._conductor.is_over(role, failure)

    @staticmethod
    def _start(name: str, target: Callable[[], None]) -> threading.Thread:
        thread = threading.Thread(target=target, name=name, daemon=True)
        thread.start()
        return thread
