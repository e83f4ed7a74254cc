"""What the master makes of its children's words, which may come late."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from prefork_q.events import Events, Sink
from prefork_q.ipc.channel import Channel
from prefork_q.ipc.messages import Failed, Message, Ready, SpawnFailed
from prefork_q.ipc.scoreboard import Scoreboard
from prefork_q.master.births import Births
from prefork_q.master.children import Child, Place, Slots
from prefork_q.master.family import Family
from prefork_q.master.settings import Entrypoints, Generation, MasterSettings
from prefork_q.master.wires import Wires

SETTINGS = MasterSettings(version="1", workers=1, api_processes=1, lease=30.0)
ENTRYPOINTS = Entrypoints(template=lambda birth: 0, keeper=lambda birth: 0)


class Nursery:
    """A family without processes: the test speaks for them."""

    def __init__(self, folder: Path, undo: ExitStack) -> None:
        self._undo = undo
        self.slots = Slots(workers=1, apis=1, has_store=False)
        sink = Sink.file(folder / "log")
        undo.callback(sink.close)
        events = Events(sink, format="json", level="debug", process={})
        board = Scoreboard(2, 1, 8)
        self._wires = Wires()
        undo.callback(self._wires.close)
        births = Births(SETTINGS, board, self._wires, [])
        generation = Generation(1, SETTINGS, ENTRYPOINTS)
        self.family = Family(generation, self.slots, births, self._wires, board, events)
        self._ends: dict[Child, Channel] = {}

    def add(self, place: Place, *, pid: int | None = None) -> Child:
        ours, theirs = Channel.pair()
        self._undo.callback(theirs.close)
        self._undo.callback(ours.close)
        child = Child(place, f"node.{place.name}.1", 1, ours, asked_at=0.0, pid=pid)
        place.filled(child)
        self._wires.add(child)
        self._ends[child] = theirs
        return child

    def say(self, child: Child, message: Message) -> None:
        self._ends[child].send(message)
        self._wires.wait(5.0)
        self.family.hear()


@pytest.fixture
def nursery(tmp_path: Path) -> Iterator[Nursery]:
    with ExitStack() as undo:
        yield Nursery(tmp_path, undo)


def test_who_gets_ready_is_not_late_any_more(nursery: Nursery) -> None:
    api = nursery.add(nursery.slots.apis[0], pid=7)
    nursery.family.deadlines.set("boot", api.incarnation, 100.0)

    nursery.say(api, Ready())

    assert api.is_ready
    assert nursery.family.deadlines.next() is None


def test_who_gets_ready_after_it_was_told_to_leave_has_to_leave_in_time(nursery: Nursery) -> None:
    api = nursery.add(nursery.slots.apis[0], pid=7)
    api.stopping = True
    nursery.family.deadlines.set("leave", api.incarnation, 100.0)

    nursery.say(api, Ready())

    assert nursery.family.deadlines.next() == 100.0


@pytest.mark.parametrize(("pid", "lives"), [(7, True), (None, False)])
def test_a_newborn_that_has_said_hello_lives_whatever_the_template_says(
    nursery: Nursery, pid: int | None, lives: bool
) -> None:
    template = nursery.add(nursery.slots.template, pid=6)
    worker = nursery.add(nursery.slots.workers[0], pid=pid)

    nursery.say(template, SpawnFailed(worker.incarnation, "the middle process made no child"))

    assert (nursery.slots.workers[0].child is worker) == lives


def test_passwords_in_why_somebody_failed_are_masked_for_all_who_tell_it(nursery: Nursery) -> None:
    template = nursery.add(nursery.slots.template, pid=6)

    nursery.say(template, Failed("no redis://app:geheim@db/0", "OSError: redis://app:geheim@db/0"))

    assert template.farewell == Failed("no redis://app:***@db/0", "OSError: redis://app:***@db/0")


def test_the_keeper_comes_back_well_within_a_lease(nursery: Nursery) -> None:
    keeper, worker = nursery.slots.keeper, nursery.slots.workers[0]

    assert [keeper.missed(0.0, "no memory") for _ in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]
    assert [worker.missed(0.0, "no memory") for _ in range(8)][-1] == 30.0

    for lease, longest in ((2.0, 0.5), (60.0, 6.0), (3600.0, 30.0)):
        nursery.family.adopt(Generation(2, replace(SETTINGS, lease=lease), ENTRYPOINTS))
        assert [keeper.missed(0.0, "no memory") for _ in range(8)][-1] == longest
