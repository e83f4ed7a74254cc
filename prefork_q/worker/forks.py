"""What a handler's own child process must shed: it is no worker, and must not touch what is the worker's.

Runs in the handler's thread, before and after a fork that Python knows of. (A program that is started
goes another way, and begins with the defaults.)
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from typing import Final

from prefork_q.ipc.fork import NODE_SIGNALS

CAUGHT: Final = (signal.SIGTERM, *NODE_SIGNALS)
"""Signals for which a worker has handlers."""


class ForkGuard:
    """Gives children default signal handlers, and has them forget the rest."""

    def __init__(self, forget: Callable[[], None]) -> None:
        """`forget` is called once in each child."""
        self._forget = forget
        self._is_child = False
        self._masks: dict[int, set[signal.Signals | int]] = {}

    def install(self) -> None:
        os.register_at_fork(
            before=self._block, after_in_parent=self._unblock, after_in_child=self._become_child
        )

    def _block(self) -> None:
        # Else a signal for a child that has shed nothing yet would be taken by the worker's handler,
        # and do nothing: its parent would wait for it for ever.
        self._masks[threading.get_ident()] = signal.pthread_sigmask(signal.SIG_BLOCK, CAUGHT)

    def _unblock(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._masks.pop(threading.get_ident()))

    def _become_child(self) -> None:
        try:
            # A child's child is left alone: the numbers of closed descriptors may be its own by now.
            if not self._is_child:
                self._is_child = True
                signal.set_wakeup_fd(-1)
                # First: without faulthandler the worker's own handlers are back.
                self._forget()
                for number in CAUGHT:
                    signal.signal(number, signal.SIG_DFL)
                signal.signal(signal.SIGINT, signal.default_int_handler)
        finally:
            self._unblock()
