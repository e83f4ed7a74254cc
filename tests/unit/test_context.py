"""The context of a running handler."""

from __future__ import annotations

import pytest

from prefork_q.context import TaskContext


class Recorder:
    """A worker's side of a context, that keeps what it is told."""

    def __init__(self) -> None:
        self.reports: list[tuple[float, str]] = []
        self.cancelled = False
        self.valid = True

    def report_progress(self, fraction: float, note: str) -> None:
        self.reports.append((fraction, note))

    def is_cancelled(self) -> bool:
        return self.cancelled

    def is_lease_valid(self) -> bool:
        return self.valid


def test_it_tells_its_attempt() -> None:
    context = TaskContext("id", "work", 2, 3, 5.0, 7)

    assert (context.id, context.type, context.attempt, context.max_attempts) == ("id", "work", 2, 3)
    assert (context.deadline, context.token) == (5.0, 7)
    assert repr(context) == "TaskContext(id='id', type='work', attempt=2)"


def test_it_asks_the_worker_each_time() -> None:
    worker = Recorder()
    context = TaskContext(runtime=worker)

    before = (context.cancelled, context.lease_valid())
    worker.cancelled, worker.valid = True, False

    assert before == (False, True)
    assert (context.cancelled, context.lease_valid()) == (True, False)


def test_progress_goes_to_the_worker_within_bounds() -> None:
    worker = Recorder()
    context = TaskContext(runtime=worker)

    context.progress(0.25, "a quarter")
    context.progress(1.0000001)
    context.progress(-1, "x" * 1000)

    assert worker.reports == [(0.25, "a quarter"), (1.0, ""), (0.0, "x" * 200)]
    for wrong in (float("nan"), "1", None):
        with pytest.raises(ValueError, match="a fraction from 0 to 1"):
            context.progress(wrong)  # type: ignore[arg-type]
    assert len(worker.reports) == 3


def test_without_a_worker_it_is_quiet() -> None:
    context = TaskContext()

    context.progress(0.5)

    assert (context.cancelled, context.lease_valid()) == (False, True)


def test_a_note_is_always_text_that_can_be_written() -> None:
    worker = Recorder()

    TaskContext(runtime=worker).progress(0.5, "caf\udce9" + "x" * 300)

    ((_, note),) = worker.reports
    assert note.startswith("caf\\udce9xxx")
    assert len(note.encode()) == 200
