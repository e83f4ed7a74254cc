"""The end of the node, in steps that the master's loop carries on: it never waits for any of them.

Workers, template and api are told at once; when they are gone the keeper gives back what is left and
goes; then the store. Whoever is late by the plan is killed.
"""

from __future__ import annotations

import signal

from prefork_q.events import Events
from prefork_q.ipc.messages import Drain
from prefork_q.master.children import API, KEEPER, STORE, TEMPLATE, WATCHER, WORKER, Child
from prefork_q.master.family import Family
from prefork_q.master.stop import HAND_BACK, StopPlan

KEEPER_IDLE_END = 1.0
"""Seconds that the keeper has when nothing is known that it would have to give back."""

API_PATIENCE = 0.5
"""Seconds for which a connection that is kept open may have one more request: where its socket outlives the
service no client need see the restart."""


class Stopping:
    """One stop of one node; `hurry` shortens it."""

    def __init__(self, plan: StopPlan, family: Family, events: Events) -> None:
        self.plan = plan
        self._family = family
        self._slots = family.slots
        self._events = events
        self._keeper_until = plan.keeper_until

    @property
    def is_done(self) -> bool:
        """Whether nobody is left, and nobody has to come once more to give back."""
        return not self._slots.children() and not self._keeper_may_return

    def begin(self, now: float) -> None:
        """Tell everybody."""
        self._family.is_closing = True
        seconds = self.plan.worker_seconds(now)
        workers = self._slots.children(WORKER)
        self._events.emit("drain_began", seconds=round(seconds, 3), workers=len(workers))
        for child in self._slots.children(WORKER, API, TEMPLATE, WATCHER):
            self._ask(child, seconds)

    def hurry(self, now: float) -> None:
        """Asked for once more: nobody gets any more time."""
        self.plan = self.plan.hurried(now)
        self._keeper_until = min(self._keeper_until, self.plan.keeper_until)
        self._events.emit("drain_hurried")

    def carry_on(self, now: float) -> None:
        """Take the steps that are due."""
        plan = self.plan
        self._kill_late(now, plan.template_until, TEMPLATE)
        self._kill_late(now, plan.template_until, WATCHER)
        self._kill_late(now, plan.api_until, API)
        self._kill_late(now, plan.workers_until, WORKER)
        if not self._slots.children(WORKER, TEMPLATE):
            self._end_keeper(now)
        if not self._slots.children(WORKER, TEMPLATE, API, KEEPER) and not self._keeper_may_return:
            self._end_store()
        self._kill_late(now, self._keeper_until, KEEPER)
        self._kill_late(now, plan.store_until, STORE)
        if now >= self._keeper_until:
            self._family.keeps_keeper = False

    def next(self, now: float) -> float:
        """When `carry_on` has something to do again."""
        due = self.plan.next(now)
        return min(due, self._keeper_until) if self._keeper_until > now else due

    @property
    def _keeper_may_return(self) -> bool:
        return self._family.keeps_keeper and self._family.has_leases

    def _ask(self, child: Child, seconds: float) -> None:
        child.stopping = True
        self._family.deadlines.drop(child.incarnation)
        patience = min(API_PATIENCE, seconds / 4) if child.role == API else 0.0
        self._family.tell(child, Drain(seconds, patience))
        # Who is not ready may be busy with an import and not read yet; it holds nothing. An api process reads
        # once it was greeted, and its own answer to the signal is a drain without patience.
        is_reading = child.is_ready or (child.role == API and child.is_greeted)
        if not is_reading or child.role == WATCHER:
            self._family.send_signal(child, signal.SIGTERM)

    def _end_keeper(self, now: float) -> None:
        keeper = self._slots.keeper.child
        if keeper is None or keeper.stopping:
            return
        must_return = bool(self._family.estates.notices.unreturned())
        if not keeper.is_greeted and must_return:
            return
        keeper.stopping = True
        self._family.keeps_keeper = False
        if not must_return:
            self._keeper_until = min(self._keeper_until, now + KEEPER_IDLE_END + HAND_BACK)
        left = max(0.0, self._keeper_until - HAND_BACK / 4 - now)
        self._family.tell(keeper, Drain(left if must_return else min(left, KEEPER_IDLE_END)))
        if not keeper.is_greeted:
            self._family.kill(keeper, "not needed any more")

    def _end_store(self) -> None:
        for store in self._slots.children(STORE):
            if not store.stopping:
                store.stopping = True
                self._family.send_signal(store, signal.SIGTERM)

    def _kill_late(self, now: float, until: float, role: str) -> None:
        if now < until:
            return
        for child in self._slots.children(role):
            if child.killed_for is None:
                child.stopping = True
                self._family.kill(child, "the time to stop is over")
