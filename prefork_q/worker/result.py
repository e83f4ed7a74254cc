"""What a handler returned, as JSON text."""

from __future__ import annotations

import math
from typing import Any

import orjson

from prefork_q.errors import Invalid, TooLarge


class UnserializableResult(Invalid):
    """A handler returned what JSON cannot hold. Running it again would not mend that."""


class ResultTooLarge(UnserializableResult, TooLarge):
    """A handler returned more than the result limit."""

    code = "too_large"


def encode_result(result: Any, limit: int) -> bytes:
    """Return `result` as JSON text.

    Raises:
        UnserializableResult: it holds what JSON cannot: NaN, bytes, sets, cycles, integers over 64 bits.
        ResultTooLarge: the text is longer than `limit` bytes.
    """
    if result is None:
        return b"null"
    try:
        text = orjson.dumps(result)
    except (TypeError, ValueError, RecursionError) as error:
        raise UnserializableResult(
            f"the result is not JSON: {error}; return dicts with string keys, lists, strings, finite "
            "numbers, booleans or None"
        ) from error
    if len(text) > limit:
        raise ResultTooLarge(
            f"the result has {len(text):,} bytes as JSON, the limit is {limit:,}: store it elsewhere and "
            "return where"
        )
    # The encoder writes NaN and the infinities as null; only then is the whole value looked at.
    if b"null" in text and _has_nonfinite(result):
        raise UnserializableResult("the result holds NaN or Infinity, which are not JSON")
    return text


def _has_nonfinite(value: Any) -> bool:
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, float):
            if not math.isfinite(item):
                return True
        elif isinstance(item, dict):
            stack.extend(item.values())
        elif isinstance(item, list | tuple):
            stack.extend(item)
        elif hasattr(item, "__dataclass_fields__"):
            stack.extend(getattr(item, name) for name in item.__dataclass_fields__)
    return False
