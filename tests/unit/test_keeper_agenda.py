"""When the keeper's chores run, what a failing one does to the others, and in which order they go."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from prefork_q.connection import connect
from prefork_q.errors import Unavailable
from prefork_q.events import Events, Sink
from prefork_q.ipc.messages import RedisState
from prefork_q.ipc.scoreboard import Scoreboard
from prefork_q.keeper.agenda import NEVER, Agenda
from prefork_q.keeper.reach import Reach


class Note:
    """A chore that notes its turns, and fails as it is told."""

    def __init__(self, name: str, turns: list[str], *, needs_redis: bool = True) -> None:
        self.name = name
        self.needs_redis = needs_redis
        self.error: Exception | None = None
        self.wait = NEVER
        self._turns = turns

    def run(self, now: float) -> float:
        self._turns.append(self.name)
        if self.error is not None:
            raise self.error
        return now + self.wait


class Bench:
    def __init__(self, folder: Path) -> None:
        self.turns: list[str] = []
        self.told: list[RedisState] = []
        self.log = folder / "log"
        self.events = Events(Sink.file(self.log), format="json", level="debug", process={})
        slot = Scoreboard(1, 1, 1).keeper
        # Nobody listens on that socket: a look finds that Redis is away.
        self.client = connect(f"unix://{folder}/nobody.sock", timeout=0.2)
        self.reach = Reach(self.client, self.told.append, self.events, slot)
        self.reach.is_lost = False
        self.beats = 0

    def agenda(self, *chores: Note) -> Agenda:
        return Agenda(chores, self.reach, self.events, beat=self._beat)

    def said(self, event: str) -> list[dict[str, Any]]:
        return [line for line in map(json.loads, self.log.read_text().splitlines()) if line["event"] == event]

    def _beat(self, now: float) -> None:
        self.beats += 1


@pytest.fixture
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    bench = Bench(tmp_path_factory.mktemp("agenda"))
    yield bench
    bench.client.close()
    bench.events.sink.close()


@pytest.fixture
def note(bench: Bench) -> Callable[..., Note]:
    return lambda name, **options: Note(name, bench.turns, **options)


def test_chores_run_in_their_order_and_not_before_they_are_due(
    bench: Bench, note: Callable[..., Note]
) -> None:
    first, second = note("first"), note("second")
    agenda = bench.agenda(first, second)

    agenda.run_due()
    agenda.run_due()
    assert bench.turns == ["first", "second"]
    assert agenda.next_due == NEVER

    agenda.hurry("second")
    agenda.run_due()
    assert bench.turns == ["first", "second", "second"]


def test_a_chore_that_wants_to_go_on_does_not_keep_the_others_waiting(
    bench: Bench, note: Callable[..., Note]
) -> None:
    greedy, modest = note("greedy"), note("modest")
    greedy.wait = 0.0
    agenda = bench.agenda(greedy, modest)

    agenda.run_due()
    agenda.run_due()

    assert bench.turns == ["greedy", "modest", "greedy"]


def test_when_redis_is_lost_what_needs_it_waits_and_the_rest_goes_on(
    bench: Bench, note: Callable[..., Note]
) -> None:
    lost, other, local = note("lost"), note("other"), note("local", needs_redis=False)
    lost.error = Unavailable("away", kind="connection")
    agenda = bench.agenda(lost, other, local)

    agenda.run_due()
    assert bench.turns == ["lost", "local"]
    assert bench.told == [RedisState(reachable=False)]
    assert agenda.next_due == bench.reach.retry_at

    agenda.hurry("local")
    for _ in range(3):
        agenda.run_due()
    assert bench.turns == ["lost", "local", "local"]
    assert len(bench.said("redis_lost")) == 1


def test_after_an_outage_all_is_due_again_in_order(bench: Bench, note: Callable[..., Note]) -> None:
    chores = [note("renewer"), note("reaper")]
    agenda = bench.agenda(*chores)
    agenda.run_due()
    chores[1].error = Unavailable("away", kind="timeout")
    agenda.hurry("reaper")
    agenda.run_due()
    assert bench.reach.is_lost
    bench.turns.clear()

    chores[1].error = None
    bench.reach.retry_at = 0.0
    agenda.run_due()
    assert bench.turns == [], "Redis is still away"

    bench.reach.look = lambda: not setattr(bench.reach, "is_lost", False)  # type: ignore[method-assign]
    bench.reach.retry_at = 0.0
    agenda.run_due()
    assert bench.turns == ["renewer", "reaper"]


@pytest.mark.parametrize("kind", ["full", "denied", "other"])
def test_what_redis_refuses_to_one_chore_is_said_once_and_no_outage(
    bench: Bench, note: Callable[..., Note], kind: str
) -> None:
    refused, other = note("refused"), note("other")
    refused.error = Unavailable("no", kind=kind)
    agenda = bench.agenda(refused, other)

    for _ in range(3):
        agenda.hurry("refused")
        agenda.run_due()
    assert [line["kind"] for line in bench.said("chore_refused")] == [kind]
    assert not bench.reach.is_lost
    assert "other" in bench.turns

    refused.error = None
    agenda.hurry("refused")
    agenda.run_due()
    assert len(bench.said("chore_done_again")) == 1


def test_a_mistake_in_one_chore_is_reported_and_does_not_stop_the_others(
    bench: Bench, note: Callable[..., Note]
) -> None:
    wrong, other = note("wrong"), note("other")
    wrong.error = ValueError("what is this")
    agenda = bench.agenda(wrong, other)

    agenda.run_due()
    agenda.run_due()

    assert bench.turns == ["wrong", "other"]
    [line] = bench.said("chore_failed")
    assert "ValueError: what is this" in line["traceback"]


def test_it_beats_before_each_chore(bench: Bench, note: Callable[..., Note]) -> None:
    agenda = bench.agenda(note("one"), note("two"), note("three"))

    agenda.run_due()

    assert bench.beats >= 3
