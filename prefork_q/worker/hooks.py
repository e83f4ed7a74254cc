"""The user's hooks of a worker: at its start in the main thread, at its end in a thread of their own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from prefork_q.events import Events
from prefork_q.worker.failure import message_of, type_name

Hook = Callable[[], object]


class StopHooks:
    """Runs the hooks for a worker's end, which may hang: nobody has to wait for them."""

    def __init__(self, hooks: Sequence[Hook], events: Events, when_done: Callable[[], None]) -> None:
        """`when_done` is called in their thread after the last."""
        self._hooks = hooks
        self._events = events
        self._when_done = when_done
        self.are_done = not hooks

    def start(self) -> None:
        if self._hooks:
            threading.Thread(target=self._run, name="stop-hooks", daemon=True).start()

    def _run(self) -> None:
        for hook in self._hooks:
            try:
                hook()
            except BaseException as error:
                self._events.emit(
                    "hook_failed", level="error", hook="on_worker_stop", error_type=type_name(error),
                    error_message=message_of(error),
                )  # fmt: skip
        self.are_done = True
        self._when_done()
