"""Replacing processes without a gap: the new one is up before the old one is told to leave.

Runs in the master and never waits: each replacement is a list of steps that the master's loop carries on.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Final

from prefork_q.events import Events
from prefork_q.ipc.messages import Drain
from prefork_q.ipc.scoreboard import boot_time
from prefork_q.master.children import API, KEEPER, OUT_OF_TEMPLATE, TEMPLATE, Child, Place, Slots
from prefork_q.master.family import Family
from prefork_q.master.settings import Generation
from prefork_q.master.stop import API_END

OWN_END: Final = 0.5
"""Seconds that a process is to be gone before it would be killed."""
TEMPLATE_END: Final = 2.0
"""Seconds for a template: it may be in the middle of a fork, which has a time limit of its own."""
KEEPER_END: Final = 3.0
"""Seconds for a keeper to give back what it was told, a small part of a lease."""
ASK_AGAIN: Final = 1.0
"""Seconds for which an api process that was replaced goes on to answer on connections that are open: a
client that is just about to use one would find it closed."""

RESERVED: Final = 4
"""There is to be a free row of the scoreboard for each so many places."""

Steps = Iterator[None]
"""Steps that are taken one after the other; each yield waits for the next turn of the loop."""


def is_over(steps: Steps) -> bool:
    """Take the steps that can be taken now; return whether it was the last."""
    for _ in steps:
        return False
    return True


class Succession:
    """All replacements that are under way."""

    def __init__(self, family: Family, events: Events) -> None:
        self._family = family
        self._events = events
        self._under_way: dict[Place, Steps] = {}

    @property
    def _slots(self) -> Slots:
        return self._family.slots

    # -- one place after the other ---------------------------------------------------------------------

    def replace(self, place: Place) -> None:
        """Begin to replace who has this place, unless that is under way."""
        if place not in self._under_way:
            self._under_way[place] = self._replacing(place)

    def is_replacing(self, place: Place) -> bool:
        return place in self._under_way

    def hurry(self, place: Place) -> None:
        """Begin to replace who has this place, and who leaves of its own accord has no more time for that."""
        if place.child is not None:
            place.child.is_hurried = True
        self.replace(place)

    def hurry_leaving(self, place: Place) -> None:
        """Tell those to leave that have been replaced and had all their time."""
        for child in place.leaving:
            if not child.stopping:
                self._tell_to_leave(child)

    def is_filling(self, place: Place) -> bool:
        """Whether nobody has this place, and an heir is well on its way."""
        return place in self._under_way and place.child is None and place.heir is not None and (
            place.backoff.failures == 0
        )  # fmt: skip

    def abandon(self, place: Place) -> bool:
        """Give up replacing who has this place, who keeps it; return whether that was under way."""
        if self._under_way.pop(place, None) is None:
            return False
        if place.heir is not None:
            self.dismiss(place.heir)
        return True

    def carry_on(self) -> None:
        """Take the steps that can be taken now."""
        for place, steps in list(self._under_way.items()):
            # Its last step may have begun another replacement.
            if is_over(steps) and self._under_way.get(place) is steps:
                del self._under_way[place]

    def next(self) -> float | None:
        """When there is something to do without anything having happened; None for never."""
        now = boot_time()
        return min((place.due_at for place in self._under_way if place.due_at > now), default=None)

    def _replacing(self, place: Place) -> Steps:
        old = place.child
        # If it has ended meanwhile, somebody else has its place already.
        while not (self._family.is_closing or place.is_retired) and place.child in (old, None):
            heir = self._bear(place)
            if heir is None:
                yield
                continue
            yield from self.until_settled(heir)
            if heir.is_ready and place.heir is heir:
                self.hand_over(place)
                return

    def _bear(self, place: Place) -> Child | None:
        now = boot_time()
        template = self._slots.template.child
        is_possible = place.role not in OUT_OF_TEMPLATE or (
            template is not None and template.state == "ready"
        )
        if place.due_at > now or place.heir is not None or not is_possible or self._is_busy_retiring(place):
            return None
        return self.bear_heir(place, self._family.current, template)

    def _is_busy_retiring(self, place: Place) -> bool:
        """Whether a worker that leaves of its own accord, and may take its time, still has all hands full.

        What it runs goes on beside the heir's work, and what those before it run: together that may be
        less than another worker, else a queue of long tasks would make ever more processes.
        """
        old = place.child
        if old is None or not self._leaves_by_itself(old):
            return False
        # Some rows of the scoreboard are kept for whoever dies.
        if self._family.free_rows <= len(self._slots.workers) // RESERVED:
            return True
        return sum(map(self._family.running_in, (old, *place.leaving))) >= old.threads

    def _leaves_by_itself(self, child: Child) -> bool:
        """Whether a worker has had its day and drains, which a reload would not wait for."""
        is_current = child.generation == self._family.current.number
        return child.retires_for is not None and is_current and not child.is_hurried

    # -- its parts ---------------------------------------------------------------------------------------

    def bear_heir(self, place: Place, generation: Generation, template: Child | None) -> Child | None:
        """Make a process that shall take over a place; None if that cannot be done now."""
        heir = self._family.bear(place, boot_time(), generation, template)
        if heir is not None:
            place.expects(heir)
        return heir

    def until_settled(self, heir: Child) -> Steps:
        """Wait until it is ready, or gone."""
        while not heir.is_ready and heir.cause is None and not heir.stopping:
            yield

    def hand_over(self, place: Place) -> None:
        """The heir has the place from now on; who had it before is told to leave.

        A worker that leaves of its own accord is not hurried: it claims nothing more, and ends when nothing
        runs in it.
        """
        old = place.child
        place.handed_over()
        if old is not None and not self._leaves_by_itself(old):
            self._tell_to_leave(old)
        if place.child is not None and place.child.retires_for is not None:
            # It has said so before it had the place.
            self._under_way[place] = self._replacing(place)

    def resize(self, role: str, number: int) -> None:
        """Have so many workers or api processes; those that are too many leave."""
        for place in self._slots.resize(role, number):
            for child in (place.child, place.heir):
                if child is not None:
                    self.dismiss(child)
            self.hurry_leaving(place)

    def dismiss(self, child: Child) -> None:
        """Tell a process to leave that nobody has taken over from."""
        child.place.dismissed(child)
        self._tell_to_leave(child)

    def renew_keeper(self) -> None:
        """Have another keeper, after the one that there is: two of them would give back the same."""
        keeper = self._slots.keeper.child
        if keeper is not None and not keeper.stopping:
            self._tell_to_leave(keeper)

    def _tell_to_leave(self, child: Child) -> None:
        seconds = self._seconds(child.role)
        was_ready, child.stopping = child.is_ready, True
        family = self._family
        family.deadlines.drop(child.incarnation)
        family.deadlines.set("leave", child.incarnation, boot_time() + seconds + OWN_END)
        family.tell(child, Drain(seconds, ASK_AGAIN if child.role == API else 0.0))
        # Who is not ready may be busy with an import and not read yet; it holds nothing.
        if not was_ready and child.is_greeted:
            family.send_signal(child, signal.SIGTERM)
        self._events.emit("replaced" if was_ready else "dismissed", level="debug", **child.who())

    def _seconds(self, role: str) -> float:
        if role == TEMPLATE:
            return TEMPLATE_END
        if role == KEEPER:
            return KEEPER_END
        drain_timeout = self._family.current.settings.drain_timeout
        return max(API_END, drain_timeout) if role == API else drain_timeout
