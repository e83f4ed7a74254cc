"""`prefork-q api`: the HTTP API alone, beside workers that run elsewhere."""

from __future__ import annotations

import os
import signal
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import Any

import click
from setproctitle import setproctitle

from prefork_q.api import create_app
from prefork_q.api.create import body_limit
from prefork_q.api.server import Limits, Server
from prefork_q.cli.handlers import load_handlers
from prefork_q.cli.listen import listening, name_of
from prefork_q.cli.log import open_events
from prefork_q.cli.options import CONNECTION, config_options, load_config
from prefork_q.config import Config
from prefork_q.errors import ConfigurationError
from prefork_q.master.sdnotify import Notifier

OPTIONS = (
    "target", *CONNECTION, "token_file", "http", "ctl_socket", "drain_timeout", "payload_limit", "retention",
    "log_level", "log_format", "log_file",
)  # fmt: skip


@click.command("api")
@config_options(OPTIONS)
def command(config: Path | None, **given: Any) -> None:
    """Serve the HTTP API, without workers.

    TARGET names the handlers whose tasks are accepted. TERM and INT stop it: what was asked is answered.
    """
    serve(load_config(config, given))


def serve(config: Config) -> None:
    """Serve until a signal says to stop.

    Raises:
        ConfigurationError: there is no address, or one cannot be had; the handlers cannot be imported, or a
            file of tokens cannot be read.
    """
    if not config.http:
        raise ConfigurationError("no_http is set: there is nothing to serve")
    # Arguments may hold a password, and everybody on the machine can read them.
    setproctitle("prefork-q: api")
    with ExitStack() as stack:
        notifier = Notifier.take(os.environ)
        stack.callback(notifier.close)
        events = open_events(config, {"role": "api", "pid": os.getpid()})
        stack.callback(events.sink.close)
        sockets = stack.enter_context(listening(config.http_addresses, os.environ, config.token_file))
        handlers = load_handlers(config).handlers if config.target else {}
        if not handlers:
            events.emit("no_handlers", level="warning", detail="no TARGET: every submission will be refused")
        application = create_app(config, handlers, events=events)
        stack.callback(application.close)
        server = Server(
            application, sockets, Limits(body=body_limit(config.payload_limit)), on_turn=notifier.feed
        )
        drain_on_signals(server, notifier, config.drain_timeout, stack)
        names = [name_of(one) for one in sockets]
        for name in names:
            events.emit("listening", http=name)
        notifier.ready(f"listening on {', '.join(names)}")
        cut = server.run()
        events.emit("stopped", requests_cut=cut or None)


def drain_on_signals(server: Server, notifier: Notifier, seconds: float, stack: ExitStack) -> None:
    """Let the server's loop drain after TERM and INT; a second one lets it end at once."""
    # A signal ends the loop's wait through this pipe: poll itself goes on after a handler.
    reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    stack.callback(os.close, reader)
    stack.callback(os.close, writer)

    def hear() -> None:
        for number in os.read(reader, 256):
            if number in (signal.SIGTERM, signal.SIGINT):
                notifier.stopping("draining")
                server.drain(0.0 if server.is_draining else seconds)

    def note(number: int, frame: FrameType | None) -> None:
        """The number is in the pipe; the loop does the rest."""

    stack.callback(signal.set_wakeup_fd, signal.set_wakeup_fd(writer, warn_on_full_buffer=False))
    for number in (signal.SIGTERM, signal.SIGINT):
        stack.callback(signal.signal, number, signal.signal(number, note))
    server.watch(reader, hear)
