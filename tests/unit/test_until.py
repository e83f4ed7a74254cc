from __future__ import annotations

import pytest

from tests.support.until import until


def test_until_returns_the_first_true_value() -> None:
    values = iter((0, "", None, "here", "later"))

    assert until(lambda: next(values), timeout=5) == "here"


def test_until_looks_once_more_when_the_time_is_over() -> None:
    assert until(lambda: True, timeout=0) is True


def test_until_gives_up_and_says_for_what_it_waited() -> None:
    with pytest.raises(AssertionError, match=r"0\.05 s passed without a wonder; last seen: \[\]"):
        until(list, timeout=0.05, what="a wonder")


def test_until_passes_on_what_the_condition_raises() -> None:
    def broken() -> bool:
        raise KeyError("no such thing")

    with pytest.raises(KeyError):
        until(broken)
