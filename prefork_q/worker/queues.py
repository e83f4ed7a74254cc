"""In which order the queues are asked: strictly as listed, or by weight. Main thread only."""

from __future__ import annotations

import random
from collections.abc import Sequence

from prefork_q.ipc.stats import MAX_QUEUES


class QueueOrder:
    """`weights` has None for every queue (strict order) or a number for every queue.

    By weight, each claim asks first a queue that was drawn with a chance in proportion to its
    weight, then draws among the rest: no queue starves, and an empty one costs nothing.
    """

    def __init__(self, names: Sequence[str], weights: Sequence[int | None], rng: random.Random) -> None:
        self.names = tuple(names)
        self._rng = rng
        self._weights = None if any(weight is None for weight in weights) else tuple(map(int, weights))  # type: ignore[arg-type]
        self._indexes = {name.encode(): min(n, MAX_QUEUES - 1) for n, name in enumerate(self.names)}

    def next(self) -> Sequence[str]:
        """Return all queues, in the order to ask them this time."""
        if self._weights is None or len(self.names) == 1:
            return self.names
        # Efraimidis and Spirakis: sorting by u**(1/w) draws without replacement by weight.
        rng = self._rng
        keys = [rng.random() ** (1 / weight) for weight in self._weights]
        return [name for _, name in sorted(zip(keys, self.names, strict=True), reverse=True)]

    def index(self, queue: bytes) -> int:
        """Return the scoreboard's index of a queue."""
        return self._indexes.get(queue, MAX_QUEUES - 1)
