"""What the master knows of its processes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from prefork_q.ipc.channel import Channel
from prefork_q.master.children import Child, Place, Slots


@pytest.fixture
def slots() -> Slots:
    return Slots(workers=2, apis=1, has_store=True)


@pytest.fixture
def channel() -> Iterator[Channel]:
    ours, theirs = Channel.pair()
    yield ours
    ours.close()
    theirs.close()


def fill(place: Place, channel: Channel, *, pid: int | None = None, ready: bool = False) -> Child:
    child = Child(place, f"node.{place.name}.1", 1, channel, asked_at=0.0, pid=pid, is_ready=ready)
    place.filled(child)
    return child


def test_places_are_filled_in_the_order_in_which_they_need_each_other(slots: Slots) -> None:
    assert [place.name for place in slots.vacant(0.0)] == [
        "store", "keeper", "api 0", "template", "worker 0", "worker 1",
    ]  # fmt: skip


def test_a_process_is_found_by_pid_and_by_incarnation(slots: Slots, channel: Channel) -> None:
    child = fill(slots.workers[1], channel, pid=4711)
    assert slots.by_pid(4711) is child
    assert slots.by_incarnation(child.incarnation) is child
    assert slots.by_pid(1) is None
    assert slots.children("worker") == slots.children() == [child]
    assert slots.children("api") == []


def test_a_place_whose_process_died_after_it_was_ready_is_due_at_once(slots: Slots, channel: Channel) -> None:
    place = slots.workers[0]
    fill(place, channel, ready=True)
    assert place.emptied(100.0, "killed by signal 9 (SIGKILL)", was_ready=True) == 0.0
    assert place in slots.vacant(100.0)
    assert place.state == "starting"
    assert not place.is_failing


def test_a_place_whose_process_died_at_birth_waits(slots: Slots, channel: Channel) -> None:
    place = slots.workers[0]
    fill(place, channel)
    assert place.emptied(100.0, "exited 1", was_ready=False) == 0.5
    assert place not in slots.vacant(100.4)
    assert place in slots.vacant(100.5)
    assert place.state == "backoff"
    assert place.last_cause == "exited 1"


def test_a_process_that_is_ready_ends_the_failing(slots: Slots, channel: Channel) -> None:
    place = slots.workers[0]
    fill(place, channel)
    place.emptied(100.0, "exited 1", was_ready=False)
    child = fill(place, channel)
    assert place.is_failing
    assert place.state == "starting"
    child.is_ready = True
    place.became_ready()
    assert not place.is_failing
    assert place.state == "ready"
    assert place.restarts == 1


def test_a_process_that_was_told_to_stop_drains(slots: Slots, channel: Channel) -> None:
    child = fill(slots.workers[0], channel, ready=True)
    assert slots.workers[0].state == "ready"
    child.stopping = True
    assert slots.workers[0].state == "draining"


def test_a_node_is_complete_when_everybody_is_ready(slots: Slots, channel: Channel) -> None:
    children = [fill(place, channel, ready=True) for place in slots.places()]
    assert slots.is_complete
    children[-1].is_ready = False
    assert not slots.is_complete


def test_a_process_is_named_the_same_everywhere(slots: Slots, channel: Channel) -> None:
    assert fill(slots.workers[1], channel, pid=7).who() == {"worker": 1, "gen": 1, "pid": 7}
    assert fill(slots.keeper, channel, pid=8).who() == {"role": "keeper", "pid": 8}
    assert fill(slots.apis[0], channel, pid=9).who() == {"role": "api", "api": 0, "pid": 9}
