"""What a handler returned becomes strict JSON, or is refused with a word on what to mend."""

from __future__ import annotations

import dataclasses
import datetime
from typing import Any

import pytest

from prefork_q.strict_json import decode
from prefork_q.worker.result import ResultTooLarge, UnserializableResult, encode_result

LIMIT = 1_000


def loop() -> list[Any]:
    inner: list[Any] = []
    inner.append(inner)
    return inner


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


class EvilDict(dict[str, Any]):
    def values(self) -> Any:
        raise RuntimeError("no")

    def items(self) -> Any:
        raise RuntimeError("no")


class Evil:
    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("no")


@dataclasses.dataclass
class Point:
    x: float
    y: float


@pytest.mark.parametrize(
    "value",
    [
        None, True, 0, -1, 2**63, 1.5, 1e300, "", "é\0\u2028", [], {}, [None, [None]], {"null": None},
        {"a": {"b": [1, 2.5, "x", None, False]}}, "null", ["null", 1.0], nested(60),
    ],
    ids=repr,
)  # fmt: skip
def test_json_comes_back_as_it_was(value: object) -> None:
    assert decode(encode_result(value, LIMIT)) == value


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        ((1, (2, 3)), [1, [2, 3]]),
        (Point(1.0, 2.0), {"x": 1.0, "y": 2.0}),
        (datetime.date(2026, 11, 29), "2026-11-29"),
        ({"a"}, ["a"]),
    ],
    ids=repr,
)
def test_what_has_an_obvious_form_in_json_gets_it(value: object, stored: object) -> None:
    assert decode(encode_result(value, LIMIT)) == stored


@pytest.mark.parametrize(
    "value",
    [
        float("nan"), float("inf"), [1.0, float("-inf")], {"a": [{"b": float("nan")}]}, (float("nan"),),
        Point(1.0, float("nan")), [None, float("nan")], 2**70, -(2**64), [2**64], b"\xff", {"a": b"\xff"},
        object(), [object()], {1, object()}, {1: 2}, {(1, 2): 3}, {None: 1}, "\ud800", {"\udbef": 1}, loop(),
        nested(100), nested(100_000), open, iter([1]), (n for n in [1]), Evil(), [Evil()],
        EvilDict(a=Evil()),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_what_json_cannot_hold_is_refused(value: object) -> None:
    with pytest.raises(UnserializableResult, match="the result is not JSON"):
        encode_result(value, LIMIT)


def test_a_result_over_the_limit_is_refused_by_its_size() -> None:
    assert encode_result("x" * (LIMIT - 2), LIMIT) == b'"' + b"x" * (LIMIT - 2) + b'"'

    with pytest.raises(ResultTooLarge, match=r"1,001 bytes .* the limit is 1,000"):
        encode_result("x" * (LIMIT - 1), LIMIT)


def test_a_refusal_says_where() -> None:
    with pytest.raises(UnserializableResult) as refused:
        encode_result({"rows": [1.0, float("nan")]}, LIMIT)

    assert refused.value.pointer == "/rows/1"


def test_memory_that_runs_out_is_no_fault_of_the_result() -> None:
    class Greedy(dict[str, Any]):
        def __iter__(self) -> Any:
            raise MemoryError

    class Huge:
        @property
        def __dict__(self) -> Any:  # type: ignore[override]
            raise MemoryError

    for value in (Huge(), [Huge()]):
        with pytest.raises((UnserializableResult, MemoryError)):
            encode_result(value, LIMIT)
