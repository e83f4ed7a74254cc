"""One processor thread: takes a held task, runs its handler, and says what became of it.

Whatever can happen in a handler becomes one of a closed set of outcomes here and nowhere else. The
thread never ends by an exception of a handler, not even SystemExit or one set from outside.
"""

from __future__ import annotations

import ctypes
import os
import random
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue

from prefork_q.context import TaskContext
from prefork_q.errors import Invalid, Reject, RetryAfter, TaskTimeout
from prefork_q.ipc.scoreboard import boot_time
from prefork_q.ipc.slot import WorkerSlot
from prefork_q.worker.attempt import AttemptRuntime
from prefork_q.worker.failure import Failure, describe, told
from prefork_q.worker.held import Held, Outcome, OutcomeName
from prefork_q.worker.result import encode_result

UNKNOWN_DELAY = 5.0
"""Seconds after which a task of a type that is unknown here is offered again, plus jitter."""


class Processor:
    """One of a worker's threads.

    `inbox` gives held tasks, None to end; `deliver` takes outcomes and may be called from here.
    Tasks come in the order in which they were claimed.
    """

    def __init__(
        self,
        number: int,
        *,
        inbox: SimpleQueue[Held | None],
        deliver: Callable[[Outcome], None],
        slot: WorkerSlot,
        lease: float,
        grace: float,
        result_limit: int,
        report_progress: Callable[[Held, float, str], None],
    ) -> None:
        self.number = number
        self._inbox = inbox
        self._deliver = deliver
        self._slot = slot
        self._lease = lease
        self._grace = grace
        self._result_limit = result_limit
        self._report_progress = report_progress
        self._pid = os.getpid()
        self._rng = random.Random()
        self._guard = threading.Lock()
        self.soft_limit = 0.0
        """Boot time at which the running attempt is to be interrupted, 0 for never."""
        self._timed: Held | None = None
        self._current: Held | None = None
        self.thread = threading.Thread(target=self._run, name=f"processor-{number}", daemon=True)

    def start(self) -> None:
        self.thread.start()
        self._slot.thread_started(self.number, self.thread.ident or 0)

    @property
    def current(self) -> Held | None:
        """The task that it holds in its hands; read by the main thread, for its title and its drain."""
        return self._current

    # -- the thread

    def _run(self) -> None:
        while True:
            try:
                held = self._inbox.get()
                if held is None:
                    return
                self._current = held
                held.is_started = True
                outcome = self._attempt(held)
                self._current = None
                self._deliver(outcome)
            except BaseException as error:
                # An exception set from outside, that landed between two attempts or beside one.
                held, self._current = self._current, None
                if held is not None:
                    self._deliver(self._failed(held, error, 0.0))

    def _attempt(self, held: Held) -> Outcome:
        lease, route = held.lease, held.route
        started = boot_time()
        if started - held.claimed_at > self._lease / 4 and not self._is_valid(held):
            # Stopped or starved for so long that somebody else may have it: it must not start here.
            return Outcome(held, "released")
        if route is None:
            return self._unknown(held)
        timeout = lease.timeout_ms / 1_000 or route.timeout or 0.0
        if timeout:
            self._slot.start(
                self.number, lease.id, lease.type, lease.attempt, lease.token, started,
                started + timeout + self._grace, self._delay_of_hard_limit(held),
            )  # fmt: skip
        else:
            self._slot.start(self.number, lease.id, lease.type, lease.attempt, lease.token, started)
        try:
            arguments = route.arguments(lease.body)
            if route.context_parameter is not None:
                arguments[route.context_parameter] = self._context(held, timeout)
            if timeout:
                result = self._timed_call(held, route.function, arguments, started + timeout)
            else:
                result = route.function(**arguments)
            ran = boot_time() - started
            text = encode_result(result, self._result_limit)
        except BaseException as error:
            ran = boot_time() - started
            self._require_own_process()
            outcome = self._failed(held, error, ran)
        else:
            self._require_own_process()
            outcome = Outcome(held, "succeeded", ran, text)
        self._slot.finished(self.number)
        return outcome

    def _require_own_process(self) -> None:
        # A handler that forked and let its child return here: the child is no worker.
        if os.getpid() != self._pid:
            os._exit(1)

    # -- what became of it

    def _failed(self, held: Held, error: BaseException, ran: float) -> Outcome:
        lease, route = held.lease, held.route
        failure = describe(error)
        if route is None or lease.attempt >= lease.max_attempts or self._is_final(held, error):
            return self._outcome(held, failure, ran, None)
        if isinstance(error, RetryAfter):
            delay = route.retry.at_least(error.seconds, self._rng)
        else:
            delay = route.retry.delay(lease.attempt, self._rng)
        return self._outcome(held, failure, ran, delay)

    def _delay_of_hard_limit(self, held: Held) -> float:
        """Return the seconds to the next attempt if this one ends at its hard limit, -1 if it is the last."""
        lease, route = held.lease, held.route
        if route is None or lease.attempt >= lease.max_attempts or self._is_final(held, TaskTimeout()):
            return -1.0
        return route.retry.delay(lease.attempt, self._rng)

    def _is_final(self, held: Held, error: BaseException) -> bool:
        never = held.route.retry.never if held.route is not None else ()
        return isinstance(error, (Reject, Invalid, *never))

    def _unknown(self, held: Held) -> Outcome:
        type_ = held.lease.type.decode("utf-8", "replace")
        failure = told("UnknownType", f"no live worker knows a handler for the type {type_!r}")
        delay = UNKNOWN_DELAY * (1 + 0.2 * self._rng.random())
        return Outcome(held, "released", 0.0, failure.text, delay, failure.type, failure.message)

    @staticmethod
    def _outcome(held: Held, failure: Failure, ran: float, delay: float | None) -> Outcome:
        name: OutcomeName = "dead" if delay is None else "retrying"
        return Outcome(held, name, ran, failure.text, delay, failure.type, failure.message)

    # -- what a handler is given

    def _context(self, held: Held, timeout: float) -> TaskContext:
        lease = held.lease
        return TaskContext(
            id=lease.id.decode(),
            type=lease.type.decode(),
            attempt=lease.attempt,
            max_attempts=lease.max_attempts,
            deadline=time.time() + timeout if timeout else None,
            token=lease.token,
            runtime=AttemptRuntime(held, self._slot, self._lease, self._report_progress),
        )

    def _is_valid(self, held: Held) -> bool:
        return AttemptRuntime(held, self._slot, self._lease, self._report_progress).is_lease_valid()

    # -- the soft time limit

    def _timed_call(
        self, held: Held, function: Callable[..., object], arguments: dict[str, object], deadline: float
    ) -> object:
        """Call the handler so that `interrupt` can reach it, and only it.

        `interrupt` sets the exception under the guard, while `_timed` is set; leaving clears
        `_timed` under the guard. So none is set after the handler was left, and one that was set
        but not raised yet is taken back.
        """
        self._timed = held
        self.soft_limit = deadline
        try:
            return function(**arguments)
        finally:
            with self._guard:
                self._timed = None
                self.soft_limit = 0.0
                set_async_exception(self.thread.ident, None)

    def interrupt(self, now: float) -> Held | None:
        """Raise TaskTimeout in a handler whose soft limit has passed. Main thread only.

        Returns the task if it was interrupted now; a limit is enforced once an attempt.
        """
        with self._guard:
            held = self._timed
            if held is None or now < self.soft_limit:
                return None
            self._timed = None
            self.soft_limit = 0.0
            set_async_exception(self.thread.ident, TaskTimeout)
            return held


def set_async_exception(thread: int | None, kind: type[BaseException] | None) -> None:
    """Have `kind` raised in a thread when it next runs bytecode; None takes one back.

    See PyThreadState_SetAsyncExc in CPython's C API reference.
    """
    exception = ctypes.py_object(kind) if kind is not None else None
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread or 0), exception)


