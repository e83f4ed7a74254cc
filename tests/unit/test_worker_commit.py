"""What outcomes become: what Redis is told of them, and what is counted and logged once it has answered."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import orjson
import pytest

from prefork_q.events import Events
from prefork_q.ipc import stats
from prefork_q.ipc.scoreboard import Scoreboard
from prefork_q.retry import Retry
from prefork_q.sink import Sink
from prefork_q.worker.commit import Ledger, runs, said_again
from prefork_q.worker.held import Held, Lot, Outcome, OutcomeName
from prefork_q.worker.routes import Route


class Stand:
    def __init__(self, log: Path) -> None:
        self.slot = Scoreboard(1, 1, 1).worker(0)
        self.slot.register(["noop"], ["default"])
        self._log = log
        self.ledger = Ledger(self.slot, Events(Sink.file(log), format="json", level="info", process={}))
        self._number = 0

    def lot(self, *, token: int = 7, attempt: int = 1, known: bool = True) -> Lot:
        route = Route(b"noop", "noop", print, orjson.loads, None, Retry(), None, 0) if known else None
        return Lot(b"noop", b"default", attempt, 3, 0, 0.0, token, route, 5.0, 5.0, None)

    def outcomes(
        self, lot: Lot, n: int, name: OutcomeName = "succeeded", *, delay: float | None = None
    ) -> list[Outcome]:
        made = []
        for _ in range(n):
            self._number += 1
            error = ("ValueError", "no") if name in ("retrying", "dead") else (None, None)
            held = Held(lot, b"%d" % self._number, b"{}", 0)
            made.append(Outcome(held, name, 0.02, b"null", delay, *error))
        return made

    def book(self, batch: list[Outcome], *words: bytes) -> None:
        self.ledger.book(runs(batch), words or [b"ok"] * len(batch), 100.0)

    def counts(self) -> dict[str, int]:
        return {name: n for name, at in stats.COUNTER_NAMES.items() if (n := self.slot.counter(at))}

    def lines(self) -> list[dict[str, object]]:
        return [orjson.loads(line) for line in self._log.read_bytes().splitlines()]


@pytest.fixture
def stand(tmp_path: Path) -> Stand:
    return Stand(tmp_path / "log")


def test_neighbours_of_a_lot_that_ended_alike_are_a_run(stand: Stand) -> None:
    first, second = stand.lot(), stand.lot(token=8)
    batch = [
        *stand.outcomes(first, 2),
        *stand.outcomes(second, 1),
        *stand.outcomes(second, 1, "retrying", delay=1.5),
        *stand.outcomes(second, 1, "retrying", delay=2.0),
        *stand.outcomes(first, 1),
    ]

    found = runs(batch)

    assert [outcome for run in found for outcome in run.outcomes] == batch
    assert [run.settlements() for run in found] == [
        ("complete", 7, "", [b"1", b"2"], [20, 20], [b"null"] * 2),
        ("complete", 8, "", [b"3"], [20], [b"null"]),
        ("fail", 8, 1500, [b"4"], [20], [b"null"]),
        ("fail", 8, 2000, [b"5"], [20], [b"null"]),
        ("complete", 7, "", [b"6"], [20], [b"null"]),
    ]


def test_every_outcome_is_counted_and_has_its_line(stand: Stand) -> None:
    lot = stand.lot(attempt=3)

    stand.book(
        [
            *stand.outcomes(lot, 3),
            *stand.outcomes(lot, 1, "retrying", delay=1.0),
            *stand.outcomes(lot, 1, "dead"),
            *stand.outcomes(lot, 1, "released"),
        ]
    )

    assert stand.counts() == {"completed": 3, "failed": 2, "retried": 1, "dead": 1, "released": 1}
    shot = stand.slot.snapshot()
    # What was released was no attempt.
    assert (shot.types["noop"].counts, shot.types["noop"].durations.count) == ((3, 2, 1, 1), 5)
    assert [(one.completed, one.failed) for one in shot.seconds] == [(3, 2)]
    assert Counter((line["outcome"], line.get("error_type")) for line in stand.lines()) == {
        ("succeeded", None): 3,
        ("retrying", "ValueError"): 1,
        ("dead", "ValueError"): 1,
        ("released", None): 1,
    }
    assert [line["id"] for line in stand.lines()] == ["1", "2", "3", "4", "5", "6"]
    assert {
        (line["type"], line["queue"], line["attempt"], line["duration_ms"]) for line in stand.lines()
    } == {("noop", "default", 3, 20.0)}


@pytest.mark.parametrize("name", ["succeeded", "retrying", "released"])
def test_what_was_refused_is_told_and_counts_for_nothing_else(stand: Stand, name: OutcomeName) -> None:
    stand.book(stand.outcomes(stand.lot(), 3, name), b"ok", b"stale", b"ok")

    assert stand.counts()["stale"] == 1
    by_event = {
        event: [line["id"] for line in stand.lines() if line["event"] == event]
        for event in ("finished", "commit_refused")
    }
    assert by_event == {"finished": ["1", "3"], "commit_refused": ["2"]}
    counted = {"succeeded": "completed", "retrying": "failed", "released": "released"}[name]
    assert stand.counts()[counted] == 2


def test_a_commit_that_was_refused_as_a_whole_counts_nothing(stand: Stand) -> None:
    stand.book(stand.outcomes(stand.lot(), 2), b"stale", b"stale")

    assert stand.counts() == {"stale": 2}
    assert stand.slot.snapshot().seconds == ()


def test_what_else_became_of_a_task_is_what_is_told(stand: Stand) -> None:
    lot = stand.lot(known=False)

    stand.book(stand.outcomes(lot, 3, "released", delay=5.0), b"ok", b"cancelled", b"dead")

    assert [line["outcome"] for line in stand.lines()] == ["released", "cancelled", "dead"]
    assert stand.counts() == {"released": 3, "cancelled": 1, "dead": 1}


def test_without_a_line_to_write_nothing_is_written(stand: Stand) -> None:
    stand.book([])

    assert (stand.counts(), stand.lines()) == ({}, [])


def test_a_commit_whose_answer_was_lost_is_not_refused_for_what_became_of_its_tasks_since(
    stand: Stand,
) -> None:
    lot = stand.lot()
    batch = [
        *stand.outcomes(lot, 2),
        *stand.outcomes(lot, 1, "retrying", delay=1.0),
        *stand.outcomes(lot, 1, "released"),
        *stand.outcomes(lot, 1, "dead"),
    ]

    stand.book(batch, *said_again(runs(batch), [b"ok", b"stale", b"stale", b"stale", b"cancelled"]))

    # One that has succeeded never gets another token, so that one was refused from the beginning.
    assert stand.counts() == {
        "completed": 1, "stale": 1, "failed": 2, "retried": 1, "released": 1, "cancelled": 1,
    }  # fmt: skip
