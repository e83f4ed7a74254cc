"""Task ids: UUIDs of version 7 (RFC 9562), so ids sort by the time that they were made."""

from __future__ import annotations

import os
import re
import threading
import time

ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")


class IdFactory:
    """Makes ids that also sort within one millisecond of one process (RFC 9562, 6.2, method 1).

    The 12 bits after the version are a counter that starts at random in each millisecond;
    the last 62 bits are random for each id, so two processes never meet, forked ones included.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last_ms = 0
        self._counter = 0

    def __call__(self) -> str:
        """Return a new id, 36 characters in lower case."""
        random = int.from_bytes(os.urandom(10), "big")
        with self._lock:
            now_ms = time.time_ns() // 1_000_000
            if now_ms > self._last_ms:
                self._last_ms = now_ms
                self._counter = random >> 69 & 0x7FF
            else:
                self._counter += 1
                if self._counter > 0xFFF:
                    self._last_ms += 1
                    self._counter = 0
            now_ms, counter = self._last_ms, self._counter
        tail = random & 0x3FFF_FFFF_FFFF_FFFF | 0x8000_0000_0000_0000
        return "%08x-%04x-7%03x-%04x-%012x" % (  # noqa: UP031 - half the time of format()
            now_ms >> 16, now_ms & 0xFFFF, counter, tail >> 48, tail & 0xFFFF_FFFF_FFFF,
        )

    def after_fork(self) -> None:
        """Forget a lock that another thread may have held at the fork."""
        self._lock = threading.Lock()


new_id = IdFactory()
os.register_at_fork(after_in_child=new_id.after_fork)


def is_id(text: str) -> bool:
    """Tell whether `text` has the form of a task id."""
    return ID.fullmatch(text) is not None
