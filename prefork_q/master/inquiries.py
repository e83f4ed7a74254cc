"""Asking workers what their threads are doing, without ever waiting for one. Runs in the master.

The main thread is asked first. Only after a silence faulthandler is, by a signal: it answers while C code
holds the interpreter's lock, but looks at threads that may be running. Whatever comes, an inquiry is over
after ANSWER_LIMIT.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from prefork_q.ipc.messages import DumpStacks
from prefork_q.ipc.stacks import ThreadStack, stacks_in
from prefork_q.master.children import Child

SILENCE: Final = 0.2
"""Seconds after which the main thread is taken to be unable to answer."""
SETTLE: Final = 0.02
"""Seconds without growth after which the file is taken to be whole."""
ANSWER_LIMIT: Final = 0.5
"""Seconds for all of one inquiry."""


@dataclass(slots=True)
class _Inquiry:
    serial: int
    asked_at: float
    signalled_at: float | None = None
    size: int = 0
    grew_at: float = 0.0
    is_done: bool = False


class Inquiries:
    """One open question a worker at most; who asks meanwhile shares the answer.

    `tell` sends a message to a child; `signal` asks faulthandler in it, and returns False if that cannot be.
    """

    def __init__(self, tell: Callable[[Child, DumpStacks], None], signal: Callable[[Child], bool]) -> None:
        self._tell = tell
        self._signal = signal
        self._open: dict[Child, _Inquiry] = {}
        self._serial = 0

    def ask(self, child: Child, now: float) -> None:
        """Begin, unless it is being asked already."""
        if child in self._open and not self._open[child].is_done:
            return
        self._serial += 1
        self._open[child] = _Inquiry(self._serial, now)
        if child.stacks is None:
            self._open[child].is_done = True
            return
        child.stacks.clear()
        self._tell(child, DumpStacks(self._serial))

    def answered(self, child: Child, serial: int) -> None:
        """The main thread has written its answer."""
        inquiry = self._open.get(child)
        if inquiry is not None and inquiry.serial == serial:
            inquiry.is_done = True

    def carry_on(self, now: float) -> None:
        """Take the steps that are due."""
        for child, inquiry in self._open.items():
            if not inquiry.is_done:
                self._advance(child, inquiry, now)

    def next(self) -> float | None:
        """When `carry_on` has something to do; None for nothing."""
        return min((_due(inquiry) for inquiry in self._open.values() if not inquiry.is_done), default=None)

    def is_open(self, child: Child) -> bool:
        """Whether an answer may still come."""
        return child in self._open and not self._open[child].is_done

    def is_fresh(self, child: Child, now: float, seconds: float) -> bool:
        """Whether it was asked no longer ago than that."""
        return child in self._open and now - self._open[child].asked_at <= seconds

    def result(self, child: Child, names: Mapping[int, str]) -> list[ThreadStack]:
        """Return what is known of its threads; nothing if it could not say. `names`: see `stacks_in`."""
        if child.stacks is None:
            return []
        inquiry = self._open.get(child)
        return stacks_in(child.stacks.read(), names, serial=inquiry.serial if inquiry else None)

    def forget(self, child: Child) -> None:
        """It is gone, or the answer was read."""
        self._open.pop(child, None)

    def _advance(self, child: Child, inquiry: _Inquiry, now: float) -> None:
        stacks = child.stacks
        if stacks is None or stacks.fileno() < 0 or now - inquiry.asked_at >= ANSWER_LIMIT:
            inquiry.is_done = True
        elif inquiry.signalled_at is None:
            if now - inquiry.asked_at >= SILENCE:
                inquiry.signalled_at = now
                inquiry.is_done = not self._signal(child)
        elif (size := stacks.size) != inquiry.size:
            inquiry.size, inquiry.grew_at = size, now
        else:
            inquiry.is_done = size > 0 and now - inquiry.grew_at >= SETTLE


def _due(inquiry: _Inquiry) -> float:
    if inquiry.signalled_at is None:
        return inquiry.asked_at + SILENCE
    return max(inquiry.signalled_at, inquiry.grew_at) + SETTLE / 2
