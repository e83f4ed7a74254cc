"""Reloading: code and configuration are read anew, with no gap. Runs in the master, and never waits.

1. The configuration is read. What cannot change while the node lives refuses all of it.
2. A new template imports the handlers, beside the old one, which goes on making workers meanwhile.
3. One worker and one api process of the new generation get ready: the proof that it works.
4. Only now is it adopted: the template is replaced, then place by place the api processes and the workers,
   each up before its predecessor leaves; a keeper with the new configuration follows the old one.

Whatever fails before 4 leaves everything as it was, also what takes too long: a template, whoever imports
and a start hook have `import_timeout`, any other `boot_timeout`, be Redis away or not. A replacement that was
under way for another reason is put off for 3, since the new code may be what it needs. After 4 nothing is
given up: who dies before it is ready is tried again, while its predecessor goes on, until another reload.
"""

from __future__ import annotations

import traceback
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Final

from prefork_q.errors import ConfigurationError
from prefork_q.events import Events, mask_url
from prefork_q.ipc.scoreboard import Scoreboard, boot_time
from prefork_q.master.children import API, WORKER, Child, Place
from prefork_q.master.family import Family
from prefork_q.master.settings import Generation, Reading, Reread
from prefork_q.master.succession import Steps, Succession, is_over

LOOK: Final = 0.02
"""Seconds between two looks for what nobody tells: that a worker has begun to drain."""
PARTING: Final = 2.0
"""Seconds to wait for all who were replaced to have stopped accepting anything; they go on leaving."""


Birth = Generator[None, None, Child]
"""Steps that end with a process, which is ready or gone."""


class NotWorking(Exception):
    """The new generation does not work; with the reason and, if there is one, a traceback.

    Both may have the words of somebody's code or configuration, and are shown in the status: passwords in
    them are masked.
    """

    def __init__(self, reason: str, traceback: str = "") -> None:
        self.reason = mask_url(reason)
        self.traceback = mask_url(traceback)
        super().__init__(self.reason)


@dataclass(slots=True)
class Outcome:
    """What is known of one reload. `number` counts the reloads of this node from 1."""

    number: int
    generation: int
    outcome: str = "running"
    reason: str | None = None
    traceback: str | None = None

    def shown(self) -> dict[str, Any]:
        return {
            "number": self.number,
            "outcome": self.outcome,
            "generation": self.generation,
            "reason": self.reason,
            "traceback": self.traceback,
        }


