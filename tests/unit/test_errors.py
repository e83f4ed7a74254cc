"""What prefork-q raises, in another process than the one that raised it."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import pytest

from prefork_q import errors
from prefork_q.control.client import CommandFailed, NoAnswer, NotRunning
from prefork_q.errors import (
    IdempotencyConflict,
    Invalid,
    InvalidPayload,
    Reject,
    RetryAfter,
    TaskFailed,
    TaskTimeout,
    Unavailable,
)

SPECIAL = [
    Invalid("wrong", pointer="/a"),
    InvalidPayload("wrong", (("/payload/a", "must be mended"),)),
    IdempotencyConflict("another", index=3),
    Unavailable("away", kind="timeout", retry_after=5.0),
    TaskFailed("id", "dead", {"type": "ValueError", "message": "as told"}),
    RetryAfter(5, "later"),
    RetryAfter(5),
    Reject("never"),
    TaskTimeout("too long"),
    CommandFailed("invalid", "no such worker"),
    NotRunning("no master"),
    NoAnswer("silence"),
]


def plain() -> Iterator[BaseException]:
    """The classes that say no more than their message."""
    known = {type(error) for error in SPECIAL}
    for kind in vars(errors).values():
        if isinstance(kind, type) and issubclass(kind, BaseException) and kind not in known:
            yield kind("the message")


@pytest.mark.parametrize("error", [*SPECIAL, *plain()], ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("protocol", [0, pickle.HIGHEST_PROTOCOL])
def test_an_error_arrives_in_another_process_as_it_was(error: BaseException, protocol: int) -> None:
    error.add_note("seen on the way")

    arrived = pickle.loads(pickle.dumps(error, protocol))

    assert (type(arrived), str(arrived), arrived.args) == (type(error), str(error), error.args)
    assert vars(arrived) == vars(error)
