"""Hard time limits: whose process has to be killed for which tasks. Pure: no clock, no calls.

A worker enters the deadline of each attempt (time limit and grace) in its slot when it starts. The master
looks, has the stacks taken a little before, and kills. What the verdict is, the slot says after waitpid: a
task that finished in the last moment is not timed out. Time for which the node did not run does not count.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from prefork_q.ipc.messages import TimedOut
from prefork_q.ipc.stats import Running

LOOK: Final = 1.0
"""Seconds between two looks at most: a deadline that is nearer than that when it is set may be met late."""
LEAD: Final = 0.3
"""Seconds before the deadline at which the stacks are asked for."""
MAX_PAUSES: Final = 64


@dataclass(frozen=True, slots=True)
class Verdict:
    """An attempt that has passed its hard limit, and the processor that runs it."""

    processor: int
    id: str
    token: int

    @classmethod
    def of(cls, entry: Running) -> Verdict:
        return cls(entry.processor, entry.id, entry.token)


class Pauses:
    """The times in which the node stood still."""

    def __init__(self) -> None:
        self._pauses: list[tuple[float, float]] = []

    def add(self, ended_at: float, seconds: float) -> None:
        """It stood still for so long, until then."""
        self._pauses.append((ended_at, seconds))
        if len(self._pauses) > MAX_PAUSES:
            (_, oldest), (at, older), *rest = self._pauses
            self._pauses = [(at, oldest + older), *rest]

    def since(self, at: float) -> float:
        """Return the seconds for which the node stood still after that moment."""
        return sum(seconds for ended_at, seconds in self._pauses if ended_at > at)


class HardLimits:
    """Looks at what runs, and says what is due."""

    def __init__(self, pauses: Pauses) -> None:
        self._pauses = pauses
        self.next_look = 0.0
        """When there may be something new."""

    def begin_look(self, now: float) -> None:
        self.next_look = now + LOOK

    def look(self, running: Iterable[Running], now: float) -> tuple[bool, list[Verdict]]:
        """Return whether the stacks of this worker are to be taken, and which attempts have to be ended."""
        is_near, passed = False, []
        for entry in running:
            if not entry.deadline:
                continue
            deadline = entry.deadline + self._pauses.since(entry.started_at)
            if now >= deadline:
                passed.append(Verdict.of(entry))
            elif now >= deadline - LEAD:
                is_near = True
                self.next_look = min(self.next_look, deadline)
            else:
                self.next_look = min(self.next_look, deadline - LEAD)
        return is_near, passed


def timed_out(
    verdicts: Iterable[Verdict], running: Iterable[Running], stacks: Mapping[int, str]
) -> tuple[TimedOut, ...]:
    """Return those of the verdicts that hold: what the dead process's slot still shows in a handler.

    `stacks`: texts by processor.
    """
    due = set(verdicts)
    return tuple(
        TimedOut(
            entry.id,
            entry.token,
            limit=round(entry.deadline - entry.started_at, 3),
            delay=entry.delay,
            stack=stacks.get(entry.processor, ""),
        )
        for entry in running
        if Verdict.of(entry) in due
    )
