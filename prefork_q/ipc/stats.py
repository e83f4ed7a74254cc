"""What is counted in a slot of the scoreboard, and the values that are read from there. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

# Counters of a worker, by index. The first four are also kept for each type.
COMPLETED: Final = 0
FAILED: Final = 1
RETRIED: Final = 2
DEAD: Final = 3
RELEASED: Final = 4
CANCELLED: Final = 5
STALE: Final = 6
# Counters of the keeper and the api.
LEASES_EXPIRED: Final = 7
PROMOTED: Final = 8
HANDED_BACK: Final = 9
RENEWED: Final = 10
TRIMMED: Final = 11
# From here one for each kind of `errors.Unavailable`.
REDIS_ERRORS: Final = 16
REDIS_ERROR_KINDS: Final = ("connection", "timeout", "loading", "readonly", "full", "busy", "denied", "other")

COUNTER_NAMES: Final[Mapping[str, int]] = {
    "completed": COMPLETED,
    "failed": FAILED,
    "retried": RETRIED,
    "dead": DEAD,
    "released": RELEASED,
    "cancelled": CANCELLED,
    "stale": STALE,
    "leases_expired": LEASES_EXPIRED,
    "promoted": PROMOTED,
    "handed_back": HANDED_BACK,
    "renewed": RENEWED,
    "trimmed": TRIMMED,
}
COUNTERS: Final = 32
TYPE_COUNTERS: Final = 4

MAX_TYPES: Final = 64
"""Types with numbers of their own; the last index is for all others together."""
MAX_QUEUES: Final = 16
"""Queues likewise."""
OTHER: Final = "(other)"
"""All those together. No type or queue can have such a name."""
OTHER_SHOWN: Final = "other"
"""What they are called where numbers are shown, together with a type or queue that is called so."""
NAME_BYTES: Final = 100

BOUNDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0)
"""Seconds: the upper bounds (inclusive) of the histograms' buckets; one more is without bound."""
BUCKETS: Final = len(BOUNDS) + 1

RING: Final = 61
"""Seconds kept for the rates: the last 60 whole ones, and the current one."""


def redis_error(kind: str) -> int:
    """Return the index of the counter for this kind of `errors.Unavailable`."""
    try:
        return REDIS_ERRORS + REDIS_ERROR_KINDS.index(kind)
    except ValueError:
        return REDIS_ERRORS + len(REDIS_ERROR_KINDS) - 1


@dataclass(frozen=True, slots=True)
class Histogram:
    """Counts by bucket (not cumulative; one more than BOUNDS), and the sum of what was observed, s."""

    buckets: tuple[int, ...] = (0,) * BUCKETS
    sum: float = 0.0

    @property
    def count(self) -> int:
        return sum(self.buckets)

    def __add__(self, other: Histogram) -> Histogram:
        buckets = tuple(a + b for a, b in zip(self.buckets, other.buckets, strict=True))
        return Histogram(buckets, self.sum + other.sum)


@dataclass(frozen=True, slots=True)
class TypeStats:
    """The numbers of one type: (completed, failed, retried, dead) and how long attempts took."""

    counts: tuple[int, ...] = (0,) * TYPE_COUNTERS
    durations: Histogram = Histogram()

    def __add__(self, other: TypeStats) -> TypeStats:
        counts = tuple(a + b for a, b in zip(self.counts, other.counts, strict=True))
        return TypeStats(counts, self.durations + other.durations)


@dataclass(frozen=True, slots=True)
class Held:
    """One claimed task in the table of a slot. Times are boot time, s; `renewed_at` 0 if never."""

    index: int
    id: str
    token: int
    claimed_at: float
    renewed_at: float


@dataclass(frozen=True, slots=True)
class Running:
    """What a processor runs. Times are boot time, s; `deadline` 0 if there is none.

    `delay`: seconds until the next attempt if this one is ended at its deadline, None if there is none left.
    """

    processor: int
    id: str
    type: str
    attempt: int
    token: int
    started_at: float
    deadline: float
    delay: float | None = None


class Second(NamedTuple):
    """What ended in one second of boot time."""

    second: int
    completed: int
    failed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotNumbers:
    """The numbers of a worker's slot."""

    counters: tuple[int, ...]
    types: Mapping[str, TypeStats]
    waits: Mapping[str, Histogram]
    seconds: tuple[Second, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotSnapshot(SlotNumbers):
    """A copy of a worker's slot. Exact once the worker is dead; see `slot` for the living."""

    incarnation: str
    generation: int
    pid: int
    is_alive: bool
    state: str
    last_beat: float
    rss_bytes: int
    pss_bytes: int
    running: tuple[Running, ...]
    left: tuple[Running, ...]
    holds: tuple[Held, ...]
