"""Strict JSON: what is refused, with which words, and that the rest keeps its value."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import decimal
import enum
import itertools
import json
import math
import pathlib
import sys
import time
import uuid
from typing import Any

import orjson
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefork_q import strict_json
from prefork_q.errors import Invalid


def refusal(body: bytes) -> Invalid:
    with pytest.raises(Invalid) as caught:
        strict_json.decode(body)
    str(caught.value).encode("utf-8")
    caught.value.pointer.encode("utf-8")
    return caught.value


@pytest.mark.parametrize(
    ("body", "text", "pointer"),
    [
        (b"", "not JSON", ""),
        (b"{", "not JSON: .* line 1, column 2", ""),
        (b"{'a': 1}", "not JSON", ""),
        (b"{} {}", "not JSON: Extra data", ""),
        (b"[1,]", "not JSON", ""),
        (b"01", "not JSON", ""),
        (b"+1", "not JSON", ""),
        (b"1.", "not JSON", ""),
        (b'"\x01"', "not JSON: Invalid control character", ""),
        (b'"\\x"', "not JSON", ""),
        (b'"\\', "not JSON", ""),
        (b"\xef\xbb\xbf{}", "byte order mark", ""),
        ("{}".encode("utf-16"), "not UTF-8", ""),
        (b'"\xff"', "not UTF-8: byte 1", ""),
        (b'"\xed\xa0\x80"', "not UTF-8", ""),
        (b"NaN", "the value: NaN is not JSON", ""),
        (b'{"a": {"b": [0, -Infinity]}}', "/a/b/1: -Infinity is not JSON", "/a/b/1"),
        (b'{"a": 1e999}', "/a: number too large", "/a"),
        (b'{"a": -1E400}', "/a: number too large", "/a"),
        (b'{"a": 18446744073709551616}', "/a: integer outside 64 bits", "/a"),
        (b'{"a": -9223372036854775809}', "/a: integer outside 64 bits", "/a"),
        (b"1" * 100_000, "integer outside 64 bits", ""),
        (b'{"a": 1, "a": 1}', "/a: member given twice", "/a"),
        (b'[{"x": {"a": 1, "b": 2, "\\u0061": 1}}]', "/0/x/a: member given twice", "/0/x/a"),
        (b'{"a/b~c": [NaN]}', "/a~1b~0c/0", "/a~1b~0c/0"),
        (b'{"a": "\\ud800"}', "/a: lone surrogate", "/a"),
        (b'{"a": "\\uDBEF x"}', "/a: lone surrogate", "/a"),
        (b'{"a": "\\ude00\\ud83d"}', "/a: lone surrogate", "/a"),
        (b'{"\\ud800": {"\\udc00": 1}}', "lone surrogate", ""),
    ],
)
def test_what_is_no_strict_json_is_refused_with_its_place(body: bytes, text: str, pointer: str) -> None:
    error = refusal(body)

    with pytest.raises(Invalid, match=text):
        raise error
    assert error.pointer == pointer


@pytest.mark.parametrize(("open_", "close"), [(b"[", b"]"), (b'{"a":', b"}")])
@pytest.mark.parametrize("depth", [65, 1_000, 2_000, 20_000, 100_000])
def test_deep_nesting_is_refused_whatever_the_recursion_limit(open_: bytes, close: bytes, depth: int) -> None:
    assert "nested deeper than 64" in str(refusal(open_ * depth + b"1" + close * depth))
    assert "nested deeper than 64" in str(refusal(open_ * depth))


@pytest.mark.parametrize("depth", [1, 10, 64])
def test_nesting_up_to_the_limit_is_accepted(depth: int) -> None:
    strict_json.decode(b"[" * depth + b"]" * depth)
    strict_json.decode(b'{"a":' * depth + b"1" + b"}" * depth)


def test_brackets_inside_strings_are_no_nesting() -> None:
    text = "[{" * 1000 + '\\"' + '"[{' * 100

    assert strict_json.decode(json.dumps([text, text]).encode()) == [text, text]


@pytest.mark.parametrize(
    "value",
    [
        2**53 - 1, 2**53, 2**53 + 1, 2**63 - 1, -(2**63), 2**64 - 1, 393087288629462191,
        0.1, 1e-7, 5e-324, 1.7976931348623157e308, -0.0, [], {}, [[]], {"a": []}, None, "", "\0", "\u202e",
        "é😀", {"": 0}, True,
    ],
)  # fmt: skip
def test_what_is_accepted_keeps_its_value_and_type(value: Any) -> None:
    for body in (json.dumps(value).encode(), orjson.dumps(value)):
        read = strict_json.decode(body)
        assert read == value
        assert type(read) is type(value)
    if isinstance(value, float):
        assert math.copysign(1, strict_json.decode(json.dumps(value).encode())) == math.copysign(1, value)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(strict_json.INT_MIN, strict_json.INT_MAX)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(JSON)
def test_encode_and_decode_are_each_others_inverse(value: Any) -> None:
    assert strict_json.decode(strict_json.encode(value)) == value


@given(st.text('[]{}",:\\1e\ud800naN ', max_size=40))
def test_any_text_is_either_read_as_others_read_it_or_refused(text: str) -> None:
    body = text.encode("utf-8", "surrogatepass")
    try:
        value = strict_json.decode(body)
    except Invalid:
        return
    assert orjson.loads(body) == value


@pytest.mark.parametrize(
    "body",
    [
        b'"' + b'\\"' * 200_000,
        b'"' * 400_000,
        b'"' + b"\\" * 400_000,
        b"[[]," * 100_000,
        b"[" + b",".join([b"[]"] * 130_000) + b"]",
        b"1" * 400_000,
    ],
)
def test_no_body_takes_more_than_linear_time(body: bytes) -> None:
    started = time.process_time()
    with contextlib.suppress(Invalid):
        strict_json.decode(body)
    assert time.process_time() - started < 1.0


class Colour(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Point:
    x: float


class Model(pydantic.BaseModel):
    when: datetime.date


def test_richer_types_have_a_json_form() -> None:
    value = {
        "path": pathlib.Path("/a"),
        "when": datetime.datetime(2026, 11, 29, tzinfo=datetime.UTC),
        "id": uuid.UUID(int=1),
        "price": decimal.Decimal("1.50"),
        "raw": b"text",
        "colour": Colour.RED,
        "point": Point(1.5),
        "model": Model(when=datetime.date(2026, 1, 2)),
        "pair": (1, 2),
        "one": {1},
    }

    assert strict_json.decode(strict_json.encode(value)) == {
        "path": "/a",
        "when": "2026-11-29T00:00:00+00:00",
        "id": "00000000-0000-0000-0000-000000000001",
        "price": "1.50",
        "raw": "text",
        "colour": "red",
        "point": {"x": 1.5},
        "model": {"when": "2026-01-02"},
        "pair": [1, 2],
        "one": [1],
    }


def nested(depth: int) -> Any:
    value: Any = []
    for _ in range(depth - 1):
        value = [value]
    return value


def within_itself() -> Any:
    value: list[Any] = []
    value.append(value)
    return value


class EvilModel(pydantic.BaseModel):
    @pydantic.model_serializer
    def serialized(self) -> Any:
        raise RuntimeError("evil")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (float("nan"), "the value: nan is not JSON"),
        ({"a": [1, float("inf")]}, "/a/1: inf is not JSON"),
        ({"p": Point(float("nan"))}, "/p/x: nan is not JSON"),
        ({"a": 2**64}, "/a: integer outside 64 bits"),
        ({"a": -(2**70)}, "/a: integer outside 64 bits"),
        ({"a": "\ud800"}, "/a: lone surrogate"),
        ({"\ud800": 1}, "lone surrogate"),
        ({1: 2}, "Dict key must be str"),
        ({"a": b"\xff"}, "cannot be written as JSON"),
        ({"a": object()}, "cannot be written as JSON"),
        ({"a": sys.stdout}, "cannot be written as JSON"),
        ({"a": itertools.count()}, "/a|a count is no value"),
        ({"a": {"b": iter([1])}}, "is no value: make a list"),
        (EvilModel(), "cannot be written as JSON"),
        (nested(65), "nested deeper than 64"),
        (nested(100_000), "nested deeper than 64"),
        (within_itself(), "nested deeper than 64"),
    ],
)
def test_what_has_no_strict_json_form_is_not_written(value: object, text: str) -> None:
    with pytest.raises(Invalid, match=text) as caught:
        strict_json.encode(value)
    str(caught.value).encode("utf-8")


def test_null_and_the_depth_limit_itself_are_written() -> None:
    assert strict_json.encode({"a": None, "b": "null"}) == b'{"a":null,"b":"null"}'
    assert strict_json.encode(nested(64)) == b"[" * 64 + b"]" * 64
    assert strict_json.encode([[]] * 1000).count(b"[") == 1001


def test_pairs_of_surrogates_and_words_for_no_number_are_sound() -> None:
    assert strict_json.decode(b'{"a": "\\ud83d\\ude00"}') == {"a": "\U0001f600"}
    value = {"a": None, "b": "NaN or Infinity", "c": "null", "d": [None, 1.5]}
    assert orjson.loads(strict_json.encode(value)) == value


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_a_models_number_that_is_none_is_refused(number: float) -> None:
    class Model(pydantic.BaseModel):
        x: float

    with pytest.raises(Invalid, match="/x: "):
        strict_json.encode(Model(x=number))
