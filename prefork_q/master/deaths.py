"""Ends of processes: their causes in words, and the notices that the keeper must acknowledge. Pure."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from prefork_q.ipc.messages import Claim, DeathNotice, TimedOut
from prefork_q.ipc.stats import SlotSnapshot
from prefork_q.master.children import Child

MAX_EMPTY_NOTICES = 1_000
"""Notices without a claim that are kept while no keeper acknowledges; those with claims are all kept."""

FAULTS: Final = frozenset(
    {
        signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP,
        signal.SIGSYS,
    }
)  # fmt: skip
"""Signals by which native code ends its own process. They reach any of its threads, perhaps a little late."""


@dataclass(frozen=True, slots=True)
class Exit:
    """How a process ended, as the kernel told."""

    exit_code: int | None
    signal: int | None
    peak_rss_bytes: int | None = None

    @classmethod
    def of(cls, wait_status: int, peak_rss_kib: int = 0) -> Exit:
        """Return the value for what wait4(2) gave."""
        code = os.waitstatus_to_exitcode(wait_status)
        peak = peak_rss_kib * 1024 or None
        return cls(None, -code, peak) if code < 0 else cls(code, None, peak)

    def __str__(self) -> str:
        if self.signal is None:
            return f"exited {self.exit_code}"
        try:
            return f"killed by signal {self.signal} ({signal.Signals(self.signal).name})"
        except ValueError:
            return f"killed by signal {self.signal}"


@dataclass(frozen=True, slots=True)
class PostMortem:
    """What is known of a worker's death beside how it ended.

    `timed_out`: the tasks that it was killed for; `stack`: of the thread that brought it down.
    """

    timed_out: tuple[TimedOut, ...] = ()
    stack: str = ""
    oom_killed: bool = False


NOTHING: Final = PostMortem()


def cause_of(child: Child, exit: Exit, post_mortem: PostMortem = NOTHING) -> str:
    """Return the sentence for log, status and death notice."""
    if child.retires_for is not None and exit.exit_code == 0:
        return f"recycled: {child.retires_for}"
    reason = child.killed_for or (child.farewell.reason if child.farewell else None)
    if post_mortem.oom_killed:
        reason = "the kernel was out of memory"
    return f"{exit}: {reason}" if reason else str(exit)


def label_of(child: Child, exit: Exit) -> str:
    """Return the bounded word for the metric of restarts."""
    if child.killed_for is not None:
        return child.killed_as
    if not child.is_ready:
        return "birth"
    if exit.signal is not None:
        return "signal"
    if exit.exit_code != 0:
        return "exited"
    return "drained" if child.retires_for is None else "recycled"


def notice_of(
    child: Child, exit: Exit, slot: SlotSnapshot, post_mortem: PostMortem = NOTHING, now: float = 0.0
) -> DeathNotice:
    """Return what the keeper has to know to give back what a dead worker held.

    Nothing is charged to any task if the master killed the worker for its own reasons, nor if it had come to
    the end of a drain: then it says so, leaves what still runs in its slot, and exits 0. But what it was
    killed for is: a task over its time limit, all that ran if it took too much memory. One that dies while
    it drains has died of what it ran. One that dies by itself with nothing in a handler (of a fault, of an
    exception in its own code) has died of what a handler left behind just before: else nothing would bound
    how often that happens.
    `now`: boot time.
    """
    ended_its_drain = slot.state == "ended" and exit.exit_code == 0
    late = {Claim(entry.id, entry.token) for entry in post_mortem.timed_out}
    holds = {Claim(one.id, one.token) for one in slot.holds} - late
    running = {Claim(one.id, one.token) for one in slot.running} - late
    if not running and (exit.signal in FAULTS or (exit.exit_code is not None and not ended_its_drain)):
        running = {Claim(one.id, one.token) for one in slot.left} & holds
    return DeathNotice(
        incarnation=child.incarnation,
        slot=child.place.number,
        cause=cause_of(child, exit, post_mortem),
        signal=exit.signal,
        exit_code=exit.exit_code,
        drained=not child.is_charged and (child.killed_for is not None or ended_its_drain),
        running=tuple(sorted(running, key=_age)),
        held=tuple(sorted(holds - running, key=_age)),
        peak_rss_bytes=exit.peak_rss_bytes,
        pid=child.pid,
        generation=child.generation,
        timed_out=post_mortem.timed_out,
        ran={
            one.id: max(0.0, now - one.started_at)
            for one in (*slot.left, *slot.running)
            if Claim(one.id, one.token) in running | late
        },
        oom_killed=post_mortem.oom_killed,
        stack=post_mortem.stack,
    )


def _age(claim: Claim) -> tuple[int, str]:
    """In the order of claims, and of ids, which is that of submission, among what was claimed together."""
    return claim.token, claim.id


class Notices:
    """The death notices that no keeper has acknowledged yet, the oldest first."""

    def __init__(self) -> None:
        self._open: dict[str, DeathNotice] = {}

    def add(self, notice: DeathNotice) -> None:
        self._open[notice.incarnation] = notice
        empty = [name for name, notice in self._open.items() if not _claims(notice)]
        for name in empty[: max(0, len(empty) - MAX_EMPTY_NOTICES)]:
            del self._open[name]

    def acknowledged(self, incarnation: str) -> None:
        self._open.pop(incarnation, None)

    def open(self) -> list[DeathNotice]:
        return list(self._open.values())

    def unreturned(self) -> list[Claim]:
        """Return the claims that nobody is known to have given back."""
        return [claim for notice in self._open.values() for claim in _claims(notice)]

    def __len__(self) -> int:
        return len(self._open)


def _claims(notice: DeathNotice) -> Iterable[Claim]:
    late = (Claim(entry.id, entry.token) for entry in notice.timed_out)
    return (*late, *notice.running, *notice.held)
