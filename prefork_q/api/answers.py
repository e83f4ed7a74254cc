"""What endpoints give back, and where they are found."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import orjson

from prefork_q.tokens import Scope


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer that is no refusal; those are `Problem`s. `noted` is for the audit log."""

    status: int
    body: bytes = b""
    content_type: str = "application/json"
    headers: Sequence[tuple[str, str]] = ()
    noted: Mapping[str, Any] = field(default_factory=dict)


class Route(NamedTuple):
    """An endpoint: `function` takes the WSGI environment and the parts of the path that `rule` names.

    `scope` is what a token must have for it, if tokens are configured; None: it is open to all.
    Without Redis one that needs it is not even called, once it is known that Redis does not answer.
    """

    method: str
    rule: str
    function: Callable[..., Answer]
    scope: Scope | None
    needs_redis: bool = True


def json_answer(
    document: Any, status: int = 200, headers: Sequence[tuple[str, str]] = (), **noted: Any
) -> Answer:
    return Answer(status, orjson.dumps(document), headers=headers, noted=noted)
