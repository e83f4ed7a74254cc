"""The api process of a node: its life from birth to end. Main thread.

- introduces itself to the master, takes the schemas of the handlers that the template has imported (with
  preloading off it imports them), serves on the sockets that the master has opened;
- drains when the master says so, on a SIGTERM of its own, or when the master is gone: it accepts
  nothing more, answers what it has, tells who waits for a task what is known now, and exits 0.

Every other signal that reaches it through the terminal or the group does nothing.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import threading
import traceback
from typing import Final

from setproctitle import setproctitle

from prefork_q.api.create import body_limit, create_app
from prefork_q.api.server import Limits, Server
from prefork_q.app import App
from prefork_q.config import Config
from prefork_q.errors import ConfigurationError
from prefork_q.events import Events, Level
from prefork_q.ipc import stats
from prefork_q.ipc.birth import Birth
from prefork_q.ipc.channel import ChannelClosed
from prefork_q.ipc.messages import Drain, Failed, Ready

ORPHAN_DRAIN: Final = 5.0
"""Seconds for requests in flight when the master is gone: it would have said how long."""
FLUSH_TIME: Final = 0.2
"""Seconds before the master's deadline at which a drain ends, so that exiting is not hurried."""


def run_api(birth: Birth, config: Config, app: App, events: Events) -> int:
    """Be the api process of this birth until its end. Returns its exit code.

    Args:
        birth: what the master gave.
        config: the node's configuration.
        app: that of the handlers.
        events: to the node's log; the lines will say which process wrote them.
    """
    setproctitle("prefork-q: api")
    if not birth.introduce():
        return 0
    events = events.with_process(role="api", api=birth.slot, pid=os.getpid())
    return ApiProcess(birth, config, events).run(app)


class ApiProcess:
    """Assembles the parts and looks after the life cycle."""

    def __init__(
        self,
        birth: Birth,
        config: Config,
        events: Events,
        *,
        has_signals: bool = True,
    ) -> None:
        """`has_signals`: this is the main thread of an own process; else orders come by the channel."""
        self._has_signals = has_signals
        self._birth = birth
        self._config = config
        self._events = events
        self._slot = birth.scoreboard.api(birth.cell)
        self._counting = threading.Lock()
        self._is_terminated = False
        # Read by the loop, so that a signal ends its wait (select and poll go on after a handler).
        self._wake_reader, wake_writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        if has_signals:
            signal.set_wakeup_fd(wake_writer, warn_on_full_buffer=False)
        self._catch_signals()

    def run(self, app: App) -> int:
        try:
            application = create_app(
                self._config, app.handlers, events=self._events, on_unavailable=self._count_trouble
            )
        except ConfigurationError as error:
            return self._fail(str(error), traceback.format_exc())
        gc.freeze()
        _log_through(self._events)
        limits = Limits(body=body_limit(self._config.payload_limit))
        self._server = Server(application, self._birth.listeners, limits, on_turn=self._slot.beat)
        self._server.watch(self._wake_reader, self._wake)
        self._server.watch(self._birth.channel.fileno(), self._hear)
        self._say(Ready())
        if self._is_terminated:
            self._drain(self._config.drain_timeout, "SIGTERM")
        cut = self._server.run()
        self._events.emit("stopped", requests_cut=cut or None)
        return 0

    def _wake(self) -> None:
        os.read(self._wake_reader, 4096)
        if self._is_terminated and not self._server.is_draining:
            self._drain(self._config.drain_timeout, "SIGTERM")

    def _hear(self) -> None:
        try:
            while (message := self._birth.channel.receive()) is not None:
                if isinstance(message, Drain):
                    self._drain(message.seconds, "told by the master", message.patience)
        except ChannelClosed:
            self._server.unwatch(self._birth.channel.fileno())
            if not self._server.is_draining:
                self._drain(min(ORPHAN_DRAIN, self._config.drain_timeout), "the master is gone")

    def _drain(self, seconds: float, cause: str, patience: float = 0.0) -> None:
        self._events.emit("draining", cause=cause, seconds=seconds)
        self._server.drain(max(0.0, seconds - FLUSH_TIME), patience)

    def _fail(self, reason: str, trace: str) -> int:
        if not self._say(Failed(reason, trace)):
            self._events.emit("failed", level="error", reason=reason, traceback=trace)
        return os.EX_CONFIG

    def _say(self, message: Ready | Failed) -> bool:
        """Tell the master; False if it is gone, of which the loop will hear too."""
        try:
            self._birth.channel.send(message)
        except ChannelClosed:
            return False
        return True

    def _count_trouble(self, kind: str) -> None:
        # The slot has one writer, which here is any of the threads that answer requests.
        with self._counting:
            self._slot.add(stats.redis_error(kind))

    def _catch_signals(self) -> None:
        if self._has_signals:
            signal.signal(signal.SIGTERM, self._on_term)

    def _on_term(self, number: int, frame: object) -> None:
        self._is_terminated = True


class _ToEvents(logging.Handler):
    """Hands what the server's library logs to the events."""

    LEVELS: Final[dict[int, Level]] = {logging.WARNING: "warning", logging.INFO: "info"}

    def __init__(self, events: Events) -> None:
        super().__init__()
        self._events = events

    def emit(self, record: logging.LogRecord) -> None:
        trace = None
        if record.exc_info and record.exc_info[1] is not None:
            trace = "".join(traceback.format_exception(record.exc_info[1]))
        level = self.LEVELS.get(record.levelno, "error" if record.levelno > logging.WARNING else "debug")
        self._events.emit("http_server", level=level, message=record.getMessage(), traceback=trace)


def _log_through(events: Events) -> None:
    logger = logging.getLogger("waitress")
    logger.handlers[:] = [_ToEvents(events)]
    logger.setLevel(logging.INFO)
    logger.propagate = False
    # Requests that wait for a thread are no news; it would say so for each.
    logging.getLogger("waitress.queue").setLevel(logging.ERROR)
