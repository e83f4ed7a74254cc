"""Puts the application together out of the configuration."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Final

from prefork_q.api.access import Access
from prefork_q.api.answers import Route
from prefork_q.api.application import Application
from prefork_q.api.breaker import Breaker
from prefork_q.api.dashboard import Dashboard
from prefork_q.api.dead import Dead
from prefork_q.api.endings import Endings
from prefork_q.api.health import Health
from prefork_q.api.metrics import Metrics
from prefork_q.api.node import Node
from prefork_q.api.openapi import Description
from prefork_q.api.queues import Queues
from prefork_q.api.submissions import Handlers, Reader
from prefork_q.api.tasks import Tasks
from prefork_q.app import load_app
from prefork_q.broker import Broker
from prefork_q.config import Config, effective_redis_url
from prefork_q.connection import connect
from prefork_q.errors import ConfigurationError
from prefork_q.events import Events, Sink
from prefork_q.inspector import Inspector
from prefork_q.keys import Keys
from prefork_q.leases import Limits
from prefork_q.tokens import Tokens

WAITING_ROOM: Final = 24
"""Requests that may hold a thread while they wait for a task, of the server's 32."""
BATCH_BYTES: Final = 8 << 20
"""Bytes that a batch may have, or one task if the payload's limit makes that more."""


def create_app(
    config: Config,
    handlers: Handlers | None = None,
    *,
    events: Events | None = None,
    on_unavailable: Callable[[str], None] = lambda kind: None,
) -> Application:
    """Return the WSGI application. It connects to Redis with the first request that needs it.

    Args:
        config: as `prefork_q.config.load` returns it.
        handlers: those that are known, by type; without them `config.target` is imported.
        events: where errors are told; stderr by default.
        on_unavailable: called with the kind of trouble whenever Redis could not do something.

    Raises:
        ConfigurationError: the handlers cannot be imported, or the URL of Redis or a file of tokens cannot
            be read.
    """
    events = events or default_events(config)
    access = Access(read_access(config, events), events)
    if handlers is None:
        handlers = load_app(config.target).handlers if config.target else {}
    breaker = Breaker()
    endings, routes = assemble(config, handlers, breaker)
    description = Description(handlers, routes, has_tokens=bool(config.token_file))
    return Application(
        [*routes, *description.routes()],
        events,
        breaker,
        access,
        on_unavailable=on_unavailable,
        on_close=endings.close,
    )


def describe(config: Config, handlers: Handlers) -> dict[str, Any]:
    """Return the OpenAPI document of the application that `create_app` would make."""
    _, routes = assemble(config, handlers, Breaker())
    return Description(handlers, routes, has_tokens=bool(config.token_file)).document


def assemble(config: Config, handlers: Handlers, breaker: Breaker) -> tuple[Endings, list[Route]]:
    """Return the endpoints, and what is to be closed at the end. Nothing is connected to yet."""
    url, keys = effective_redis_url(config), Keys(config.namespace)
    client = connect(url)
    broker = Broker(client, keys, Limits(retention=config.retention, max_crashes=config.max_crashes))
    inspector = Inspector(client, keys)
    endings = Endings(url, keys, broker, room=WAITING_ROOM)
    node = Node(config.ctl_socket)
    tasks = Tasks(
        broker,
        inspector,
        endings,
        Reader(handlers, config.payload_limit),
        single_limit=single_limit(config.payload_limit),
        batch_limit=body_limit(config.payload_limit),
    )
    parts = (
        tasks,
        Dead(broker, inspector),
        Queues(broker, inspector),
        Metrics(inspector, node, breaker),
        node,
        Health(inspector, node),
        Dashboard(),
    )
    return endings, [route for part in parts for route in part.routes()]


def read_access(config: Config, events: Events) -> Tokens | None:
    """Return the configured tokens, None if there are none to be had.

    Raises:
        ConfigurationError: a file cannot be read or is wrong.
    """
    if not config.token_file:
        return None

    def tell(wrong: ConfigurationError | None) -> None:
        if wrong is None:
            events.emit("tokens_reloaded")
        else:
            detail = "the earlier ones still hold"
            events.emit("tokens_rejected", level="error", reason=str(wrong), detail=detail)

    return Tokens(config.token_file, tell)


def single_limit(payload_limit: int) -> int:
    """Return how large the body for one task may be.

    The payload's limit is for its compact form; a client may send it with spaces and with every
    character that is not ASCII escaped, which is three times as long.
    """
    return 4 * payload_limit + 65_536


def body_limit(payload_limit: int) -> int:
    """Return how large any body may be."""
    return max(BATCH_BYTES, single_limit(payload_limit))


def default_events(config: Config) -> Events:
    format_ = config.log_format or ("text" if sys.stderr.isatty() else "json")
    return Events(Sink.stderr(), format=format_, level=config.log_level, process={"role": "api"})
