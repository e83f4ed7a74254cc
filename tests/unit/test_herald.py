"""What the service manager is told, and when: states in order, the sentence, signs of life, extensions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from prefork_q.events import Events, Sink
from prefork_q.master.herald import Herald, Phase, Vitals
from prefork_q.master.sdnotify import Notifier
from tests.support.notify import Manager

WELL = Vitals(ready=4, wanted=4, running=0, ended=0, pending=1_204)
STARTING, RUNNING, DRAINING = Phase("starting"), Phase("running"), Phase("draining")


class Node:
    """A herald, its manager, and a clock that the test moves."""

    def __init__(self, folder: Path, watchdog: float | None) -> None:
        self.manager = Manager(str(folder / "notify"))
        self.notifier = Notifier(self.manager.address, watchdog=watchdog)
        self.sink = Sink.file(folder / "log")
        events = Events(self.sink, format="text", level="info", process={})
        self.vitals = WELL
        self.herald = Herald(self.notifier, lambda now: self.vitals, events)
        self.now = 1_000.0

    def turn(self, phase: Phase, *, after: float = 0.0, **vitals: Any) -> list[dict[str, str]]:
        """Turn once, later; return what was told."""
        self.now += after
        self.vitals = replace(self.vitals, **vitals)
        self.herald.turn(phase, self.now)
        return self.manager.received()

    def close(self) -> None:
        self.notifier.close()
        self.sink.close()
        self.manager.__exit__(None, None, None)


MakeNode = Callable[..., Node]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[MakeNode]:
    nodes: list[Node] = []

    def make(watchdog: float | None = None) -> Node:
        nodes.append(Node(tmp_path, watchdog))
        return nodes[-1]

    yield make
    for node in nodes:
        node.close()


def told(messages: list[dict[str, str]], name: str) -> list[str]:
    return [message[name] for message in messages if name in message]


def test_ready_is_told_once_and_only_when_all_work(make: MakeNode) -> None:
    node = make()

    before = node.turn(STARTING, ready=2)
    at = node.turn(RUNNING, ready=4)
    after = node.turn(RUNNING, after=5)

    assert told(before, "READY") == []
    assert told(before, "STATUS") == ["starting: 2/4 workers ready"]
    assert at[0] == {"READY": "1", "STATUS": "4/4 workers, 0 tasks/s, 1,204 pending"}
    assert told(after, "READY") == []


def test_the_sentence_lives(make: MakeNode) -> None:
    node = make()
    node.turn(RUNNING)
    for _ in range(6):
        messages = node.turn(RUNNING, after=1, ended=node.vitals.ended + 312)

    assert told(messages, "STATUS") == ["4/4 workers, 312 tasks/s, 1,204 pending"] or messages == []
    assert told(node.manager.all(), "STATUS")[-1] == "4/4 workers, 312 tasks/s, 1,204 pending"

    (sentence,) = told(node.turn(Phase("quiet"), after=1, ready=3, troubles=("redis: unreachable",),
                                 pending=None), "STATUS")  # fmt: skip
    assert sentence.startswith("quiet: 3/4 workers, ")
    assert sentence.endswith("tasks/s; redis: unreachable")


def test_a_sentence_is_told_once_a_second_at_most(make: MakeNode) -> None:
    node = make()
    node.turn(RUNNING)
    messages = [m for n in range(20) for m in node.turn(RUNNING, after=0.1, pending=n)]

    assert len(told(messages, "STATUS")) == 2


def test_a_reload_begins_and_ends(make: MakeNode) -> None:
    node = make()
    node.turn(RUNNING)
    node.turn(Phase("reloading", 1, True), after=0.1)
    node.turn(Phase("running", 1, False), after=3)

    assert node.manager.states() == ["READY", "RELOADING", "READY"]
    reloading = node.manager.all()[
        [*map(list, node.manager.all())].index(["RELOADING", "MONOTONIC_USEC", "STATUS"])
    ]
    assert int(reloading["MONOTONIC_USEC"]) > 0


def test_a_reload_that_fails_at_once_is_told_like_any_other(make: MakeNode) -> None:
    node = make()
    node.turn(RUNNING)
    node.turn(Phase("running", 1, False), after=0.1, troubles=("the last reload failed: no such module",))

    assert node.manager.states() == ["READY", "RELOADING", "READY"]
    assert "no such module" in told(node.manager.all(), "STATUS")[-1]


def test_a_stop_says_how_long_it_may_take_and_asks_for_that(make: MakeNode) -> None:
    node = make()
    node.turn(RUNNING)
    first = node.turn(DRAINING, running=3, stops_until=node.now + 25)
    then = [m for _ in range(30) for m in node.turn(DRAINING, after=1)]

    assert first[0] == {"STOPPING": "1", "STATUS": "draining: 3 tasks running, at most 25 s left"}
    assert told(first, "EXTEND_TIMEOUT_USEC") == ["10000000"]
    assert told(then, "STOPPING") == []
    asked = [int(text) for text in told(then, "EXTEND_TIMEOUT_USEC")]
    assert len(asked) >= 12
    # The last one does not reach far beyond the end of the plan.
    assert asked[-1] <= 3e6


def test_a_node_that_stops_before_it_was_ready_never_says_ready(make: MakeNode) -> None:
    node = make()
    node.turn(STARTING)
    node.turn(DRAINING, after=1, stops_until=node.now + 5)

    assert node.manager.states() == ["STOPPING"]


def test_a_start_is_extended_while_what_it_waits_for_may_come(make: MakeNode) -> None:
    node = make()
    assert told(node.turn(STARTING, ready=0, troubles=("redis: unreachable",)), "EXTEND_TIMEOUT_USEC")
    assert told(node.turn(STARTING, after=2), "EXTEND_TIMEOUT_USEC")
    assert not told(node.turn(STARTING, after=2, may_go_on_starting=False), "EXTEND_TIMEOUT_USEC")


def test_signs_of_life_come_twice_in_the_time_that_the_watchdog_bears(make: MakeNode) -> None:
    node = make(watchdog=3.0)
    fed = []
    while node.now < 1_010:
        fed += [node.now] * len(told(node.turn(RUNNING), "WATCHDOG"))
        node.now = node.herald.next()

    assert max(after - before for before, after in pairwise(fed)) <= 1.5


def test_no_sign_of_life_without_a_sound_worker(make: MakeNode) -> None:
    node = make(watchdog=3.0)
    assert told(node.turn(RUNNING), "WATCHDOG")
    starved = [
        m for _ in range(5) for m in node.turn(RUNNING, after=1, is_sound=False, troubles=("all deaf",))
    ]
    fed = node.turn(RUNNING, after=1, is_sound=True)

    assert told(starved, "WATCHDOG") == []
    assert told(fed, "WATCHDOG") == ["1"]
    assert Path(node.sink.path or "").read_text().count("watchdog_not_fed") == 1


def test_a_drain_feeds_the_watchdog_without_workers(make: MakeNode) -> None:
    node = make(watchdog=3.0)
    node.turn(RUNNING)
    assert told(node.turn(DRAINING, after=2, is_sound=False, stops_until=node.now + 9), "WATCHDOG")


def test_without_a_manager_nothing_is_looked_at() -> None:
    herald = Herald(Notifier(None), lambda now: pytest.fail("looked"), None)  # type: ignore[arg-type]

    herald.turn(RUNNING, 1.0)

    assert herald.next() == float("inf")
