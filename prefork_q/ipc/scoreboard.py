"""The scoreboard: shared memory in which each process of a node writes what it does.

One anonymous shared mapping, made by the master before its first fork. Writing costs a store and no
system call; it stays readable when the writer is killed. Each field has a single writer, so there are
no locks; what that means for readers is said in `slot`.
"""

from __future__ import annotations

import mmap
import time
from typing import Final

from prefork_q.ipc import stats
from prefork_q.ipc.slot import WorkerSlot, slot_words

_ROLE_WORDS: Final = 64
API_CELLS: Final = 16
_ROLES: Final = 1 + API_CELLS
"""The keeper, and api processes."""
_BEAT: Final = 0
_PENDING: Final = 1
_COUNTERS: Final = 8
_STOOD_STILL: Final = 0
"""Of the last place, the master's."""


def boot_time() -> float:
    """Seconds on the one clock that the processes of a node share: it goes on while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class RoleSlot:
    """The slot of the keeper or of an api process, its only writer.

    Its counters are never cleared: the successor of a dead keeper counts on, so nothing ever falls.
    """

    __slots__ = ("_beat", "_counters", "_floats", "_pending", "_words")

    def __init__(self, memory: mmap.mmap, at: int) -> None:
        view = memoryview(memory)
        self._words = view.cast("q")
        self._floats = view.cast("d")
        self._beat = at + _BEAT
        self._pending = at + _PENDING
        self._counters = at + _COUNTERS

    def beat(self, now: float | None = None) -> None:
        """The loop that must live turned, at boot time `now`."""
        self._floats[self._beat] = boot_time() if now is None else now

    @property
    def last_beat(self) -> float:
        """Boot time of the last beat; 0 before the first."""
        return self._floats[self._beat]

    @property
    def pending(self) -> int:
        """The pending tasks of the namespace when the keeper last counted them."""
        return self._words[self._pending]

    @pending.setter
    def pending(self, tasks: int) -> None:
        self._words[self._pending] = tasks

    def add(self, counter: int, n: int = 1) -> None:
        """Count; `counter` is one of the indexes of `stats`."""
        self._words[self._counters + counter] += n

    def counters(self) -> tuple[int, ...]:
        return tuple(self._words[self._counters : self._counters + stats.COUNTERS])


class Scoreboard:
    """All slots of a node."""

    def __init__(self, slots: int, threads: int, held: int) -> None:
        """Make the mapping, for the largest scale of the node's life.

        Args:
            slots: workers at most.
            threads: processors of each.
            held: tasks that each may have claimed at once.
        """
        self.slots = slots
        self.threads = threads
        self.held = held
        words = slot_words(threads, held)
        roles = -(-(_ROLES + 1) * _ROLE_WORDS // 512) * 512
        self._memory = mmap.mmap(-1, 8 * (roles + slots * words))
        self._floats = memoryview(self._memory).cast("d")
        self._roles = tuple(RoleSlot(self._memory, i * _ROLE_WORDS) for i in range(_ROLES))
        self._first = roles
        self._words = words
        self._workers: dict[int, WorkerSlot] = {}

    @property
    def stood_still(self) -> float:
        """The seconds in all for which the node did not run (it was stopped, or the machine slept).

        Written by the master alone, when it runs again. Time that is judged is reckoned without them.
        """
        return self._floats[_ROLES * _ROLE_WORDS + _STOOD_STILL]

    @stood_still.setter
    def stood_still(self, seconds: float) -> None:
        self._floats[_ROLES * _ROLE_WORDS + _STOOD_STILL] = seconds

    @property
    def keeper(self) -> RoleSlot:
        return self._roles[0]

    def api(self, index: int) -> RoleSlot:
        """The slot of the api process `index`; those beyond the sixteenth share the last."""
        return self._roles[min(1 + index, _ROLES - 1)]

    def roles(self) -> tuple[RoleSlot, ...]:
        return self._roles

    def worker(self, slot: int) -> WorkerSlot:
        # Made when it is used: most slots are for a scale that is never reached, and a view is large.
        if slot not in self._workers:
            if not 0 <= slot < self.slots:
                raise IndexError(f"there is no slot {slot}")
            at = self._first + slot * self._words
            self._workers[slot] = WorkerSlot(self._memory, at, slot, self.threads, self.held)
        return self._workers[slot]

    def workers(self) -> list[WorkerSlot]:
        """Return the slots that were ever opened."""
        return [self.worker(slot) for slot in range(self.slots) if self._was_opened(slot)]

    def _was_opened(self, slot: int) -> bool:
        return self._memory[8 * (self._first + slot * self._words)] != 0
