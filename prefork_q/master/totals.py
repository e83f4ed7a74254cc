"""The numbers of the dead: folded in when a worker ends, so that no total ever falls. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable

from prefork_q.ipc import stats
from prefork_q.ipc.messages import Ended
from prefork_q.ipc.stats import Histogram, Second, SlotNumbers, TypeStats

MINUTE = 60


class Totals:
    """Sums over slots: the dead ones that were folded in, and the living ones that are given."""

    def __init__(self) -> None:
        self.counters = [0] * stats.COUNTERS
        self.types: dict[str, TypeStats] = {}
        self.waits: dict[str, Histogram] = {}
        self.seconds: dict[int, tuple[int, int]] = {}
        self.crashes = 0
        self.restarts: Counter[str] = Counter()

    def fold(self, slot: SlotNumbers) -> None:
        """Add the numbers of a slot, once, after its process was waited for."""
        for index, n in enumerate(slot.counters):
            self.counters[index] += n
        for name, numbers in slot.types.items():
            self.types[name] = self.types.get(name, TypeStats()) + numbers
        for name, wait in slot.waits.items():
            self.waits[name] = self.waits.get(name, Histogram()) + wait
        for second, completed, failed in slot.seconds:
            before = self.seconds.get(second, (0, 0))
            self.seconds[second] = (before[0] + completed, before[1] + failed)
        newest = max(self.seconds, default=0)
        self.seconds = {at: ended for at, ended in self.seconds.items() if at > newest - stats.RING}

    def ended_by_keeper(self, ended: Iterable[Ended], now: float, known: Container[str]) -> None:
        """Add attempts that ended with their worker or their lease to the numbers of their types, and to the
        rate. The sums of all types are in the keeper's own counters. `known`: the types of the living."""
        for type, counter, n in ended:
            counts = [0] * stats.TYPE_COUNTERS
            counts[counter] = n
            name = type if type in self.types or type in known else stats.OTHER
            self.types[name] = self.types.get(name, TypeStats()) + TypeStats(tuple(counts))
            if counter == stats.FAILED:
                completed, failed = self.seconds.get(int(now), (0, 0))
                self.seconds[int(now)] = (completed, failed + n)

    def plus(self, living: Iterable[SlotNumbers]) -> Totals:
        """Return the sums with the living slots; this object stays as it is."""
        total = Totals()
        total.counters = list(self.counters)
        total.types = dict(self.types)
        total.waits = dict(self.waits)
        total.seconds = dict(self.seconds)
        total.crashes = self.crashes
        total.restarts = Counter(self.restarts)
        for slot in living:
            total.fold(slot)
        return total

    def counted(self, living: Iterable[tuple[int, ...]]) -> list[int]:
        """Return the counters with those of the living, without the rest."""
        return [sum(column) for column in zip(self.counters, *living, strict=True)]

    def per_minute(self, now: float, living: Iterable[Second] = ()) -> tuple[int, int]:
        """Return (completed, failed) of the 60 s up to boot time `now`, with those of the living."""
        folded = (Second(second, *ended) for second, ended in self.seconds.items())
        recent = [ended for ended in (*folded, *living) if now - MINUTE < ended.second <= now]
        return sum(ended.completed for ended in recent), sum(ended.failed for ended in recent)
