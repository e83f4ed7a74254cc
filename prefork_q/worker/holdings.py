"""Everything that this worker holds, from the answer that claimed it to the one that settled it.

Main thread only. It keeps the scoreboard's table of held tasks, and knows how much more there is
room for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final

from prefork_q.ipc.slot import WorkerSlot
from prefork_q.leases import Alike
from prefork_q.worker.held import Held, Lot, Outcome
from prefork_q.worker.pace import Paces
from prefork_q.worker.queues import QueueOrder
from prefork_q.worker.routes import Route

MAX_OUTCOMES: Final = 256
"""Outcomes in one call."""
MAX_BYTES: Final = 1 << 20
"""Bytes of results and errors in one call; a single one may be larger."""


class Holdings:
    """`unfinished` are the tasks that wait for a processor or are in one's hands."""

    def __init__(
        self, slot: WorkerSlot, routes: Mapping[bytes, Route], queues: QueueOrder, paces: Paces
    ) -> None:
        self._slot = slot
        self._routes = routes
        self._queues = queues
        self._costs = paces.costs
        # Low places first: readers of the scoreboard look at few pages.
        self._free = list(range(slot.held - 1, -1, -1))
        self._all: set[Held] = set()
        self.unfinished = 0
        self.cost = 0.0
        """Seconds that the unfinished tasks of fast types are expected to run, together."""

    def __len__(self) -> int:
        return len(self._all)

    @property
    def free(self) -> int:
        """How many more the scoreboard's table can hold."""
        return len(self._free)

    def started(self) -> list[Held]:
        """Return those that a processor has taken."""
        return [held for held in self._all if held.is_started]

    def under_way(self) -> int:
        """Return how many a processor has taken whose outcome is not on its way to Redis."""
        return sum(held.is_started and not held.is_over for held in self._all)

    def take(self, lots: Sequence[Alike], token: int, claimed_at: float, now: float) -> list[Held]:
        """Take in claimed tasks; `claimed_at` is a boot time not after their leases began."""
        hold, free = self._slot.hold, self._free.pop
        taken: list[Held] = []
        for alike in lots:
            type, queue, attempt, max_attempts, crashes, timeout_ms, tasks = alike
            route, cost = self._routes.get(type), self._costs.get(type)
            timeout = timeout_ms / 1_000 or (route.timeout if route is not None else None) or 0.0
            lot = Lot(
                type, queue, attempt, max_attempts, crashes, timeout, token, route, claimed_at, now, cost
            )
            for id, body, _ in alike.each():
                index = free()
                hold(index, id, token, claimed_at)
                taken.append(Held(lot, id, body, index))
            waits = tasks[2::3]
            self._slot.observe_waits(self._queues.index(queue), [wait_ms / 1_000 for wait_ms in waits])
            if cost is not None:
                self.cost += cost * len(waits)
        self.unfinished += len(taken)
        self._all.update(taken)
        return taken

    def take_batch(self, outbox: deque[Outcome]) -> list[Outcome]:
        """Take from the outbox what goes into one call; of each task only the first outcome counts."""
        batch: list[Outcome] = []
        size = 0
        while outbox and len(batch) < MAX_OUTCOMES:
            outcome = outbox[0]
            held = outcome.held
            if held.is_over:
                outbox.popleft()
                continue
            size += len(outcome.text)
            if batch and size > MAX_BYTES:
                break
            outbox.popleft()
            held.is_over = True
            self.unfinished -= 1
            cost = held.lot.cost
            if cost is not None:
                self.cost -= cost
            batch.append(outcome)
        if not self.unfinished:
            # Rounding must not add up.
            self.cost = 0.0
        return batch

    def settle(self, batch: Sequence[Outcome]) -> None:
        """Let go of tasks whose outcomes Redis has answered."""
        drop, let_go, free = self._slot.drop, self._all.remove, self._free.append
        for outcome in batch:
            held = outcome.held
            let_go(held)
            drop(held.index)
            free(held.index)
