"""From the bytes of a type to what a processor needs to run it. Built once, before the first claim."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from prefork_q.app import App
from prefork_q.ipc.stats import MAX_TYPES
from prefork_q.retry import Retry


@dataclass(frozen=True, slots=True, eq=False)
class Route:
    """A handler, unpacked: the hot path reads no attributes of the user's objects."""

    type: bytes
    name: str
    function: Callable[..., Any]
    arguments: Callable[[bytes], dict[str, Any]]
    context_parameter: str | None
    retry: Retry
    timeout: float | None
    number: int
    """Its index in the scoreboard; types beyond the last share it."""


def routes(app: App) -> Mapping[bytes, Route]:
    """Return the routes of all handlers, by the bytes of their types."""
    return {
        name.encode(): Route(
            type=name.encode(),
            name=name,
            function=handler.entry,
            arguments=handler.arguments,
            context_parameter=handler.context_parameter,
            retry=handler.retry,
            timeout=handler.timeout,
            number=min(number, MAX_TYPES - 1),
        )
        for number, (name, handler) in enumerate(app.handlers.items())
    }
