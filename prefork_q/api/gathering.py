"""Submissions that arrive together travel together: one script call instead of one for each.

The first thread to come calls the script for itself. Whoever comes meanwhile leaves his submission and
sleeps; the next call takes all that was left. So nobody waits for company, a lone request costs what it
would cost anyway, and under load the calls become few and large: less work here, and less for Redis.

Only submissions without an idempotency key share a call: a call stores all or none, so a conflict of one
would refuse the others.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Sequence
from typing import Final

from prefork_q.task import Submission, Submitted

MOST: Final = 64
"""Submissions in one call, at most: half a millisecond of Redis's time."""
MOST_BYTES: Final = 1 << 20
"""Bytes of payloads in one call, or one payload if it has more."""

Submit = Callable[[Sequence[Submission]], list[Submitted]]


class Place:
    """One submission on its way, and the thread that waits for its answer."""

    __slots__ = ("is_next", "outcome", "submission", "turn")

    def __init__(self, submission: Submission) -> None:
        self.submission = submission
        self.turn = threading.Lock()
        self.turn.acquire()
        self.is_next = False
        """Whether this thread is to make the next call, for itself and for who waits with it."""
        self.outcome: Submitted | Exception = RuntimeError("the call ended without an outcome")

    def result(self) -> Submitted:
        if isinstance(self.outcome, Exception):
            # Each thread raises its own: a raised exception collects the places that it passes.
            raise copy.copy(self.outcome) from self.outcome
        return self.outcome


class Gathering:
    """Shares calls of `submit`, which stores all that it is given or raises. Used from any thread."""

    def __init__(self, submit: Submit) -> None:
        self._submit = submit
        self._lock = threading.Lock()
        self._waiting: list[Place] = []
        self._is_calling = False

    def submit(self, submission: Submission) -> Submitted:
        """Return the answer for one submission.

        Raises:
            Unavailable: Redis did not answer, or refused.
        """
        place = Place(submission)
        with self._lock:
            is_first = not self._is_calling
            if is_first:
                self._is_calling = True
            else:
                self._waiting.append(place)
        if not is_first:
            # Bounded by the time limits of the calls before: threads are few, so that is one or two.
            place.turn.acquire()
            if not place.is_next:
                return place.result()
        self._call([place, *self._take(len(submission.body))])
        return place.result()

    def _take(self, size: int) -> list[Place]:
        """Return who else goes with a call whose first payload has `size` bytes."""
        with self._lock:
            count = 0
            for place in self._waiting[: MOST - 1]:
                size += len(place.submission.body)
                if size > MOST_BYTES:
                    break
                count += 1
            taken, self._waiting = self._waiting[:count], self._waiting[count:]
            return taken

    def _call(self, together: list[Place]) -> None:
        try:
            answers = self._submit([place.submission for place in together])
            for place, answer in zip(together, answers, strict=True):
                place.outcome = answer
        except Exception as error:
            for place in together:
                place.outcome = error
        finally:
            # The next caller first: Redis works while the answers here are written.
            with self._lock:
                following = self._waiting.pop(0) if self._waiting else None
                self._is_calling = following is not None
            if following is not None:
                following.is_next = True
                following.turn.release()
            for place in together[1:]:
                place.turn.release()
