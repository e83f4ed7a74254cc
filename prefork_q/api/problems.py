"""Refusals as RFC 9457 problem details: what went wrong, and what to mend."""

from __future__ import annotations

import math
from collections.abc import Sequence
from http import HTTPStatus
from typing import Final, NamedTuple

import orjson

from prefork_q import errors

CONTENT_TYPE = "application/problem+json"

STATUS: dict[str, int] = {
    errors.Invalid.code: 422,
    errors.TooLarge.code: 413,
    errors.NotFound.code: 404,
    errors.Conflict.code: 409,
    errors.Stale.code: 409,
    errors.Unavailable.code: 503,
}
"""HTTP statuses of the codes of errors.py; what is not here is ours to mend: 500."""

FLAWS_SHOWN: Final = 100
"""Things to mend that an answer names; a request may have as many as it has bytes."""

PHRASES = {413: "Content Too Large", 414: "URI Too Long", 422: "Unprocessable Content"}
"""Where RFC 9110 renamed a status after Python took over its older name."""


class Kind(NamedTuple):
    """A kind of problem: its HTTP status, and what it is called. Its word never changes."""

    status: int
    title: str


KINDS: Final[dict[str, Kind]] = {
    "malformed-request": Kind(400, "The request cannot be read"),
    "not-json": Kind(400, "The body is not strict JSON"),
    "unauthorized": Kind(401, "A valid token is needed"),
    "missing-scope": Kind(403, "The token lacks the scope for this"),
    "cross-site": Kind(403, "Pages of other sites may not change anything"),
    "not-found": Kind(404, "There is no such thing"),
    "method-not-allowed": Kind(405, "Not possible with this method"),
    "conflict": Kind(409, "The state of the task forbids it"),
    "too-large": Kind(413, "The body or the payload is too large"),
    "target-too-long": Kind(414, "The request target is too long"),
    "unsupported-media-type": Kind(415, "The body is not of a type that is read"),
    "expectation-failed": Kind(417, "The expectation cannot be met"),
    "misdirected": Kind(421, "Not the host that answers here"),
    "invalid": Kind(422, "A value is wrong"),
    "unknown-type": Kind(422, "No handler has this type"),
    "invalid-payload": Kind(422, "The payload does not fit its handler"),
    "idempotency-conflict": Kind(422, "The key was used for another request"),
    "header-too-large": Kind(431, "The header is too large"),
    "internal": Kind(500, "An error of the service"),
    "not-implemented": Kind(501, "The transfer coding is not understood"),
    "unavailable": Kind(503, "Redis or the service cannot do it now"),
    "version-not-supported": Kind(505, "The version of HTTP is not spoken"),
}
"""What problems there are; DESIGN.md lists them. The first of a status is the one that it has by default."""
PREFIX: Final = "urn:prefork-q:problem:"

DEFAULT_KIND: Final[dict[int, str]] = {kind.status: word for word, kind in reversed(KINDS.items())}


UNAVAILABLE: Final[dict[str, str]] = {
    "connection": "Redis cannot be reached",
    "timeout": "Redis does not answer in time",
    "loading": "Redis is loading its data",
    "readonly": "Redis is a read-only replica; waiting for a primary",
    "full": "Redis takes no writes: it is full, or cannot store them on its disk",
    "busy": "Redis is busy, or has no room for another client",
    "denied": "Redis denies access",
}
"""What clients are told by the kind of an `Unavailable`; its own text may name hosts and paths."""
REFUSED: Final = "Redis refused a command"


class Flaw(NamedTuple):
    """One thing to mend: a JSON pointer to it (RFC 6901) and how. `kind` is the one of KINDS that it makes of
    a request with nothing else to mend, "" for what goes by its place."""

    pointer: str
    detail: str
    kind: str = ""


class Problem(Exception):
    """A refusal, on its way to becoming an answer. `kind` is one of KINDS, by default that of the status."""

    def __init__(
        self,
        status: int,
        detail: str,
        flaws: Sequence[Flaw] = (),
        headers: Sequence[tuple[str, str]] = (),
        *,
        kind: str | None = None,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.kind = kind or DEFAULT_KIND[status]
        self.detail = detail
        self.flaws = tuple(flaws[:FLAWS_SHOWN])
        self._headers = tuple(headers)

    @property
    def status_line(self) -> str:
        return f"{self.status} {PHRASES.get(self.status) or HTTPStatus(self.status).phrase}"

    def headers(self) -> list[tuple[str, str]]:
        return [("Content-Type", CONTENT_TYPE), ("Cache-Control", "no-store"), *self._headers]

    def body(self) -> bytes:
        document: dict[str, object] = {
            "type": PREFIX + self.kind,
            "title": KINDS[self.kind].title,
            "status": self.status,
            "detail": printable(self.detail),
        }
        if self.flaws:
            document["errors"] = [
                {"pointer": printable(flaw.pointer), "detail": printable(flaw.detail)} for flaw in self.flaws
            ]
        return orjson.dumps(document)


def problem_of(error: errors.PreforkQError) -> Problem:
    """Return the answer for an error that was raised on purpose."""
    status = STATUS.get(error.code, 500)
    if isinstance(error, errors.Unavailable):
        seconds = max(1, math.ceil(error.retry_after))
        detail = UNAVAILABLE.get(error.kind, REFUSED)
        return Problem(status, detail, headers=[("Retry-After", str(seconds))])
    if isinstance(error, errors.InvalidPayload):
        flaws = [Flaw(*flaw) for flaw in error.errors] or [Flaw(error.pointer, error.detail)]
        return Problem(status, error.detail, flaws, kind="invalid-payload")
    if isinstance(error, errors.Invalid):
        kind = "idempotency-conflict" if isinstance(error, errors.IdempotencyConflict) else None
        return Problem(status, error.detail, [Flaw(error.pointer, error.detail)], kind=kind)
    return Problem(status, str(error))


def printable(text: str) -> str:
    """Return `text` as something that UTF-8 can carry: a client's lone surrogates may stand in it."""
    return text.encode("utf-8", "backslashreplace").decode()
