"""JSON as everybody can read it back: one strict decoder and one strict encoder for the whole project.

Refused are: what is not UTF-8, NaN and infinities (also 1e999), duplicate members, nesting
deeper than 64, integers outside 64 bits, lone surrogates, a byte order mark, anything after the
value. Python's own module lets most of these through, and another reader then stumbles over
what was stored. Integers keep their value exactly, floats their bits.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final

import orjson
from pydantic_core import to_json, to_jsonable_python

from prefork_q.errors import Invalid

MAX_DEPTH: Final = 64
"""Objects and arrays within each other."""
POINTER_SHOWN: Final = 300
"""Characters of a pointer that a text repeats."""
INT_MIN, INT_MAX = -(2**63), 2**64 - 1

STRING = re.compile(rb'"(?:[^"\\]+|\\.)*+\\?(?:"|\Z)', re.DOTALL)
"""A string, closed or not. Possessive, so that no body makes it look twice at a byte."""
NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
STEP = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}


@dataclass(frozen=True, slots=True)
class _Flaw:
    """Stands in the decoded value where something is wrong, so that its place can be told."""

    detail: str


def decode(body: bytes, *, max_depth: int = MAX_DEPTH) -> Any:
    """Return the value that the JSON text `body` stands for.

    Raises:
        Invalid: it is not strict JSON; the text says what to mend, `pointer` where if that is known.
    """
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Invalid(f"not UTF-8: byte {error.start} cannot be read; encode the text as UTF-8") from None
    if text.startswith("\ufeff"):
        raise Invalid("a byte order mark stands before the JSON text: leave it out")
    # Before parsing: the parser recurses.
    if _is_text_deeper(body, max_depth):
        raise Invalid(f"nested deeper than {max_depth} objects and arrays: make it flatter")
    flaws: list[_Flaw] = []
    try:
        value = _decoder(flaws).decode(text)
    except json.JSONDecodeError as error:
        raise Invalid(f"not JSON: {error.msg} at line {error.lineno}, column {error.colno}") from None
    # Most escapes of this kind are halves of a pair; the encoder knows, and is quick.
    if flaws or (("\\ud" in text or "\\uD" in text) and not _can_be_written(value)):
        _refuse_flaws(value)
    return value


def encode(value: object, *, max_depth: int = MAX_DEPTH) -> bytes:
    """Return `value` as strict JSON text.

    Besides JSON's own types these can be written: tuples, sets, dates and times, UUIDs, decimals,
    paths, bytes that are UTF-8, enumerations, dataclasses and pydantic models.

    Raises:
        Invalid: something in it has no strict JSON form; the text says what, `pointer` where if
            that is known.
    """
    try:
        body = orjson.dumps(value, default=_richer)
    except (TypeError, ValueError, RecursionError) as error:
        raise _unwritable(value, error, max_depth) from None
    # The encoder is lenient on depth, a level of which takes two bytes, and writes a NaN as null: only then
    # look at every value.
    if len(body) > 2 * max_depth and _is_text_deeper(body, max_depth):
        raise Invalid(f"nested deeper than {max_depth} objects and arrays: make it flatter")
    if b"null" in body:
        # In JSON's own types: a model writes its numbers in its own way.
        plain = _plain(value)
        if _may_have_nan(plain):
            _refuse_flaws(plain)
    return body


def escape_pointer(part: object) -> str:
    """Return `part` as a reference token of a JSON pointer (RFC 6901), always encodable."""
    text = str(part).replace("~", "~0").replace("/", "~1")
    return text.encode("utf-8", "backslashreplace").decode()


def _is_text_deeper(body: bytes, max_depth: int) -> bool:
    if body.count(b"[") + body.count(b"{") <= max_depth:
        return False
    brackets = STRING.sub(b"", body).translate(None, NOT_BRACKETS)
    return max(accumulate(map(STEP.__getitem__, brackets)), default=0) > max_depth


def _decoder(flaws: list[_Flaw]) -> json.JSONDecoder:
    def flaw(detail: str) -> _Flaw:
        found = _Flaw(detail)
        flaws.append(found)
        return found

    def integer(text: str) -> int | _Flaw:
        # By length first: Python takes its time for, or refuses, thousands of digits.
        if len(text) <= 20 and INT_MIN <= (number := int(text)) <= INT_MAX:
            return number
        return flaw("integer outside 64 bits: send it as a string")

    def real(text: str) -> float | _Flaw:
        number = float(text)
        return number if math.isfinite(number) else flaw("number too large for a 64-bit float")

    def constant(text: str) -> _Flaw:
        return flaw(f"{text} is not JSON: send null or a string")

    def members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            seen: set[str] = set()
            for name, _ in pairs:
                if name in seen:
                    found[name] = flaw("member given twice: leave one out")
                seen.add(name)
        return found

    return json.JSONDecoder(
        object_pairs_hook=members, parse_int=integer, parse_float=real, parse_constant=constant
    )


def _refuse_flaws(value: object) -> None:
    """Raise for the first flaw in `value`, with its pointer."""
    for pointer, part in _walk(value):
        detail = _flaw_of(part)
        if detail is not None:
            raise Invalid(f"{pointer[:POINTER_SHOWN] or 'the value'}: {detail}", pointer=pointer)


def _walk(value: object) -> Iterator[tuple[str, object]]:
    """Yield every part of `value` with its pointer, names of members included."""
    waiting: list[tuple[str, object]] = [("", value)]
    while waiting:
        pointer, part = waiting.pop()
        yield pointer, part
        if isinstance(part, dict):
            yield from ((pointer, name) for name in part)
            waiting += [(f"{pointer}/{escape_pointer(name)}", part[name]) for name in reversed(part)]
        elif isinstance(part, (list, tuple)):
            waiting += [(f"{pointer}/{n}", part[n]) for n in range(len(part) - 1, -1, -1)]


def _flaw_of(part: object) -> str | None:
    if isinstance(part, _Flaw):
        return part.detail
    if isinstance(part, str):
        return "lone surrogate: it cannot be written as UTF-8" if _has_surrogate(part) else None
    if isinstance(part, float) and not math.isfinite(part):
        return f"{part} is not JSON: send null or a string"
    if isinstance(part, int) and not INT_MIN <= part <= INT_MAX:
        return "integer outside 64 bits: send it as a string"
    return None


def _has_surrogate(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def _can_be_written(value: object) -> bool:
    try:
        orjson.dumps(value)
    except (TypeError, ValueError):
        return False
    return True


def _may_have_nan(value: object) -> bool:
    """Whether there may be a NaN or an infinity in it; a text that has such a word counts too."""
    body = to_json(value, inf_nan_mode="constants")
    return b"NaN" in body or b"Infinity" in body


def _plain(value: object) -> object:
    """Return `value` in JSON's own types, infinities and NaN still in it."""
    return to_jsonable_python(value, inf_nan_mode="constants", by_alias=True)


def _richer(value: object) -> object:
    """Return a value of a type that JSON lacks in JSON's types."""
    if isinstance(value, Iterator):
        # An open file or a generator would be read to its end, if it has one.
        raise TypeError(f"a {type(value).__name__} is no value: make a list of it")
    return to_jsonable_python(value)


def _unwritable(value: object, error: BaseException, max_depth: int) -> Invalid:
    """Return why `value` could not be written."""
    if _is_deeper(value, max_depth):
        return Invalid(f"nested deeper than {max_depth} objects and arrays, or within itself")
    try:
        _refuse_flaws(value)
    except Invalid as flaw:
        return flaw
    return Invalid(f"cannot be written as JSON: {error.__cause__ or error}")


def _is_deeper(value: object, max_depth: int) -> bool:
    level: list[object] = [value]
    for _ in range(max_depth + 1):
        inner: list[object] = []
        for part in level:
            if isinstance(part, dict):
                inner += part.values()
            elif isinstance(part, (list, tuple)):
                inner += part
        if not inner:
            return False
        # A list that holds itself twice would double with each level.
        level = list({id(part): part for part in inner if isinstance(part, (dict, list, tuple))}.values())
    return True
