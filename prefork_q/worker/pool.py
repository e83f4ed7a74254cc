"""The processor threads of a worker, and what is buffered for them. Main thread only.

Tasks are started in the order in which they were put in. Until a processor has taken one, it can
be taken back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue

from prefork_q.worker.held import Held, Outcome
from prefork_q.worker.processor import Processor

MakeProcessor = Callable[[int, "SimpleQueue[Held]"], Processor]


class Pool:
    """`make` makes the processor of a number; it is called again to replace a thread that is gone."""

    def __init__(self, threads: int, make: MakeProcessor) -> None:
        self._make = make
        self._inbox: SimpleQueue[Held] = SimpleQueue()
        self._waiting: deque[Held] = deque()
        self.processors = [make(number, self._inbox) for number in range(threads)]

    def start(self) -> None:
        for processor in self.processors:
            processor.start()

    def put(self, *tasks: Held) -> None:
        self._waiting.extend(tasks)
        for held in tasks:
            self._inbox.put(held)

    def oldest_waiting(self) -> Held | None:
        """Return the task that has waited longest and was not started, None if all were."""
        waiting = self._waiting
        while waiting and waiting[0].is_started:
            waiting.popleft()
        return waiting[0] if waiting else None

    def take_back(self) -> list[Held]:
        """Take back all that no processor has taken yet, the oldest first."""
        taken: list[Held] = []
        try:
            while True:
                taken.append(self._inbox.get_nowait())
        except Empty:
            # What was put in and is neither here nor started is in a processor's hands this moment.
            self._waiting.clear()
            return taken

    def next_soft_limit(self) -> float | None:
        """Return the boot time at which the next running attempt passes its soft limit."""
        limits = [limit for processor in self.processors if (limit := processor.soft_limit)]
        return min(limits) if limits else None

    def postpone(self, seconds: float, before: float) -> None:
        """Give the attempts so much more time that were claimed before that moment."""
        for processor in self.processors:
            processor.postpone(seconds, before)

    def interrupt(self, now: float) -> list[Held]:
        """Interrupt the attempts whose soft limit has passed; return their tasks."""
        passed = (p.interrupt(now) for p in self.processors if 0 < p.soft_limit <= now)
        return [held for held in passed if held is not None]

    def replace_dead(self) -> list[Outcome]:
        """Replace threads that are gone; return what became of what they had in their hands.

        A thread cannot end by an exception of a handler, but one can be ended from outside, by
        exceptions that are set in it faster than it can catch them.
        """
        lost: list[Outcome] = []
        for number, processor in enumerate(self.processors):
            if processor.is_dead:
                outcome = processor.bury()
                if outcome is not None:
                    lost.append(outcome)
                self.processors[number] = self._make(number, self._inbox)
                self.processors[number].start()
        return lost
