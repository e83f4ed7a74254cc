"""The timetable of a stop, so that all of it ends within the drain timeout and a second. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

OWN_END: Final = 0.15
"""Seconds that a worker is to be gone before it would be killed."""
TEMPLATE_END: Final = 0.25
API_END: Final = 0.2
HAND_BACK: Final = 0.45
"""Seconds that the keeper has, after the last worker was killed, to give back what those held."""
STORE_END: Final = 0.3
"""Seconds for the store to end after that; 0.25 are left for what remains to be killed."""


@dataclass(frozen=True, slots=True)
class StopPlan:
    """When whoever still lives is killed, boot time. Each step begins at once when the one before is done."""

    began_at: float
    template_until: float
    api_until: float
    workers_until: float
    keeper_until: float
    store_until: float

    @classmethod
    def drain(cls, now: float, timeout: float) -> StopPlan:
        """A drain with so many seconds for what runs."""
        return cls._at(now, template=TEMPLATE_END, api=max(timeout, API_END), workers=timeout)

    @classmethod
    def at_once(cls, now: float) -> StopPlan:
        """Kill, give back, exit."""
        return cls._at(now, template=0.0, api=API_END, workers=0.0)

    @classmethod
    def _at(cls, now: float, *, template: float, api: float, workers: float) -> StopPlan:
        keeper_until = now + workers + HAND_BACK
        return cls(
            began_at=now,
            template_until=now + template,
            api_until=now + api,
            workers_until=now + workers,
            keeper_until=keeper_until,
            store_until=keeper_until + STORE_END,
        )

    def hurried(self, now: float) -> StopPlan:
        """The same stop, asked for once more: shortened to nothing."""
        sooner = StopPlan.at_once(now)
        return StopPlan(
            began_at=self.began_at,
            template_until=min(self.template_until, sooner.template_until),
            api_until=min(self.api_until, sooner.api_until),
            workers_until=min(self.workers_until, sooner.workers_until),
            keeper_until=min(self.keeper_until, sooner.keeper_until),
            store_until=min(self.store_until, sooner.store_until),
        )

    def worker_seconds(self, now: float) -> float:
        """What a worker is told that it has: it ends a little before it would be killed."""
        left = max(0.0, self.workers_until - now)
        return left - min(OWN_END, left / 4)

    def next(self, now: float) -> float:
        """The earliest time after now at which somebody has to be killed."""
        times = (
            self.template_until, self.api_until, self.workers_until, self.keeper_until, self.store_until,
        )  # fmt: skip
        return min((at for at in times if at > now), default=now + 0.05)