class Reloads:
    """At most one reload at a time; whoever asks meanwhile gets one more after it."""

    def __init__(
        self,
        reread: Reread | None,
        family: Family,
        succession: Succession,
        board: Scoreboard,
        events: Events,
    ) -> None:
        self._reread = reread
        self._family = family
        self._succession = succession
        self._board = board
        self._events = events
        self._steps: Steps | None = None
        self._last: Outcome | None = None
        self._is_wanted = False
        self._is_looking = False
        self._began_at = 0.0
        self._abandoned: list[Place] = []
        """Places whose replacement, for another reason, a reload has put off."""

    @property
    def is_running(self) -> bool:
        return self._steps is not None

    @property
    def number(self) -> int:
        """How many have begun."""
        return 0 if self._last is None else self._last.number

    def request(self) -> int:
        """Ask for a reload; return the number of the one that will have read what is on disk now."""
        self._is_wanted = True
        return self.number + 1

    def carry_on(self) -> None:
        """Take the steps that can be taken now."""
        if self._family.is_closing:
            self._abandon()
            return
        if self._steps is None and self._is_wanted:
            self._begin()
        if self._steps is None or self._last is None:
            return
        try:
            if is_over(self._steps):
                self._steps = None
                self._last.outcome = "done"
                seconds = round(boot_time() - self._began_at, 3)
                self._events.emit("reloaded", gen=self._last.generation, seconds=seconds)
        except NotWorking as failure:
            self._failed(self._last, failure)
        except ConfigurationError as error:
            self._failed(self._last, NotWorking(*_parts(str(error))))

    def next(self) -> float | None:
        """When there is something to do without anything having happened."""
        if self._is_wanted and self._steps is None:
            return boot_time()
        return boot_time() + LOOK if self._is_looking and self._steps is not None else None

    def shown(self) -> dict[str, Any] | None:
        """Return what is known of the last reload, as plain JSON."""
        return None if self._last is None else self._last.shown()

    # -- begin and end -------------------------------------------------------------------------------

    def _begin(self) -> None:
        self._is_wanted = self._is_looking = False
        self._abandoned = []
        generation = self._family.current.number + 1
        self._last = Outcome(self.number + 1, generation)
        self._began_at = boot_time()
        self._events.emit("reload_began", gen=generation)
        self._steps = self._reloading(generation)

    def _failed(self, outcome: Outcome, failure: NotWorking) -> None:
        self._steps = None
        for place in self._family.slots.places():
            if place.heir is not None and place.heir.generation == outcome.generation:
                self._succession.dismiss(place.heir)
        outcome.outcome, outcome.reason, outcome.traceback = "failed", failure.reason, failure.traceback
        current = self._family.current.number
        for place in (*self._family.slots.apis, *self._family.slots.workers):
            is_old = place.child is not None and place.child.generation != current
            if is_old or place in self._abandoned:
                self._succession.replace(place)
        self._events.emit(
            "reload_failed", level="error", gen=outcome.generation, reason=failure.reason,
            traceback=failure.traceback or None, detail=f"generation {current} goes on",
        )  # fmt: skip

    def _abandon(self) -> None:
        self._is_wanted = False
        if self._steps is not None and self._last is not None:
            self._steps = None
            self._last.outcome, self._last.reason = "failed", "the node stops"

    # -- the steps -----------------------------------------------------------------------------------

    def _reloading(self, number: int) -> Steps:
        reading = self._read()
        generation = Generation(number, reading.settings, reading.entrypoints)
        self._family.forget_unsafe(number)
        template = yield from self._new_template(generation)
        yield from self._proof(generation, template)
        self._adopt(generation, reading)
        yield from self._replace_all(number)
        yield from self._parting()

    def _read(self) -> Reading:
        if self._reread is None:
            current = self._family.current
            return Reading(current.settings, current.entrypoints)
        try:
            return self._reread()
        except ConfigurationError:
            raise
        except Exception as error:
            # Whatever somebody's file leads to, the node goes on.
            reason = f"the configuration cannot be read: {error!r}"
            raise NotWorking(reason, traceback.format_exc()) from error

    def _new_template(self, generation: Generation) -> Birth:
        place = self._family.slots.template
        while True:
            could_preload = self._family.may_preload(generation)
            heir = yield from self._born(place, generation, None)
            if heir.is_ready:
                return heir
            # It may have said that it must not be forked: then it comes again, and imports nothing.
            if self._family.may_preload(generation) == could_preload:
                raise _why(heir)

    def _proof(self, generation: Generation, template: Child) -> Steps:
        slots = self._family.slots
        for place in (*slots.apis[:1], *slots.workers[:1]):
            until = boot_time() + generation.settings.boot_timeout
            while self._succession.is_filling(place) and boot_time() < until:
                yield
            # The new code may be what mends it.
            if self._succession.abandon(place):
                self._abandoned.append(place)
            heir = yield from self._born(place, generation, template)
            if not heir.is_ready:
                raise _why(heir)
            if template.cause is not None:
                raise _why(template)

    def _born(self, place: Place, generation: Generation, template: Child | None) -> Birth:
        heir = self._succession.bear_heir(place, generation, template)
        if heir is None:
            raise NotWorking(f"{place.name}: {place.last_cause}")
        yield from self._succession.until_settled(heir)
        return heir

    def _adopt(self, generation: Generation, reading: Reading) -> None:
        family, succession = self._family, self._succession
        before = family.current.settings
        family.adopt(generation)
        reading.adopt()
        succession.hand_over(family.slots.template)
        for place in family.slots.places():
            if place.heir is not None and place.heir.generation == generation.number:
                succession.hand_over(place)
        for place in (*family.slots.apis, *family.slots.workers):
            # It would take the place with the old code, after the reload is over if nobody has the place now.
            if place.heir is not None:
                succession.abandon(place)
        if reading.is_changed:
            succession.renew_keeper()
        after = generation.settings
        if after.workers != before.workers:
            succession.resize(WORKER, after.workers)
        succession.resize(API, after.api_processes)
        for place in family.slots.workers:
            succession.hurry_leaving(place)
        if reading.is_changed and family.slots.watcher is not None:
            succession.replace(family.slots.watcher)
        # Whoever died of the old code need not wait any longer.
        for place in family.slots.places():
            place.due_at = 0.0

    def _replace_all(self, number: int) -> Steps:
        while (place := self._next_old(number)) is not None:
            failures = place.backoff.failures
            self._succession.replace(place)
            # One that leaves of its own accord as soon as it has come is of the new generation all the same.
            while self._succession.is_replacing(place) and _is_other(place, number):
                # Without a template nobody is made, and nobody fails.
                template = self._family.slots.template
                failing = place if place.backoff.failures > failures else template
                if self._is_wanted and (failing is place or template.is_failing):
                    # Whoever asks for another reload may have mended that.
                    cause = f"{failing.last_cause}; another reload was asked for"
                    raise NotWorking(f"{failing.name} of the new generation cannot start: {cause}")
                yield

    def _next_old(self, number: int) -> Place | None:
        slots = self._family.slots
        for place in (*slots.apis, *slots.workers):
            if place.child is not None and place.child.generation != number:
                return place
        return None

    def _parting(self) -> Steps:
        """Wait until nobody of an older generation accepts anything more."""
        self._is_looking = True
        until = boot_time() + PARTING
        while boot_time() < until and any(map(self._accepts, self._family.slots.children(API, WORKER))):
            yield
        self._is_looking = False

    def _accepts(self, child: Child) -> bool:
        if not child.stopping or child.cell is None:
            return False
        return child.role == API or self._board.worker(child.cell).state == "ready"


def _is_other(place: Place, number: int) -> bool:
    """Whether nobody of that generation has the place."""
    return place.child is None or place.child.generation != number


def _why(child: Child) -> NotWorking:
    if child.farewell is not None:
        return NotWorking(child.farewell.reason, child.farewell.traceback)
    cause = child.killed_for or child.cause or "was not wanted any more"
    return NotWorking(f"{child.place.name} of the new generation: {cause}")


def _parts(text: str) -> tuple[str, str]:
    """Return the first line, and the whole if there is more."""
    first = text.strip().splitlines()[0] if text.strip() else "the configuration cannot be read"
    return first, text if "\n" in text.strip() else ""
