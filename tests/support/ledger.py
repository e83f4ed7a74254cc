"""What the test handlers did, out of the file in which each of them notes its start and its end."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

VARIABLE = "TEST_OF_PREFORK_Q_LEDGER"
"""Set for the handlers. Not PREFORK_Q_..., which a node would take for a misspelt option."""


@dataclass(frozen=True, slots=True)
class Run:
    """One time that a handler ran; `ended_at` is None for one cut short. Times are those of time.time()."""

    id: str
    type: str
    attempt: int
    pid: int
    thread: int
    token: int
    started_at: float
    ended_at: float | None
    outcome: str | None
    """`returned`, or the name of the exception's class; None for one cut short."""


class Ledger:
    """Reads the ledger at `path`; each call reads it anew."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def entries(self) -> list[dict[str, Any]]:
        """All lines, in the order in which they were written."""
        if not self.path.exists():
            return []
        # A line is one write, but this may look in the middle of one.
        complete, _, _ = self.path.read_bytes().rpartition(b"\n")
        return [json.loads(line) for line in complete.splitlines()]

    def runs(self, id: str | None = None, type: str | None = None) -> list[Run]:
        """All runs, or those of one task or type, in the order of their starts."""
        ends: dict[str, dict[str, Any]] = {}
        starts: list[dict[str, Any]] = []
        for entry in self.entries():
            if entry["event"] == "start":
                starts.append(entry)
            else:
                ends[entry["run"]] = entry
        return [
            _run(start, ends.get(start["run"]))
            for start in starts
            if (id is None or start["id"] == id) and (type is None or start["type"] == type)
        ]

    def starts(self, id: str | None = None) -> list[float]:
        """When the runs (of one task) started, in order."""
        return [run.started_at for run in self.runs(id)]

    def ends(self, id: str | None = None) -> list[float]:
        """When the runs (of one task) that ended did so, in the order of their starts."""
        return [run.ended_at for run in self.runs(id) if run.ended_at is not None]

    def running(self) -> list[Run]:
        """The runs that have not ended: at work now, or cut short."""
        return [run for run in self.runs() if run.ended_at is None]

    def times_run(self) -> Counter[str]:
        """How often each task was started, by id."""
        return Counter(run.id for run in self.runs())

    def pids(self) -> set[int]:
        """The processes that ran something."""
        return {run.pid for run in self.runs()}

    def overlaps(self) -> list[tuple[Run, Run]]:
        """Pairs of runs of one task that were surely at work at the same time.

        A run that was cut short counts up to its start only: when its process died is not known here.
        """
        return list(self._overlaps())

    def _overlaps(self) -> Iterator[tuple[Run, Run]]:
        by_id: dict[str, list[Run]] = {}
        for run in self.runs():
            by_id.setdefault(run.id, []).append(run)
        for runs in by_id.values():
            for first, second in combinations(runs, 2):
                if first.ended_at is not None and second.started_at < first.ended_at:
                    yield first, second


def _run(start: dict[str, Any], end: dict[str, Any] | None) -> Run:
    return Run(
        id=start["id"],
        type=start["type"],
        attempt=start["attempt"],
        pid=start["pid"],
        thread=start["thread"],
        token=start["token"],
        started_at=start["at"],
        ended_at=end["at"] if end else None,
        outcome=end["outcome"] if end else None,
    )
