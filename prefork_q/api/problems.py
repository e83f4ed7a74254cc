"""Refusals as RFC 9457 problem details: what went wrong, and what to mend."""

from __future__ import annotations

import math
from collections.abc import Sequence
from http import HTTPStatus
from typing import NamedTuple

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

TITLES = {413: "Content Too Large", 422: "Unprocessable Content"}
"""Where RFC 9110 renamed a status after Python took over its older name."""


class Flaw(NamedTuple):
    """One thing to mend: a JSON pointer to it (RFC 6901) and how."""

    pointer: str
    detail: str


class Problem(Exception):
    """A refusal, on its way to becoming an answer.

    `type` of the document is about:blank, so its title is the status's own (RFC 9457, 4.2.1).
    """

    def __init__(
        self,
        status: int,
        detail: str,
        flaws: Sequence[Flaw] = (),
        headers: Sequence[tuple[str, str]] = (),
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.flaws = tuple(flaws)
        self._headers = tuple(headers)

    @property
    def title(self) -> str:
        return TITLES.get(self.status) or HTTPStatus(self.status).phrase

    @property
    def status_line(self) -> str:
        return f"{self.status} {self.title}"

    def headers(self) -> list[tuple[str, str]]:
        return [("Content-Type", CONTENT_TYPE), ("Cache-Control", "no-store"), *self._headers]

    def body(self) -> bytes:
        document: dict[str, object] = {
            "type": "about:blank",
            "title": self.title,
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
        return Problem(status, str(error), headers=[("Retry-After", str(seconds))])
    if isinstance(error, errors.InvalidPayload):
        flaws = [Flaw(*flaw) for flaw in error.errors] or [Flaw(error.pointer, error.detail)]
        return Problem(status, error.detail, flaws)
    if isinstance(error, errors.Invalid):
        return Problem(status, error.detail, [Flaw(error.pointer, error.detail)])
    return Problem(status, str(error))


def printable(text: str) -> str:
    """Return `text` as something that UTF-8 can carry: a client's lone surrogates may stand in it."""
    return text.encode("utf-8", "backslashreplace").decode()
