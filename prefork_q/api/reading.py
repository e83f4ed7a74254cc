"""What a request says, read strictly: its body, its query, its key.

Whatever is wrong becomes a `Problem` that says what to mend.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from datetime import UTC, datetime, timedelta, timezone
from email.message import Message
from functools import lru_cache
from typing import Any
from urllib.parse import parse_qsl

from prefork_q.api.problems import Flaw, Problem
from prefork_q.errors import Invalid
from prefork_q.strict_json import decode, escape_pointer
from prefork_q.submission import IDEMPOTENCY_KEY

Environ = Mapping[str, Any]

KEY_RULE = "an idempotency key has 1 to 255 visible ASCII characters and no space"
QUOTED = re.compile(r'"((?:[\x20\x21\x23-\x5b\x5d-\x7e]|\\["\\])*)"')
"""A string of RFC 9651, section 3.3.3."""

DATE_TIME = re.compile(
    r"(\d{4})-(\d{2})-(\d{2})[Tt](\d{2}):(\d{2}):(\d{2})(?:\.(\d{1,9})\d*)?(?:([Zz])|([+-])(\d{2}):(\d{2}))",
    re.ASCII,
)
JSON_TYPE = re.compile(r"application/(?:json|[!#$&^_.0-9a-z-]+\+json)", re.ASCII)
DECIMAL = re.compile(r"\d+(?:\.\d+)?(?:[eE][+-]?\d+)?", re.ASCII)
MAX_DIGITS = 400
"""Characters of a number in a query: as many as the largest of doubles has when it is written out."""
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


def read_body(environ: Environ, limit: int) -> bytes:
    """Return the body, at most `limit` bytes; a larger one is refused before it is read.

    Raises:
        Problem: it is larger, compressed, or ends too early.
    """
    if environ.get("HTTP_CONTENT_ENCODING", "identity").lower() not in ("", "identity"):
        raise Problem(415, "the body is compressed: send it as it is")
    told = environ.get("CONTENT_LENGTH") or ""
    if told and not (told.isascii() and told.isdigit() and len(told) <= 18):
        raise Problem(400, "Content-Length is not a number")
    if told and int(told) > limit:
        raise too_large(limit)
    if not told and not environ.get("wsgi.input_terminated"):
        # Nothing says where the body ends, so there is none (RFC 9112, 6.3).
        return b""
    body: bytes = environ["wsgi.input"].read(int(told) if told else limit + 1)
    if len(body) > limit:
        raise too_large(limit)
    if told and len(body) < int(told):
        raise Problem(400, "the body is shorter than its Content-Length")
    return body


def too_large(limit: int) -> Problem:
    return Problem(413, f"the body is larger than {limit} bytes, the most that is taken here")


def read_json(environ: Environ, limit: int) -> Any:
    """Return the body as the value that it stands for.

    Raises:
        Problem: it is not strict JSON, or as in `read_body`.
    """
    body = read_body(environ, limit)
    require_json(environ)
    if is_blank(body):
        raise Problem(400, "the body is empty: send a JSON document", kind="not-json")
    return _decoded(body)


def require_json(environ: Environ) -> None:
    """Refuse a body that says of itself that it is no JSON; one that says nothing is tried.

    Raises:
        Problem: it does.
    """
    told = environ.get("CONTENT_TYPE")
    if told and not is_json(told):
        detail = f"the body is {told[:100]!r}: send JSON, with Content-Type: application/json"
        raise Problem(415, detail, headers=[("Accept-Post", "application/json")])


@lru_cache(64)
def is_json(content_type: str) -> bool:
    """Tell whether a Content-Type is that of JSON in UTF-8; what other parameters say does not matter."""
    message = Message()
    message["Content-Type"] = content_type
    charset = message.get_param("charset", "utf-8")
    return JSON_TYPE.fullmatch(message.get_content_type()) is not None and str(charset).lower() == "utf-8"


def read_options(environ: Environ, limit: int, known: Collection[str]) -> dict[str, Any]:
    """Return the body as an object with no members but `known`; an absent body counts as {}.

    Raises:
        Problem: it is something else.
    """
    body = read_body(environ, limit)
    if is_blank(body):
        return {}
    require_json(environ)
    value = _decoded(body)
    if not isinstance(value, dict):
        raise Problem(422, "the body is not a JSON object", [Flaw("", "send an object, or nothing")])
    unknown = [name for name in value if name not in known]
    if unknown:
        allowed = f"known here: {', '.join(known)}" if known else "this request takes none"
        raise Problem(422, f"unknown members; {allowed}", [Flaw(pointer(name), allowed) for name in unknown])
    return value


def is_blank(body: bytes) -> bool:
    return not body.strip(b" \t\r\n")


def _decoded(body: bytes) -> Any:
    try:
        return decode(body)
    except Invalid as flaw:
        flaws = [Flaw(flaw.pointer, flaw.detail)] if flaw.pointer else []
        raise Problem(400, f"the body is not strict JSON: {flaw.detail}", flaws, kind="not-json") from None


def pointer(*path: object) -> str:
    """Return the JSON pointer (RFC 6901) of a place."""
    return "".join(f"/{escape_pointer(part)}" for part in path)


def read_key(environ: Environ) -> str | None:
    """Return the idempotency key of the header, bare or a quoted string; None if there is none.

    Raises:
        Problem: it is not a key.
    """
    header = environ.get("HTTP_IDEMPOTENCY_KEY")
    if header is None:
        return None
    text = header.strip(" \t")
    if text.startswith('"'):
        match = QUOTED.fullmatch(text)
        if match is None:
            raise wrong_key("the quoted string of Idempotency-Key does not end, or something follows it")
        text = re.sub(r"\\(.)", r"\1", match[1])
    if not IDEMPOTENCY_KEY.fullmatch(text):
        raise wrong_key(f"Idempotency-Key: {KEY_RULE}")
    return str(text)


def wrong_key(detail: str) -> Problem:
    return Problem(422, detail, [Flaw("/idempotency_key", KEY_RULE)])


def read_query(environ: Environ, known: Collection[str]) -> dict[str, str]:
    """Return the parameters of the query, each given once and known.

    Raises:
        Problem: one is not.
    """
    try:
        pairs = parse_qsl(
            environ.get("QUERY_STRING", ""),
            keep_blank_values=True,
            encoding="utf-8",
            errors="strict",
            max_num_fields=100,
        )
    except ValueError:
        raise Problem(400, "the query is not UTF-8 in percent-encoding, or has too many parameters") from None
    query: dict[str, str] = {}
    for name, value in pairs:
        if name not in known:
            raise Problem(422, f"unknown parameter {name!r}; known here: {', '.join(known) or 'none'}")
        if name in query:
            raise Problem(422, f"the parameter {name} is given twice")
        query[name] = value
    return query


def whole_number(query: Mapping[str, str], name: str, default: int, low: int, high: int) -> int:
    """Return a parameter as a number; more than `high` counts as `high`.

    Raises:
        Problem: it is no whole number, or below `low`.
    """
    text = query.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS and int(text) >= low):
        raise Problem(422, f"the parameter {name} is a whole number from {low} to {high}")
    return min(int(text), high)


def seconds(query: Mapping[str, str], name: str, high: float) -> float:
    """Return a parameter as seconds, 0 if it is not given; more than `high` counts as `high`.

    Raises:
        Problem: it is no number, or negative.
    """
    text = query.get(name)
    if text is None:
        return 0.0
    if len(text) > MAX_DIGITS or not DECIMAL.fullmatch(text):
        raise Problem(422, f"the parameter {name} is a number of seconds from 0 to {high:g}")
    return min(float(text), high)


def instant(text: str) -> float:
    """Return an RFC 3339 date and time, which names its zone, as seconds since the epoch.

    Raises:
        ValueError: it is not one; the text says what to write.
    """
    match = DATE_TIME.fullmatch(text)
    if match is None:
        raise ValueError("write date, time and zone as in RFC 3339: 2026-11-29T15:00:00Z or ...+01:00")
    year, month, day, hour, minute, second = (int(match[n]) for n in range(1, 7))
    offset = timedelta(hours=int(match[10] or 0), minutes=int(match[11] or 0))
    if offset >= timedelta(days=1) or int(match[11] or 0) > 59:
        raise ValueError("the offset of the zone is at most 23:59")
    try:
        # A leap second is the first second of the next minute, as POSIX counts.
        moment = datetime(year, month, day, hour, minute, min(second, 59), tzinfo=UTC)
        moment += timedelta(seconds=1 if second == 60 else 0)
        if second > 60:
            raise ValueError
        moment = moment.replace(tzinfo=timezone(-offset if match[9] == "-" else offset))
        return moment.timestamp() + float(f"0.{match[7] or 0}")
    except (ValueError, OverflowError):
        raise ValueError("there is no such date or time") from None
