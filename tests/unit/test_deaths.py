"""Ends of processes: causes in words, and death notices."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from prefork_q.ipc.channel import Channel
from prefork_q.ipc.messages import Claim, DeathNotice, Failed, TimedOut
from prefork_q.ipc.scoreboard import Scoreboard
from prefork_q.ipc.slot import WorkerSlot
from prefork_q.master.children import WORKER, Child, Place
from prefork_q.master.deaths import (
    MAX_EMPTY_NOTICES,
    Exit,
    Notices,
    PostMortem,
    cause_of,
    label_of,
    notice_of,
)

A, B, C = (f"01987654-3210-7abc-8def-00000000000{n}" for n in "abc")
KILLED = Exit(None, signal.SIGKILL)


@pytest.fixture
def child() -> Iterator[Child]:
    ours, theirs = Channel.pair()
    yield Child(Place(WORKER, 3), "node.3.1", 1, ours, asked_at=0.0, pid=4711, is_ready=True)
    ours.close()
    theirs.close()


@pytest.fixture
def slot() -> WorkerSlot:
    slot = Scoreboard(slots=1, threads=2, held=4).worker(0)
    slot.open("node.3.1", generation=1)
    for index, id in enumerate((A, B, C)):
        slot.hold(index, id.encode(), 5 + index, 1.0)
    slot.start(0, A.encode(), b"t", 1, 5, 1.0, 0.0)
    slot.start(1, B.encode(), b"t", 1, 6, 1.0, 0.0)
    slot.finished(1)
    return slot


def test_an_end_is_told_in_words() -> None:
    assert str(Exit.of(1 << 8)) == "exited 1"
    assert str(Exit.of(signal.SIGKILL, 2_048)) == "killed by signal 9 (SIGKILL)"
    assert str(Exit(None, 60)) == "killed by signal 60"
    assert Exit.of(signal.SIGSEGV, 2_048).peak_rss_bytes == 2_048 * 1_024


def test_a_cause_says_why_the_master_killed(child: Child) -> None:
    assert cause_of(child, KILLED) == "killed by signal 9 (SIGKILL)"
    child.killed_for = "not ready within 30 s"
    assert cause_of(child, KILLED) == "killed by signal 9 (SIGKILL): not ready within 30 s"


def test_a_cause_says_what_the_process_said_itself(child: Child) -> None:
    child.farewell = Failed("no such module")
    assert cause_of(child, Exit(78, None)) == "exited 78: no such module"


def test_a_notice_tells_who_was_in_a_handler_and_what_else_was_held(child: Child, slot: WorkerSlot) -> None:
    notice = notice_of(child, KILLED, slot.snapshot())
    assert notice.running == (Claim(A, 5),)
    assert notice.held == (Claim(B, 6), Claim(C, 7))
    assert (notice.signal, notice.exit_code, notice.drained) == (9, None, False)
    assert (notice.incarnation, notice.slot) == ("node.3.1", 3)


def test_what_the_master_ended_itself_charges_nobody(child: Child, slot: WorkerSlot) -> None:
    child.killed_for = "not ready within 30 s"
    assert notice_of(child, KILLED, slot.snapshot()).drained


def test_the_end_of_a_drain_charges_nobody(child: Child, slot: WorkerSlot) -> None:
    slot.state = "ended"
    assert notice_of(child, Exit(0, None), slot.snapshot()).drained
    assert not notice_of(child, KILLED, slot.snapshot()).drained


@pytest.mark.parametrize("exit", [KILLED, Exit(0, None), Exit(1, None)])
def test_a_worker_that_dies_while_it_drains_has_died_of_what_it_ran(
    child: Child, slot: WorkerSlot, exit: Exit
) -> None:
    slot.state = "draining"
    child.stopping = True
    assert not notice_of(child, exit, slot.snapshot()).drained


def test_a_handler_that_exits_is_charged(child: Child, slot: WorkerSlot) -> None:
    slot.state = "ready"
    assert not notice_of(child, Exit(0, None), slot.snapshot()).drained


@pytest.mark.parametrize(
    ("is_ready", "exit", "label"),
    [
        (True, KILLED, "signal"),
        (True, Exit(1, None), "exited"),
        (True, Exit(0, None), "drained"),
        (False, KILLED, "birth"),
        (False, Exit(1, None), "birth"),
    ],
)
def test_restarts_are_counted_under_few_words(child: Child, is_ready: bool, exit: Exit, label: str) -> None:
    child.is_ready = is_ready
    assert label_of(child, exit) == label
    child.killed_for = "silent"
    assert label_of(child, exit) == "killed"


def test_notices_are_kept_until_they_are_acknowledged() -> None:
    notices = Notices()
    first = DeathNotice("node.0.1", 0, "exited 1", exit_code=1, held=(Claim(A, 5),))
    second = DeathNotice("node.0.2", 0, "exited 1", exit_code=1)
    notices.add(first)
    notices.add(second)
    assert notices.open() == [first, second]
    assert notices.unreturned() == [Claim(A, 5)]
    notices.acknowledged("node.0.1")
    notices.acknowledged("never heard of")
    assert notices.open() == [second]
    assert notices.unreturned() == []


def test_only_notices_without_claims_are_ever_forgotten() -> None:
    notices = Notices()
    notices.add(DeathNotice("node.0.0", 0, "exited 1", exit_code=1, held=(Claim(A, 5),)))
    for number in range(MAX_EMPTY_NOTICES + 10):
        notices.add(DeathNotice(f"node.1.{number}", 1, "exited 1", exit_code=1))
    assert len(notices) == MAX_EMPTY_NOTICES + 1
    assert notices.open()[0].incarnation == "node.0.0"


def test_a_task_over_its_time_limit_is_no_neighbour(child: Child, slot: WorkerSlot) -> None:
    child.killed_for = "hard time limit"
    late = TimedOut(A, 5, 2.5, None, "in spin")

    notice = notice_of(child, KILLED, slot.snapshot(), PostMortem(timed_out=(late,)), 4.0)

    assert (notice.timed_out, notice.running, notice.drained) == ((late,), (), True)
    assert notice.held == (Claim(B, 6), Claim(C, 7))
    assert notice.ran == {A: 3.0}
    notices = Notices()
    notices.add(notice)
    assert Claim(A, 5) in notices.unreturned()


def test_who_was_killed_for_what_ran_in_it_is_charged(child: Child, slot: WorkerSlot) -> None:
    child.killed_for, child.killed_as, child.is_charged = "grew by 800 MiB", "memory", True
    notice = notice_of(child, KILLED, slot.snapshot())
    assert (notice.drained, notice.running) == (False, (Claim(A, 5),))
    assert label_of(child, KILLED) == "memory"


def test_a_recycled_worker_says_why_it_left(child: Child) -> None:
    child.retires_for = "1,000 tasks"
    left = Exit(0, None)
    assert (cause_of(child, left), label_of(child, left)) == ("recycled: 1,000 tasks", "recycled")
    assert cause_of(child, KILLED) == "killed by signal 9 (SIGKILL)"


def test_a_fault_with_nothing_in_a_handler_is_charged_to_what_has_just_left_one(
    child: Child, slot: WorkerSlot
) -> None:
    slot.finished(0)
    fault = Exit(None, signal.SIGSEGV)
    assert notice_of(child, Exit(70, None), slot.snapshot()).running == (Claim(A, 5), Claim(B, 6))

    notice = notice_of(child, fault, slot.snapshot())

    assert (notice.running, notice.held) == ((Claim(A, 5), Claim(B, 6)), (Claim(C, 7),))
    assert notice_of(child, KILLED, slot.snapshot()).running == ()
    # Committed meanwhile, and then the other processor has begun another.
    slot.drop(0)
    assert notice_of(child, fault, slot.snapshot()).running == (Claim(B, 6),)
    slot.start(1, C.encode(), b"t", 1, 7, 1.0, 0.0)
    assert notice_of(child, fault, slot.snapshot()).running == (Claim(C, 7),)


def test_a_task_that_was_claimed_again_is_told_by_its_claims(child: Child, slot: WorkerSlot) -> None:
    slot.hold(3, A.encode(), 9, 1.0)

    notice = notice_of(child, KILLED, slot.snapshot())

    assert notice.running == (Claim(A, 5),)
    assert notice.held == (Claim(B, 6), Claim(C, 7), Claim(A, 9))


def test_the_kernel_is_named_if_it_was_out_of_memory(child: Child) -> None:
    cause = cause_of(child, KILLED, PostMortem(oom_killed=True))
    assert cause == "killed by signal 9 (SIGKILL): the kernel was out of memory"
