"""Whether the kernel killed a worker because memory ran out: the cgroup's count of such kills.

Reads `memory.events` of the master's own cgroup (version 2), which all of the node is in. Where it cannot be
read, nothing is said.
"""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Final

WINDOW: Final = 5.0
"""Seconds that may pass from the kernel's count to the end of the process: freeing its memory takes time."""
ROOT: Final = Path("/sys/fs/cgroup")


def events_file(own: Path = Path("/proc/self/cgroup"), root: Path = ROOT) -> Path | None:
    """Return the file with the counts of this process's cgroup, None if there is none."""
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith("0::"):
            found = root / line[3:].lstrip("/") / "memory.events"
            return found if found.exists() else None
    return None


class OomKills:
    """The count, as it was lately. Each kill explains one death."""

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._lately: deque[tuple[float, int]] = deque()
        self._explained = 0

    def note(self, now: float) -> None:
        """Take a look; called now and then, so that what is older than the window explains nothing."""
        count = self._count()
        if count is None:
            return
        if not self._lately:
            self._explained = count
        self._lately.append((now, count))
        while len(self._lately) > 1 and self._lately[1][0] <= now - WINDOW:
            self._lately.popleft()
        self._explained = max(self._explained, self._lately[0][1])

    def explains(self, now: float) -> bool:
        """Whether there was such a kill lately that no other death was explained with."""
        self.note(now)
        if not self._lately or self._lately[-1][1] <= self._explained:
            return False
        self._explained += 1
        return True

    def _count(self) -> int | None:
        if self._file is None:
            return None
        try:
            for line in self._file.read_text().splitlines():
                name, _, value = line.partition(" ")
                if name == "oom_kill":
                    return int(value)
        except (OSError, ValueError):
            return None
        return None
