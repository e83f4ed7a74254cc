"""Whatever an exception does to its reader, what is kept of it is short, true as far as can be, and JSON."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import orjson
import pytest

from prefork_q.worker.failure import MESSAGE_LIMIT, TRACEBACK_LIMIT, Failure, describe, told


def caught(raiser: Callable[[], object]) -> BaseException:
    try:
        raiser()
    except BaseException as error:
        return error
    raise AssertionError("it did not raise")


def raising(error: BaseException) -> Callable[[], None]:
    def handler() -> None:
        raise error

    return handler


def kept(error: BaseException) -> dict[str, str]:
    """What is kept, checked to be in its bounds."""
    failure = describe(error)
    stored: dict[str, str] = orjson.loads(failure.text)
    assert stored == {"type": failure.type, "message": failure.message, "traceback": stored["traceback"]}
    assert len(failure.message) <= MESSAGE_LIMIT
    assert len(stored["traceback"]) <= TRACEBACK_LIMIT
    assert len(failure.type) <= 200
    return stored


@pytest.mark.parametrize(
    "error",
    [
        ValueError("no"), KeyError("x"), SystemExit(3), KeyboardInterrupt(), GeneratorExit(), MemoryError(),
        OSError(2, "No such file"), UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"),
    ],
)  # fmt: skip
def test_an_exception_is_told_by_type_message_and_place(error: BaseException) -> None:
    stored = kept(caught(raising(error)))

    assert stored["type"] == type(error).__name__
    assert stored["message"] == str(error)
    assert "in handler" in stored["traceback"]
    assert "in caught" not in stored["traceback"], "the caller's own frame says nothing"
    assert stored["traceback"].endswith(f"{type(error).__name__}: {error}\n")


def test_a_type_outside_of_the_builtins_has_its_module() -> None:
    class Own(Exception):
        pass

    assert kept(Own())["type"].startswith(f"{__name__}.")
    assert kept(Own())["type"].endswith("Own")


def test_an_exception_that_was_never_raised_has_no_traceback() -> None:
    assert kept(ValueError("no"))["traceback"] == "ValueError: no\n"


# -- exceptions with bad manners


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class ExitsWhenPrinted(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)


class NotAString(Exception):
    def __str__(self) -> str:
        return 7  # type: ignore[return-value]


class LyingString(str):
    """Claims to be short, and cannot be encoded."""

    def __len__(self) -> int:
        return 3

    def encode(self, *args: object) -> bytes:
        raise RuntimeError("no")

    def __getitem__(self, key: object) -> str:
        raise RuntimeError("no")


class Lying(Exception):
    def __str__(self) -> str:
        return LyingString("x" * 50_000)


class NoCause(Exception):
    @property
    def __cause__(self) -> BaseException | None:  # type: ignore[override]
        raise RuntimeError("none of your business")


class NoTraceback(Exception):
    @property
    def __traceback__(self) -> Any:  # type: ignore[override]
        raise KeyboardInterrupt


class Nameless(type):
    def __getattribute__(cls, name: str) -> Any:
        raise RuntimeError("no name")


class WithoutName(Exception, metaclass=Nameless):
    pass


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (Unprintable(), "<RuntimeError in __str__>"),
        (ExitsWhenPrinted(), "<SystemExit in __str__>"),
        (NotAString(), "<TypeError in __str__>"),
        (NoCause("said"), "<RuntimeError in describing it>"),
        (NoTraceback("said"), "<KeyboardInterrupt in describing it>"),
        (WithoutName("said"), "<RuntimeError in describing it>"),
    ],
)
def test_an_exception_that_raises_when_it_is_looked_at_is_told_all_the_same(
    error: BaseException, message: str
) -> None:
    assert kept(error)["message"] == message


def test_a_string_that_lies_about_its_length_is_cut() -> None:
    message = kept(Lying())["message"]

    assert message.startswith("xxx")
    assert " ... " in message


def test_a_message_of_ten_megabytes_keeps_its_head_and_tail() -> None:
    message = kept(caught(raising(ValueError("begin" + "x" * 10_000_000 + "end"))))["message"]

    assert message.startswith("beginx")
    assert message.endswith("xend")


def test_what_cannot_be_encoded_is_written_out() -> None:
    stored = kept(caught(raising(ValueError("a\ud800b\0c"))))

    assert stored["message"] == "a\\ud800b\0c"


def test_arguments_that_cannot_be_shown_are_told() -> None:
    class Bad:
        def __repr__(self) -> str:
            raise MemoryError

    assert kept(ValueError(Bad(), 1))["message"] == "<MemoryError in __str__>"


# -- chains


def test_a_cause_and_a_context_are_told_before_what_they_led_to() -> None:
    def handler() -> None:
        try:
            try:
                raise KeyError("first")
            except KeyError as error:
                raise ValueError("second") from error
        except ValueError:
            raise TypeError("third")  # noqa: B904

    trace = kept(caught(handler))["traceback"]

    parts = ["KeyError: 'first'", "direct cause", "ValueError: second", "During handling", "TypeError: third"]
    assert sorted(parts, key=trace.index) == parts


def test_a_context_that_is_suppressed_is_not_told() -> None:
    def handler() -> None:
        try:
            raise KeyError("first")
        except KeyError:
            raise ValueError("second") from None

    assert "first" not in kept(caught(handler))["traceback"]


def test_a_chain_that_is_a_loop_is_told_once() -> None:
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first

    trace = kept(first)["traceback"]

    assert (trace.count("ValueError: first"), trace.count("ValueError: second")) == (1, 1)


def test_a_chain_of_a_thousand_is_cut() -> None:
    error = ValueError("0")
    for n in range(1, 1_000):
        error, cause = ValueError(str(n)), error
        error.__cause__ = cause

    trace = kept(error)["traceback"]

    assert trace.endswith("ValueError: 999\n")
    assert trace.count("ValueError") == 5


def test_a_group_names_those_in_it() -> None:
    group = BaseExceptionGroup("several", [ValueError(str(n)) for n in range(8)] + [SystemExit()])

    stored = kept(caught(raising(group)))

    assert stored["message"] == "several (9 sub-exceptions)"
    assert "  | ValueError: 4\n" in stored["traceback"]
    assert "  | ... 4 more\n" in stored["traceback"]


def test_notes_are_told() -> None:
    error = ValueError("no")
    error.add_note("while reading line 3")

    assert "  while reading line 3\n" in kept(error)["traceback"]


def test_notes_that_are_none_do_no_harm() -> None:
    error = ValueError("no")
    error.__notes__ = 7  # type: ignore[assignment]

    assert kept(error)["message"] == "no"


def test_a_deep_stack_keeps_both_its_ends() -> None:
    def deep(n: int) -> None:
        if n:
            deep(n - 1)
        raise ValueError("at the bottom")

    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(20_000)
    try:
        stored = kept(caught(lambda: deep(5_000)))
    finally:
        sys.setrecursionlimit(limit)

    assert "<lambda>" in stored["traceback"]
    assert "4972 more frames" in stored["traceback"]
    assert stored["traceback"].endswith("ValueError: at the bottom\n")


def test_endless_recursion_is_told() -> None:
    def again() -> None:
        again()

    stored = kept(caught(again))

    assert stored["type"] == "RecursionError"
    assert "maximum recursion depth" in stored["message"]


def test_a_failure_without_an_exception_is_told_by_its_words() -> None:
    failure = told("UnknownType", "no\ud800ne " + "x" * 5_000)

    assert isinstance(failure, Failure)
    assert orjson.loads(failure.text)["type"] == "UnknownType"
    assert len(failure.message) <= MESSAGE_LIMIT
