"""Handlers that raise and return what hardly anybody would: `prefork-q run tests/support/poison.py:app`."""

from __future__ import annotations

import asyncio
import dataclasses
import decimal
import os
import sys
from collections.abc import Callable
from typing import Any

import redis

from prefork_q import App, Reject, RetryAfter, errors

app = App()


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class Exiting(Exception):
    def __str__(self) -> str:
        raise SystemExit(1)


class NoText(Exception):
    def __str__(self) -> str:
        return 7  # type: ignore[return-value]


class Sly(str):
    """A text that does not let itself be handled."""

    def encode(self, *arguments: Any, **options: Any) -> bytes:
        raise RuntimeError("not encodable")

    def __len__(self) -> int:
        raise RuntimeError("no length")

    def __getitem__(self, key: Any) -> str:
        raise RuntimeError("no part")


class SlyText(Exception):
    def __str__(self) -> str:
        return Sly("sly")


class Hidden(Exception):
    @property
    def __class__(self) -> Any:
        raise RuntimeError("no class")

    @property
    def __cause__(self) -> Any:  # type: ignore[override]
        raise RuntimeError("no cause")


def chained_in_a_loop() -> BaseException:
    first, second = ValueError("first"), KeyError("second")
    first.__cause__, second.__cause__ = second, first
    return first


def long_chain() -> BaseException:
    error: BaseException = ValueError("0")
    for n in range(1, 5_000):
        following = ValueError(f"{n}" * 100)
        following.__context__ = error
        error = following
    return error


def deep() -> None:
    deep()


def noted() -> BaseException:
    error = ValueError("noted")
    error.add_note("x" * 1_000_000)
    return error


NAMELESS = type("x" * 100_000, (Exception,), {"__module__": None})
SURROGATE = type("Odd", (Exception,), {"__module__": "\udcff"})

RAISES: dict[str, Callable[[], object]] = {
    "mute": lambda: Mute(),
    "exits in str": lambda: Exiting(),
    "str is no str": lambda: NoText(),
    "sly text": lambda: SlyText(),
    "hidden class": lambda: Hidden("x"),
    "10 MB": lambda: ValueError("x" * 10_000_000),
    "10 MB of four bytes": lambda: ValueError("\U0001f600" * 2_500_000),
    "surrogates": lambda: ValueError("\ud800 and \udfff" * 1_000),
    "control characters": lambda: ValueError("\x00\x1b[31m\r\n\u2028" * 100),
    "a chain in a loop": chained_in_a_loop,
    "a long chain": long_chain,
    "deep recursion": deep,
    "a long note": noted,
    "a long name": lambda: NAMELESS("x"),
    "a module that is no text": lambda: SURROGATE("x"),
    "group": lambda: ExceptionGroup("many", [ValueError("x" * 10_000)] * 1_000),
    "base group": lambda: BaseExceptionGroup("many", [KeyboardInterrupt()]),
    "SystemExit": lambda: SystemExit(),
    "SystemExit of an object": lambda: SystemExit(object()),
    "sys.exit": lambda: sys.exit(3),
    "KeyboardInterrupt": lambda: KeyboardInterrupt(),
    "GeneratorExit": lambda: GeneratorExit(),
    "StopIteration": lambda: StopIteration(1),
    "CancelledError": lambda: asyncio.CancelledError(),
    "MemoryError": lambda: MemoryError(),
    "too much memory": lambda: bytearray(1 << 50),
    "BaseException": lambda: BaseException("x"),
    "redis: connection": lambda: redis.ConnectionError("gone"),
    "redis: timeout": lambda: redis.TimeoutError("late"),
    "redis: noscript": lambda: redis.exceptions.NoScriptError("NOSCRIPT"),
    "OSError": lambda: BrokenPipeError(32, "Broken pipe"),
    "own: unavailable": lambda: errors.Unavailable("away"),
    "own: stale": lambda: errors.Stale("stale"),
    "own: timeout": lambda: errors.TaskTimeout(),
    "own: not found": lambda: errors.NotFound("x"),
    "reject": lambda: Reject("\udc00" * 100_000),
    "retry after nan": lambda: RetryAfter(float("nan")),
    "retry after infinity": lambda: RetryAfter(float("inf")),
    "retry after a negative time": lambda: RetryAfter(-1e300),
    "retry after a text": lambda: RetryAfter("soon"),  # type: ignore[arg-type]
    "retry after None": lambda: RetryAfter(None, "x"),  # type: ignore[arg-type]
}


class EvilDict(dict):  # type: ignore[type-arg]
    def items(self) -> Any:
        raise RuntimeError("no items")


class EvilObject:
    def __json__(self) -> str:
        os._exit(9)

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("no attribute")


@dataclasses.dataclass
class Point:
    x: float


def cycle() -> Any:
    items: list[Any] = []
    items.append(items)
    return items


def dict_cycle() -> Any:
    value: dict[str, Any] = {}
    value["self"] = [value]
    return value


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


RETURNS: dict[str, Callable[[], object]] = {
    "NaN": lambda: float("nan"),
    "NaN inside": lambda: {"a": [1, (float("-inf"),)]},
    "NaN in a dataclass": lambda: Point(float("nan")),
    "bytes": lambda: b"\xff",
    "set of objects": lambda: {object()},
    "file": lambda: open(os.devnull),  # noqa: SIM115
    "cycle": cycle,
    "cycle of dicts": dict_cycle,
    "2**70": lambda: 2**70,
    "-2**63 - 1": lambda: -(2**63) - 1,
    "100 MB": lambda: "x" * 100_000_000,
    "100 MB of noughts": lambda: [0] * 50_000_000,
    "deep": lambda: nested(100_000),
    "keys that are no texts": lambda: {1: 2},
    "surrogate": lambda: "\ud800",
    "surrogate as a key": lambda: {"\ud800": 1},
    "class": lambda: EvilObject,
    "evil object": lambda: EvilObject(),
    "generator": lambda: (n for n in range(3)),
    "exception": lambda: ValueError("x"),
    "ellipsis": lambda: ...,
}

KEPT: dict[str, tuple[Callable[[], object], object]] = {
    "None": (lambda: None, None),
    "the text null": (lambda: "null", "null"),
    "empty": (lambda: {"a": [], "b": {}}, {"a": [], "b": {}}),
    "large integers": (lambda: [2**63 - 1, -(2**63), 2**64 - 1], [2**63 - 1, -(2**63), 2**64 - 1]),
    "null beside a number": (lambda: [None, 1.5], [None, 1.5]),
    "zero bytes": (lambda: "\x00\x01", "\x00\x01"),
    "tuple": (lambda: (1, 2), [1, 2]),
    "set": (lambda: {1}, [1]),
    "decimal": (lambda: decimal.Decimal("1.10"), "1.10"),
    "bytes that are text": (lambda: "ü".encode(), "ü"),
}
"""What can be stored, and how it reads afterwards."""


@app.task("raise")
def raise_(name: str) -> None:
    error = RAISES[name]()
    raise error  # type: ignore[misc]


@app.task("return")
def return_(name: str) -> Any:
    return (RETURNS.get(name) or KEPT[name][0])()


@app.task("pid")
def pid() -> int:
    return os.getpid()
