"""Task ids: UUIDs of version 7 (RFC 9562), so ids sort by the time that they were made."""

from __future__ import annotations

import os
import re
import threading
import time

ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")

VARIANT = {digit: "89ab"[int(digit, 16) & 3] for digit in "0123456789abcdef"}
"""Of a random digit: its two bits after the variant's, which are 10."""
TAIL = 16
"""Random digits of an id."""
LAST = 0xFFF
"""The highest that the counter within a millisecond can be."""
POOL = 1_024
"""Random bytes that are fetched at once."""


class IdFactory:
    """Makes ids that also sort within one millisecond of one process (RFC 9562, 6.2, method 1).

    The 12 bits after the version are a counter that starts at random in each millisecond;
    the last 62 bits are random for each id, so two processes never meet, forked ones included.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._random = ""
        self._next = 0
        self._last_ms = 0
        self._counter = 0
        self._head = ""

    def __call__(self) -> str:
        """Return a new id, 36 characters in lower case."""
        with self._lock:
            at = self._next
            if at == len(self._random):
                # A call of the kernel for each id would be a third of its price.
                self._random, at = os.urandom(POOL).hex(), 0
            self._next = at + TAIL
            tail = self._random[at : at + TAIL]
            self._advance()
            head, counter = self._head, self._counter
        return f"{head}{counter:03x}-{VARIANT[tail[0]]}{tail[1:4]}-{tail[4:]}"

    def many(self, n: int) -> list[str]:
        """Return `n` new ids, in order, as if they had been made one by one in this millisecond."""
        if n == 1:
            return [self()]
        ids: list[str] = []
        while n:
            # In one go as many as the counter has numbers left for.
            with self._lock:
                self._advance()
                head, first = self._head, self._counter
                self._counter = last = min(first + n - 1, LAST)
            digits = os.urandom((last + 1 - first) * TAIL // 2).hex()
            tails = [digits[at : at + TAIL] for at in range(0, len(digits), TAIL)]
            ids += [
                f"{head}{counter:03x}-{VARIANT[tail[0]]}{tail[1:4]}-{tail[4:]}"
                for counter, tail in zip(range(first, last + 1), tails, strict=True)
            ]
            n -= last + 1 - first
        return ids

    def _advance(self) -> None:
        now_ms = time.time_ns() // 1_000_000
        if now_ms > self._last_ms:
            self._begin(now_ms, int.from_bytes(os.urandom(2), "big") & 0x7FF)
        elif self._counter < LAST:
            self._counter += 1
        else:
            self._begin(self._last_ms + 1, 0)

    def _begin(self, ms: int, counter: int) -> None:
        self._last_ms, self._counter = ms, counter
        self._head = f"{ms >> 16:08x}-{ms & 0xFFFF:04x}-7"

    def after_fork(self) -> None:
        """Forget a lock that another thread may have held at the fork, and the parent's random digits."""
        self._lock = threading.Lock()
        self._random, self._next = "", 0


new_id = IdFactory()
os.register_at_fork(after_in_child=new_id.after_fork)


def is_id(text: str) -> bool:
    """Tell whether `text` has the form of a task id."""
    return ID.fullmatch(text) is not None
