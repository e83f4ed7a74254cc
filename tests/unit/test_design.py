"""DESIGN.md says what the code does."""

from __future__ import annotations

import re

import pytest

from prefork_q.keys import TABLE
from prefork_q.master.signals import HANDLED, SIGNALS
from prefork_q.scripts import scripts
from prefork_q.states import TRANSITIONS, Status
from tests.support.design import DESIGN, read_table, tables

TEXT = DESIGN.read_text("utf-8")


@pytest.mark.parametrize("name", ["transitions", "keys", "scripts", "commands", "signals", "problems"])
def test_a_checked_table_is_as_the_code_has_it(name: str) -> None:
    assert read_table(TEXT, name) == tables()[name], "run: python -m tests.support.design"


def test_every_signal_that_the_master_handles_is_told() -> None:
    told = {name for names, _ in SIGNALS for name in names.split(", ")}
    assert {number.name.removeprefix("SIG") for number in HANDLED} - {"CHLD"} == told


def test_the_drawing_shows_every_change_of_status() -> None:
    drawn = set(re.findall(r"^    (\w+|\[\*\]) --> (\w+|\[\*\]): (.*)$", TEXT, re.MULTILINE))
    pairs = {(before, after) for before, after, _ in drawn}
    for row in TRANSITIONS:
        assert (row.before.value if row.before else "[*]", row.after.value) in pairs, row


def test_every_status_script_and_key_is_named() -> None:
    for status in Status:
        assert f"`{status.value}`" in TEXT
    for verb in scripts():
        assert f"`{verb}`" in TEXT
    for key in TABLE:
        assert f"`{key.pattern}`" in TEXT
