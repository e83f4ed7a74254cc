"""What endpoints give back, and where they are found."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import orjson


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer that is no refusal; those are `Problem`s."""

    status: int
    body: bytes = b""
    content_type: str = "application/json"
    headers: Sequence[tuple[str, str]] = ()


class Route(NamedTuple):
    """An endpoint: `function` takes the WSGI environment and the parts of the path that `rule` names.

    Without Redis one that needs it is not even called, once it is known that Redis does not answer.
    """

    method: str
    rule: str
    function: Callable[..., Answer]
    needs_redis: bool = True


def json_answer(document: Any, status: int = 200, headers: Sequence[tuple[str, str]] = ()) -> Answer:
    return Answer(status, orjson.dumps(document), headers=headers)
