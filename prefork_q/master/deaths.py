"""Ends of processes: their causes in words, and the notices that the keeper must acknowledge. Pure."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from dataclasses import dataclass

from prefork_q.ipc.messages import Claim, DeathNotice
from prefork_q.ipc.stats import SlotSnapshot
from prefork_q.master.children import Child

MAX_EMPTY_NOTICES = 1_000
"""Notices without a claim that are kept while no keeper acknowledges; those with claims are all kept."""


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


def cause_of(child: Child, exit: Exit) -> str:
    """Return the sentence for log, status and death notice."""
    reason = child.killed_for or (child.farewell.reason if child.farewell else None)
    return f"{exit}: {reason}" if reason else str(exit)


def label_of(child: Child, exit: Exit) -> str:
    """Return the bounded word for the metric of restarts."""
    if child.killed_for is not None:
        return "killed"
    if not child.is_ready:
        return "birth"
    if exit.signal is not None:
        return "signal"
    return "drained" if exit.exit_code == 0 else "exited"


def notice_of(child: Child, exit: Exit, slot: SlotSnapshot) -> DeathNotice:
    """Return what the keeper has to know to give back what a dead worker held.

    Nothing is charged to any task if the master stopped or killed the worker for its own reasons, nor if
    it had come to the end of a drain of its own: then it leaves what still runs in its slot, and exits 0.
    """
    ended_its_drain = slot.state == "draining" and exit.exit_code == 0
    running = {running.id: Claim(running.id, running.token) for running in slot.running}
    held = (Claim(held.id, held.token) for held in slot.holds if held.id not in running)
    return DeathNotice(
        incarnation=child.incarnation,
        slot=child.place.number,
        cause=cause_of(child, exit),
        signal=exit.signal,
        exit_code=exit.exit_code,
        drained=child.stopping or child.killed_for is not None or ended_its_drain,
        running=tuple(running.values()),
        held=tuple(held),
        peak_rss_bytes=exit.peak_rss_bytes,
    )


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
    return (*notice.running, *notice.held)
