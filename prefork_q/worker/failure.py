"""An exception as text: bounded, always encodable, whatever the exception does to whoever reads it."""

from __future__ import annotations

import traceback
from types import TracebackType
from typing import NamedTuple

import orjson

MESSAGE_LIMIT = 1_000
TRACEBACK_LIMIT = 8_000
"""Characters. Longer texts lose their middle: what failed stands at the head, where at the tail."""
CHAIN_LIMIT = 5
"""Exceptions told of one chain of causes."""
FRAME_LIMIT = 30
"""Frames told of one exception, half from each end."""


class Failure(NamedTuple):
    """What is kept of an exception."""

    type: str
    message: str
    text: bytes
    """`{type, message, traceback}` as JSON."""


def describe(error: BaseException) -> Failure:
    """Return what is kept of `error`. Never raises for what the exception's own code does."""
    name = type_name(error)
    message = message_of(error)
    trace = shorten("".join(_chain(error)), TRACEBACK_LIMIT)
    text = orjson.dumps({"type": name, "message": message, "traceback": trace})
    return Failure(name, message, text)


def told(type: str, message: str) -> Failure:
    """Return a failure that is no exception of a handler: there is no traceback."""
    return Failure(type, message, orjson.dumps({"type": type, "message": clean(message), "traceback": ""}))


def type_name(error: BaseException) -> str:
    """Return the class's name with its module, unless it is a builtin."""
    kind = type(error)
    module = getattr(kind, "__module__", None)
    name = kind.__qualname__
    return shorten(clean(name if module in (None, "builtins") else f"{module}.{name}"), 200)


def message_of(error: BaseException) -> str:
    """Return `str(error)`, shortened."""
    try:
        text = str(error)
    except BaseException as second:
        # Its __str__ is foreign code; that it failed is what can be told.
        text = f"<{type(second).__name__} in __str__>"
    return shorten(clean(shorten(text, 4 * MESSAGE_LIMIT)), MESSAGE_LIMIT)


def clean(text: str) -> str:
    """Return `text` with lone surrogates written out, so that it can be encoded."""
    return text.encode("utf-8", "backslashreplace").decode()


def shorten(text: str, limit: int) -> str:
    """Return `text`, without its middle if it is longer than `limit` characters."""
    if len(text) <= limit:
        return text
    half = (limit - 5) // 2
    return f"{text[:half]} ... {text[len(text) - half :]}"


def _chain(error: BaseException) -> list[str]:
    parts: list[list[str]] = []
    seen: set[int] = set()
    at: BaseException | None = error
    while at is not None and id(at) not in seen and len(parts) < CHAIN_LIMIT:
        seen.add(id(at))
        told = [*_frames(at.__traceback__), f"{type_name(at)}: {message_of(at)}\n"]
        if at.__cause__ is not None:
            before, joint = at.__cause__, "\nThe above exception was the direct cause of the following:\n\n"
        elif at.__context__ is not None and not at.__suppress_context__:
            before, joint = at.__context__, "\nDuring handling of the above exception, another occurred:\n\n"
        else:
            before, joint = None, ""
        parts.append([joint, *told])
        at = before
    parts[-1][0] = ""
    return [line for part in reversed(parts) for line in part]


def _frames(trace: TracebackType | None) -> list[str]:
    # The first frame is the processor's own call of the handler.
    if trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return []
    frames = traceback.extract_tb(trace, limit=1_000)
    lines = ["Traceback (most recent call last):\n"]
    if len(frames) > FRAME_LIMIT:
        half = FRAME_LIMIT // 2
        lines += traceback.format_list(frames[:half])
        lines.append(f"  ... {len(frames) - FRAME_LIMIT} more frames ...\n")
        frames = traceback.StackSummary.from_list(frames[-half:])
    return [clean(line) for line in [*lines, *traceback.format_list(frames)]]
