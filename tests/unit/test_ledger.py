from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.support.ledger import Ledger


def write(path: Path, *entries: dict[str, Any]) -> Ledger:
    common = {"type": "t", "attempt": 1, "pid": 1, "thread": 1, "token": 1}
    path.write_text("".join(json.dumps(common | entry) + "\n" for entry in entries))
    return Ledger(path)


def start(run: str, id: str, at: float) -> dict[str, Any]:
    return {"run": run, "id": id, "event": "start", "at": at}


def end(run: str, id: str, at: float) -> dict[str, Any]:
    return {"run": run, "id": id, "event": "end", "at": at, "outcome": "returned"}


def test_a_ledger_that_nobody_wrote_has_no_runs(tmp_path: Path) -> None:
    assert Ledger(tmp_path / "none").runs() == []


def test_a_run_has_its_start_and_its_end(tmp_path: Path) -> None:
    ledger = write(tmp_path / "l", start("r1", "a", 1), start("r2", "b", 2), end("r1", "a", 3))

    first, second = ledger.runs()

    assert (first.id, first.started_at, first.ended_at, first.outcome) == ("a", 1, 3, "returned")
    assert (second.id, second.ended_at, second.outcome) == ("b", None, None)
    assert ledger.running() == [second]
    assert ledger.starts("a") == [1]
    assert ledger.times_run() == {"a": 1, "b": 1}


def test_runs_of_one_task_at_the_same_time_overlap(tmp_path: Path) -> None:
    ledger = write(
        tmp_path / "l",
        start("r1", "a", 1), start("r2", "a", 2), end("r1", "a", 3), end("r2", "a", 4),
        start("r3", "b", 1), end("r3", "b", 2), start("r4", "b", 2),
        start("r5", "c", 1), start("r6", "c", 2),
    )  # fmt: skip

    assert [(first.id, second.id) for first, second in ledger.overlaps()] == [("a", "a")]


def test_half_a_line_is_left_for_the_next_look(tmp_path: Path) -> None:
    ledger = write(tmp_path / "l", start("r1", "a", 1))
    with ledger.path.open("a") as file:
        file.write('{"run": "r2", "id"')

    assert [run.id for run in ledger.runs()] == ["a"]
