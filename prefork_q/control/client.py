"""The asking side of the control socket. Standard library only, so that `ctl` starts fast."""

from __future__ import annotations

import json
import os
import socket
import time
from typing import Any

from prefork_q.control.protocol import MAX_ANSWER, TIME_LIMIT, Request, encode_request
from prefork_q.errors import PreforkQError, Unavailable


class NotRunning(Unavailable):
    """Nobody listens at the socket."""


class NoAnswer(Unavailable):
    """Somebody listens, and has not answered in time."""


class CommandFailed(PreforkQError):
    """The master refused. `answer_code` is the code of the error, as in `errors`."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.answer_code = code


def ask(
    path: str | os.PathLike[str],
    command: str,
    arguments: dict[str, Any] | None = None,
    *,
    timeout: float = TIME_LIMIT,
) -> Any:
    """Return the master's answer; all together takes at most `timeout` seconds.

    Raises:
        NotRunning: there is no socket at `path`, or nobody listens there, or it may not be opened.
        NoAnswer: no whole answer came in time, or this process has no descriptor left to ask with.
        CommandFailed: the master answered with an error.
    """
    deadline = time.monotonic() + timeout
    try:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    except OSError as error:
        raise NoAnswer(f"the master at {path} cannot be asked: {error.strerror or error}") from error
    with connection:
        line = _talk(connection, os.fspath(path), encode_request(Request(command, arguments or {})), deadline)
    try:
        answer = json.loads(line)
        if answer["ok"]:
            return answer["data"]
        code, detail = answer["error"]["code"], answer["error"]["detail"]
    except (ValueError, KeyError, TypeError) as error:
        raise NoAnswer(f"what listens at {path} is no prefork-q master: {line[:80]!r}") from error
    raise CommandFailed(code, detail)


def _talk(connection: socket.socket, path: str, request: bytes, deadline: float) -> bytes:
    try:
        connection.settimeout(_left(deadline))
        connection.connect(path)
    except TimeoutError as error:
        raise NoAnswer(f"the master at {path} does not take connections") from error
    except OSError as error:
        raise NotRunning(f"no master at {path}: {error.strerror or error}") from error
    answer = bytearray()
    try:
        connection.settimeout(_left(deadline))
        connection.sendall(request)
        while not answer.endswith(b"\n") and len(answer) <= MAX_ANSWER:
            connection.settimeout(_left(deadline))
            data = connection.recv(262_144)
            if not data:
                break
            answer += data
    except TimeoutError as error:
        raise NoAnswer(f"the master at {path} did not answer in time") from error
    except OSError as error:
        raise NoAnswer(f"the master at {path} hung up: {error.strerror or error}") from error
    if not answer.endswith(b"\n"):
        raise NoAnswer(f"the master at {path} hung up before its answer was whole")
    return bytes(answer)


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("no time is left")
    return left
