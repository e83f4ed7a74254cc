"""The breaker: who asks while Redis does not answer is refused at once, and one finds out when it does."""

from __future__ import annotations

import pytest

from prefork_q.api.breaker import Breaker
from prefork_q.errors import NotFound, Unavailable


def fail(kind: str) -> None:
    raise Unavailable("away", kind=kind)


def test_after_one_has_waited_in_vain_the_others_are_refused() -> None:
    breaker = Breaker()
    with pytest.raises(Unavailable, match="away"):
        breaker.run(lambda: fail("timeout"))

    with pytest.raises(Unavailable, match="tried again each second"):
        breaker.run(lambda: 1)


def test_what_fails_otherwise_keeps_nobody_out() -> None:
    breaker = Breaker()
    with pytest.raises(Unavailable):
        breaker.run(lambda: fail("connection"))

    assert breaker.run(lambda: 1) == 1


def test_a_request_that_fails_for_itself_leaves_the_finding_out_to_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    breaker = Breaker()

    def unknown() -> None:
        raise NotFound("no such task")

    with pytest.raises(Unavailable):
        breaker.run(lambda: fail("timeout"))
    now += 1.1
    with pytest.raises(NotFound):
        breaker.run(unknown)

    assert breaker.run(lambda: 1) == 1
    assert breaker.run(lambda: 2) == 2
