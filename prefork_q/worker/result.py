"""What a handler returned, as JSON text."""

from __future__ import annotations

from typing import Any

from prefork_q.errors import Invalid, TooLarge
from prefork_q.strict_json import encode


class UnserializableResult(Invalid):
    """A handler returned what JSON cannot hold. Running it again would not mend that."""


class ResultTooLarge(UnserializableResult, TooLarge):
    """A handler returned more than the result limit."""

    code = "too_large"


def encode_result(result: Any, limit: int) -> bytes:
    """Return `result` as JSON text.

    Raises:
        UnserializableResult: it holds what JSON cannot: NaN, objects, cycles, integers over 64 bits.
        ResultTooLarge: the text is longer than `limit` bytes.
    """
    if result is None:
        return b"null"
    try:
        text = encode(result)
    except Invalid as error:
        raise UnserializableResult(f"the result is not JSON: {error}", pointer=error.pointer) from None
    except MemoryError:
        raise
    except Exception as error:
        # It has code of its own, which raises.
        raise UnserializableResult(f"the result is not JSON: {type(error).__name__} in reading it") from error
    if len(text) > limit:
        raise ResultTooLarge(
            f"the result has {len(text):,} bytes as JSON, the limit is {limit:,}: store it elsewhere and "
            "return where"
        )
    return text
