"""The words of the control socket: one line of JSON each way, then the end. `v` is the version.

    {"v":1,"command":"status","arguments":{}}
    {"v":1,"ok":true,"data":...}
    {"v":1,"ok":false,"error":{"code":"not_found","detail":"..."}}

Standard library only: `ctl` imports this, and shall start fast.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Final

from prefork_q.errors import Invalid

VERSION: Final = 1
MAX_REQUEST: Final = 65_536
"""Bytes of a request with its newline."""
MAX_ANSWER: Final = 16 * 1_048_576
TIME_LIMIT: Final = 2.0
"""Seconds for all of it, on either side."""


@dataclass(frozen=True, slots=True)
class Request:
    """What a client asks."""

    command: str
    arguments: dict[str, Any] = field(default_factory=dict)


def encode_request(request: Request) -> bytes:
    return _line({"v": VERSION, "command": request.command, "arguments": request.arguments})


def decode_request(line: bytes) -> Request:
    """Return the request in a line.

    Raises:
        Invalid: it is none; the text says what to mend.
    """
    try:
        asked = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise Invalid(f"not a line of JSON: {error}") from error
    if not isinstance(asked, dict) or "v" not in asked:
        raise Invalid(f'a request is an object with "v": {VERSION}')
    if asked["v"] != VERSION:
        raise Invalid(
            f"version {asked['v']!r} of the protocol is not spoken here, only {VERSION}: "
            "use the prefork-q that the node runs"
        )
    command, arguments = asked.get("command"), asked.get("arguments", {})
    if not isinstance(command, str) or not isinstance(arguments, dict):
        raise Invalid('a request has a "command" (text) and "arguments" (an object)')
    return Request(command, arguments)


def encode_data(data: Any) -> bytes:
    """Return the answer to what went well."""
    return _line({"v": VERSION, "ok": True, "data": data})


def encode_error(code: str, detail: str) -> bytes:
    """Return the answer to what did not; `code` is that of the error's class."""
    return _line({"v": VERSION, "ok": False, "error": {"code": code, "detail": detail}})


def _line(answer: dict[str, Any]) -> bytes:
    return json.dumps(answer, separators=(",", ":")).encode() + b"\n"
