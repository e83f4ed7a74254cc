"""What a handler's TaskContext reaches while its attempt runs. Called in the handler's threads."""

from __future__ import annotations

from collections.abc import Callable

from prefork_q.ipc.scoreboard import boot_time
from prefork_q.ipc.slot import WorkerSlot
from prefork_q.worker.held import Held


class AttemptRuntime:
    """The connection of one attempt to its worker; see `context.Runtime`.

    What it answers comes from the scoreboard, where the keeper notes renewals, losses and
    cancellations; so asking costs nothing.
    """

    __slots__ = ("_held", "_lease", "_report", "_slot")

    def __init__(
        self, held: Held, slot: WorkerSlot, lease: float, report: Callable[[Held, float, str], None]
    ) -> None:
        self._held = held
        self._slot = slot
        self._lease = lease
        self._report = report

    def report_progress(self, fraction: float, note: str) -> None:
        """Pass on how far the handler is."""
        self._report(self._held, fraction, note)

    def is_cancelled(self) -> bool:
        """Whether somebody asked for the task's cancellation."""
        return self._slot.is_cancel_requested(self._held.index, self._held.lot.token)

    def is_lease_valid(self) -> bool:
        """Whether the lease still stands, as far as this node knows."""
        return is_lease_valid(self._held, self._slot, self._lease, boot_time())


def is_lease_valid(held: Held, slot: WorkerSlot, lease: float, now: float) -> bool:
    """Whether the lease of a task stands at boot time `now`, by what the keeper noted in the slot.

    Once the task has ended its place in the slot is another's, so the answer is no.
    """
    if held.is_over or slot.is_lost(held.index, held.lot.token):
        return False
    return now < slot.lease_started(held.index) + lease
