"""Whether the node is sound, and how many of its workers work, as the service manager is told."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pytest

from prefork_q.ipc.channel import Channel
from prefork_q.ipc.messages import RedisState
from prefork_q.ipc.scoreboard import Scoreboard
from prefork_q.master.checkup import CheckUp
from prefork_q.master.children import Child, Place, Slots
from prefork_q.master.herald import Vitals
from prefork_q.master.report import Report
from prefork_q.master.settings import MasterSettings
from prefork_q.master.totals import Totals

NOW: Final = 1_000.0


class Ward:
    """A node with one worker, at one moment."""

    def __init__(self, channel: Channel) -> None:
        self.slots = Slots(workers=1, apis=0, has_store=False)
        self.board = Scoreboard(2, 1, 8)
        self._channel = channel
        self._totals = Totals()
        settings = MasterSettings(version="1", workers=1)
        self.report = Report(settings, self.slots, self.board, self._totals, pid=1, now=0.0)
        self.fill(self.slots.template, is_ready=True)

    def fill(self, place: Place, *, is_ready: bool = False) -> Child:
        cell = 0 if place.role == "worker" else None
        child = Child(
            place, f"node.{place.name}.1", 1, self._channel, asked_at=NOW, pid=7, cell=cell, is_ready=is_ready
        )
        place.filled(child)
        if cell is not None:
            slot = self.board.worker(cell)
            slot.open(child.incarnation, 1, place.number)
            slot.beat(NOW)
        return child

    def vitals(self, *, is_reachable: bool = True) -> Vitals:
        redis = RedisState(is_reachable, "7.0.15")
        check_up = CheckUp(self.slots, self.board, self._totals, self.report)
        return check_up.vitals(NOW, redis=redis, reload=None, since=0.0, stops_until=0.0)


@pytest.fixture
def ward() -> Iterator[Ward]:
    ours, theirs = Channel.pair()
    yield Ward(ours)
    ours.close()
    theirs.close()


def test_a_node_whose_only_worker_works_is_sound(ward: Ward) -> None:
    ward.fill(ward.slots.workers[0], is_ready=True)
    assert ward.vitals().is_sound


def test_a_node_whose_only_worker_is_deaf_is_not(ward: Ward) -> None:
    ward.fill(ward.slots.workers[0], is_ready=True)
    ward.board.worker(0).beat(NOW - 100.0)
    assert not ward.vitals().is_sound


def test_a_node_whose_only_worker_imports_or_is_in_its_start_hook_is_sound(ward: Ward) -> None:
    newborn = ward.fill(ward.slots.workers[0])
    assert ward.vitals().is_sound
    newborn.pid = None
    assert ward.vitals().is_sound


def test_but_not_once_one_has_failed_on_its_way(ward: Ward) -> None:
    place = ward.slots.workers[0]
    newborn = ward.fill(place)
    newborn.killed_for = "not ready within 120 s"
    assert not ward.vitals().is_sound
    place.emptied(NOW, "exited 1", was_ready=False)
    assert not ward.vitals().is_sound
    ward.fill(place)
    assert not ward.vitals().is_sound
    # Nobody can get ready now.
    assert ward.vitals(is_reachable=False).is_sound


def test_a_worker_that_waits_for_a_template_that_imports_is_as_good(ward: Ward) -> None:
    template = ward.slots.template
    template.emptied(NOW, "killed by signal 9 (SIGKILL)", was_ready=True)
    ward.fill(template)
    assert ward.vitals().is_sound
    template.emptied(NOW, "exited 78", was_ready=False)
    assert not ward.vitals().is_sound
    ward.fill(template)
    assert not ward.vitals().is_sound


def test_one_that_was_told_to_leave_before_it_was_ready_is_not_on_its_way(ward: Ward) -> None:
    place = ward.slots.workers[0]
    newborn = ward.fill(place)
    newborn.stopping = True
    assert not ward.vitals().is_sound


def test_a_worker_that_drains_of_its_own_accord_is_not_counted(ward: Ward) -> None:
    ward.fill(ward.slots.workers[0], is_ready=True)
    assert (ward.vitals().ready, ward.report.ready_workers) == (1, 1)

    ward.board.worker(0).state = "draining"

    assert (ward.vitals().ready, ward.report.ready_workers) == (0, 0)
    assert "workers: 0 of 1 ready" in ward.report.degraded(NOW, None)
