"""When the service manager is told what: ready, reloading, stopping, the sentence, the signs of life.

Runs in the master, in its loop, and never waits. `Vitals` is what it has to know of the node; without a
manager it is never asked for.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from prefork_q.events import Events
from prefork_q.master.sdnotify import FEEDINGS, Notifier

SENTENCE_PACE: Final = 1.0
"""Seconds between two sentences: the manager tells each one to whoever listens."""
RATE_WINDOW: Final = 5.0
"""Seconds over which the sentence's rate is taken."""
EXTENSION: Final = 10.0
"""Seconds asked for at a time, while the node starts or stops: a master that hangs then is soon noticed."""
EXTENSION_PACE: Final = 2.0
STOP_MARGIN: Final = 3.0
"""Seconds that a stop may be late by its own plan before it is not asked for more time."""


@dataclass(frozen=True, slots=True)
class Vitals:
    """How the node is. Times are boot time in seconds.

    `ended` counts attempts that ended and never falls; `pending` is None if it is not known. `troubles` are
    the reasons why the node is not what it should be. `is_sound`: a worker lives that works, or could if
    Redis were there, or is on its way where none has failed. `may_go_on_starting`: what the start waits for
    can still come by itself. `stops_until` is when a stop ends by its plan.
    """

    ready: int
    wanted: int
    running: int
    ended: int
    pending: int | None
    troubles: tuple[str, ...] = ()
    is_sound: bool = True
    may_go_on_starting: bool = True
    stops_until: float = 0.0


@dataclass(frozen=True, slots=True)
class Phase:
    """What the node does: `state` as in the status; `reload` counts the reloads that have begun."""

    state: str
    reload: int = 0
    is_reloading: bool = False


class Herald:
    """The master's voice towards the service manager; `turn` is called in each turn of its loop."""

    def __init__(self, notifier: Notifier, look: Callable[[float], Vitals], events: Events) -> None:
        self._notifier = notifier
        self._look = look
        self._events = events
        self._phase: Phase | None = None
        self._is_ready = False
        self._is_stopping = False
        self._is_starving = False
        self._reload = 0
        self._is_reloading = False
        self._told = ""
        # Long ago: all of it is due with the first turn.
        self._told_at = self._extended_at = self._fed_at = -math.inf
        self._ended: deque[tuple[float, int]] = deque()

    def turn(self, phase: Phase, now: float) -> None:
        """Tell what is to be told now."""
        if not self._notifier.is_open:
            return
        self._notifier.retry()
        if phase == self._phase and now < self.next():
            return
        self._phase = phase
        vitals = self._look(now)
        self._note(vitals, now)
        self._tell_changes(phase, vitals, now)
        self._extend(phase, vitals, now)
        self._feed(phase, vitals, now)
        if now >= self._told_at + SENTENCE_PACE:
            self._tell(phase, vitals, now)

    def next(self) -> float:
        """When there is something to tell without anything having happened."""
        if not self._notifier.is_open:
            return math.inf
        due = self._told_at + SENTENCE_PACE
        pace = self._feeding_pace
        return due if pace is None else min(due, self._fed_at + pace)

    def gave_up(self, reason: str) -> None:
        """The last sentence is why the node ended by itself."""
        self._notifier.status(f"gave up: {reason}")

    def close(self) -> None:
        self._notifier.close()

    # -- the steps -----------------------------------------------------------------------------------

    def _tell_changes(self, phase: Phase, vitals: Vitals, now: float) -> None:
        if phase.state == "draining":
            if not self._is_stopping:
                self._is_stopping = True
                self._notifier.stopping(self._sentence(phase, vitals, now))
            return
        if not self._is_ready:
            if phase.state != "starting":
                self._is_ready = True
                self._reload = phase.reload
                self._notifier.ready(self._sentence(phase, vitals, now))
            return
        if phase.reload > self._reload:
            self._reload, self._is_reloading = phase.reload, True
            self._notifier.reloading("reloading")
        if self._is_reloading and not phase.is_reloading:
            self._is_reloading = False
            # Whatever came of it the node works. That a reload has failed is for who asked for it.
            self._notifier.ready(self._sentence(phase, vitals, now))

    def _extend(self, phase: Phase, vitals: Vitals, now: float) -> None:
        if now < self._extended_at + EXTENSION_PACE:
            return
        seconds = 0.0
        if phase.state == "draining":
            seconds = min(EXTENSION, vitals.stops_until + STOP_MARGIN - now)
        elif phase.state == "starting" and vitals.may_go_on_starting:
            seconds = EXTENSION
        if seconds > 0:
            self._extended_at = now
            self._notifier.extend(seconds)

    def _feed(self, phase: Phase, vitals: Vitals, now: float) -> None:
        pace = self._feeding_pace
        if pace is None or now < self._fed_at + pace:
            return
        self._fed_at = now
        # Nobody becomes sound any more in a drain, which has an end of its own.
        if vitals.is_sound or phase.state in ("starting", "draining"):
            self._is_starving = False
            self._notifier.alive()
        elif not self._is_starving:
            self._is_starving = True
            self._events.emit(
                "watchdog_not_fed", level="error", watchdog_s=self._notifier.watchdog,
                reason="; ".join(vitals.troubles) or "no worker is sound",
            )  # fmt: skip

    @property
    def _feeding_pace(self) -> float | None:
        watchdog = self._notifier.watchdog
        return None if watchdog is None else watchdog / FEEDINGS

    def _tell(self, phase: Phase, vitals: Vitals, now: float) -> None:
        sentence = self._sentence(phase, vitals, now)
        self._told_at = now
        if sentence != self._told:
            self._told = sentence
            self._notifier.status(sentence)

    # -- the sentence --------------------------------------------------------------------------------

    def _sentence(self, phase: Phase, vitals: Vitals, now: float) -> str:
        workers = f"{vitals.ready}/{vitals.wanted} workers"
        if phase.state == "draining":
            left = max(0.0, vitals.stops_until - now)
            tasks = "1 task" if vitals.running == 1 else f"{vitals.running} tasks"
            return f"draining: {tasks} running, at most {left:.0f} s left"
        if phase.state == "starting":
            return "; ".join([f"starting: {workers} ready", *vitals.troubles])
        numbers = [workers, f"{self._rate():,.0f} tasks/s"]
        if vitals.pending is not None:
            numbers.append(f"{vitals.pending:,} pending")
        state = "" if phase.state == "running" else f"{phase.state}: "
        return "; ".join([state + ", ".join(numbers), *vitals.troubles])

    def _note(self, vitals: Vitals, now: float) -> None:
        """Remember the count of what ended, about once a second."""
        ended = self._ended
        if not ended or now >= ended[-1][0] + SENTENCE_PACE:
            ended.append((now, vitals.ended))
        while len(ended) > 2 and ended[1][0] <= now - RATE_WINDOW:
            ended.popleft()

    def _rate(self) -> float:
        (begin, before), (end, after) = self._ended[0], self._ended[-1]
        return (after - before) / (end - begin) if end > begin else 0.0
