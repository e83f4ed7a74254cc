"""An exception as text: bounded, always encodable, whatever the exception does to whoever reads it."""

from __future__ import annotations

import traceback
from collections import deque
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import Any, Final, NamedTuple

import orjson

from prefork_q import errors

NAMELESS: Final = (None, "builtins", errors.__name__)
"""Modules of which the name says nothing more: the keeper writes `TaskTimeout` for a hard limit too."""
MESSAGE_LIMIT: Final = 1_000
TRACEBACK_LIMIT: Final = 8_000
"""Characters. Longer texts lose their middle: what failed stands at the head, where at the tail."""
NAME_LIMIT: Final = 200
CHAIN_LIMIT: Final = 5
"""Exceptions told of one chain of causes, and of one group."""
FRAMES: Final = 15
"""Frames told from each end of a stack."""
NOTES_LIMIT: Final = 5

CAUSED = "\nThe above exception was the direct cause of the following:\n\n"
MEANWHILE = "\nDuring handling of the above exception, another occurred:\n\n"


class Failure(NamedTuple):
    """What is kept of an exception."""

    type: str
    message: str
    text: bytes
    """`{type, message, traceback}` as JSON."""


def describe(error: BaseException) -> Failure:
    """Return what is kept of `error`. Never raises, whatever the exception's own code does."""
    try:
        name, message = type_name(error), message_of(error)
        trace = shorten("".join(_chain(error)), TRACEBACK_LIMIT)
    except BaseException as second:
        # Its class may lie about its name, its causes or its traceback. The class of what that
        # raises is foreign too; what cannot lie is that it failed.
        name, message, trace = "Exception", f"<{_plain_name(second)} in describing it>", ""
    return _failure(name, message, trace)


def told(type: str, message: str) -> Failure:
    """Return a failure that is no exception of a handler: there is no traceback."""
    return _failure(type, shorten(clean(message), MESSAGE_LIMIT), "")


def type_name(error: BaseException) -> str:
    """Return the class's name, with its module unless it is a builtin or one of `prefork_q`'s own errors."""
    kind = type(error)
    module = getattr(kind, "__module__", None)
    name = kind.__qualname__
    return shorten(clean(name if module in NAMELESS else f"{module}.{name}"), NAME_LIMIT)


def message_of(error: BaseException) -> str:
    """Return `str(error)`, shortened."""
    try:
        text = exact(str(error))
    except BaseException as second:
        # Its __str__ is foreign code; that it failed is what can be told.
        text = f"<{_plain_name(second)} in __str__>"
    return shorten(clean(shorten(text, 4 * MESSAGE_LIMIT)), MESSAGE_LIMIT)


def exact(text: str) -> str:
    """Return the characters of `text` as a plain string: a subclass may behave in any way."""
    return str.__getitem__(text, slice(None))


def clean(text: str) -> str:
    """Return `text` with lone surrogates written out, so that it can be encoded."""
    return text.encode("utf-8", "backslashreplace").decode()


def shorten(text: str, limit: int) -> str:
    """Return `text`, without its middle if it is longer than `limit` characters."""
    if len(text) <= limit:
        return text
    half = (limit - 5) // 2
    return f"{text[:half]} ... {text[len(text) - half :]}"


def _failure(name: str, message: str, trace: str) -> Failure:
    return Failure(name, message, orjson.dumps({"type": name, "message": message, "traceback": trace}))


def _plain_name(error: BaseException) -> str:
    return clean(exact(type.__dict__["__name__"].__get__(type(error))))[:NAME_LIMIT]


def _chain(error: BaseException) -> Iterator[str]:
    """Yield the lines of an exception and of those that led to it, the first of them first."""
    links: list[tuple[BaseException, str]] = []
    seen: set[int] = set()
    at: BaseException | None = error
    joint = ""
    while at is not None and id(at) not in seen and len(links) < CHAIN_LIMIT:
        seen.add(id(at))
        links.append((at, joint))
        if at.__cause__ is not None:
            at, joint = at.__cause__, CAUSED
        else:
            at, joint = None if at.__suppress_context__ else at.__context__, MEANWHILE
    for one, joint in reversed(links):
        yield from _lines(one)
        yield joint


def _lines(error: BaseException) -> Iterator[str]:
    yield from _frames(error.__traceback__)
    yield f"{type_name(error)}: {message_of(error)}\n"
    notes: Any = getattr(error, "__notes__", None)
    if isinstance(notes, list):
        for note in notes[:NOTES_LIMIT]:
            yield f"  {shorten(clean(exact(str(note))), MESSAGE_LIMIT)}\n"
    if isinstance(error, BaseExceptionGroup):
        for one in error.exceptions[:CHAIN_LIMIT]:
            yield f"  | {type_name(one)}: {message_of(one)}\n"
        if len(error.exceptions) > CHAIN_LIMIT:
            yield f"  | ... {len(error.exceptions) - CHAIN_LIMIT} more\n"


def _frames(trace: TracebackType | None) -> Iterator[str]:
    """Yield the lines of a stack; of a deep one the middle is left out unread."""
    # The first frame is the processor's own call of the handler.
    if trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return
    head: list[tuple[FrameType, int]] = []
    tail: deque[tuple[FrameType, int]] = deque(maxlen=FRAMES)
    left_out = -FRAMES
    for place in traceback.walk_tb(trace):
        if len(head) < FRAMES:
            head.append(place)
        else:
            tail.append(place)
            left_out += 1
    yield "Traceback (most recent call last):\n"
    yield from map(clean, traceback.StackSummary.extract(iter(head)).format())
    if left_out > 0:
        yield f"  ... {left_out} more frames ...\n"
    yield from map(clean, traceback.StackSummary.extract(iter(tail)).format())
