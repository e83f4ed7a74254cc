"""When a worker has had its day: it claims nothing more, ends when it is idle, and another takes over.

Asked in each turn of the fetch loop, so everything here costs next to nothing. Main thread only. A worker
that has run nothing yet is never recycled: whatever is wrong with it, the next one would be no better.
"""

from __future__ import annotations

import os
import resource
from typing import Final

from prefork_q.ipc.slot import WorkerSlot
from prefork_q.units import format_size

DESCRIPTORS: Final = 0.8
"""The share of the limit from which on descriptors count as running out."""


class Recycling:
    """Looks at the worker's own slot, and at its descriptors.

    Args:
        slot: the worker's.
        max_tasks: attempts that it may make, 0 for any number.
        max_rss: bytes by which its memory may have grown since it was ready, 0 for any.
        probe_fd: an open descriptor, to be duplicated.
    """

    def __init__(self, slot: WorkerSlot, *, max_tasks: int, max_rss: int, probe_fd: int) -> None:
        self._slot = slot
        self._max_tasks = max_tasks
        self._max_rss = max_rss
        self._probe_fd = probe_fd
        self._fd_limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]

    def reason(self, attempts: int) -> str | None:
        """Return why it is to be recycled, after so many attempts; None if it is not."""
        if not attempts:
            return None
        if self._max_tasks and attempts >= self._max_tasks:
            return f"{attempts:,} task{'s' if attempts > 1 else ''}"
        slot = self._slot
        if self._max_rss and slot.rss_bytes - slot.baseline_bytes > self._max_rss and slot.baseline_bytes:
            return format_size(self._max_rss)
        used = self._descriptors()
        if used >= self._fd_limit * DESCRIPTORS:
            return f"{used} of {self._fd_limit} descriptors"
        return None

    def _descriptors(self) -> int:
        """Return the lowest descriptor that is free: about how many are open, if they are being leaked."""
        try:
            fd = os.dup(self._probe_fd)
        except OSError:
            return self._fd_limit
        os.close(fd)
        return fd


def resident_bytes() -> int:
    """Return the resident memory of this process (proc(5), statm)."""
    with open("/proc/self/statm", "rb") as statm:
        return int(statm.read().split()[1]) * resource.getpagesize()
