"""Many workers die under load: the master stays as it is, and the numbers stay right."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.kills import kill_workers
from tests.support.node import Node

pytestmark = pytest.mark.either_server

MIB = 1_048_576


@pytest.mark.timeout(240)
def test_after_many_kills_the_master_has_what_it_had_and_the_counters_are_the_ledgers(
    start_node: Callable[..., Node],
) -> None:
    node = start_node(workers=2)

    tally = kill_workers(node, 40, rate=40)

    assert tally.last.descriptors == tally.first.descriptors
    assert tally.last.children == tally.first.children
    assert tally.last.rss_bytes - tally.first.rss_bytes < 2 * MIB
    assert tally.restarts == tally.kills
    # A worker that dies between a handler's end and the commit runs that task once more.
    # One that was in a handler at four of the deaths is dead itself.
    assert tally.completed == tally.returned == tally.submitted - tally.dead
    assert tally.submitted <= tally.runs <= tally.submitted + tally.kills
    # What was in a handler when its worker died, by the ledger and by the master, one by one.
    assert tally.unnamed == 0
    assert tally.crashed + tally.before + tally.after == tally.crashes == tally.crashes_in_all <= tally.kills
    assert tally.overlaps == 0
