"""How many workers somebody wants."""

from __future__ import annotations

import pytest

from prefork_q.errors import Invalid
from prefork_q.master.scale import scaled


@pytest.mark.parametrize(
    ("asked", "wanted"), [("1", 1), ("8", 8), (" 3 ", 3), ("+1", 5), ("-3", 1), ("+4", 8), ("+0", 4)]
)
def test_a_number_or_a_step(asked: str, wanted: int) -> None:
    assert scaled(asked, 4, 8) == wanted


@pytest.mark.parametrize("asked", ["0", "9", "-4", "+5", "", "two", "1.5", "++1", "- 1", "1e2", "9999999"])
def test_what_is_none_or_cannot_be(asked: str) -> None:
    with pytest.raises(Invalid):
        scaled(asked, 4, 8)
