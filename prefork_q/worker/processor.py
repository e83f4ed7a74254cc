"""One processor thread: takes a held task, runs its handler, and says what became of it.

Whatever can happen in a handler becomes one of a closed set of outcomes here and nowhere else. The
thread does not end by an exception of a handler, not even SystemExit or one set from outside; and
if enough of those hit it between two attempts to end it all the same, no task is lost with it.
"""

from __future__ import annotations

import contextvars
import ctypes
import math
import os
import random
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Final

from prefork_q.context import TaskContext
from prefork_q.errors import Invalid, Reject, RetryAfter, TaskTimeout
from prefork_q.ipc.scoreboard import boot_time
from prefork_q.ipc.slot import WorkerSlot
from prefork_q.retry import Retry
from prefork_q.worker.attempt import AttemptRuntime, is_lease_valid
from prefork_q.worker.failure import Failure, describe, told
from prefork_q.worker.held import Held, Outcome
from prefork_q.worker.result import UnserializableResult, encode_result

UNKNOWN_DELAY: Final = 5.0
"""Seconds after which a task of a type that is unknown here is offered again, plus jitter."""
NO_ROUTE_RETRY: Final = Retry()
BIRTH_TIME: Final = 1.0
"""Seconds that the main thread waits for a new thread to begin."""


class _Begun(threading.Event):
    """Waited for at most BIRTH_TIME, unless somebody says otherwise."""

    def wait(self, timeout: float | None = None) -> bool:
        return super().wait(BIRTH_TIME if timeout is None else timeout)


class ProcessorThread(threading.Thread):
    """`start` waits until the thread has begun; for one that is ended from outside before that, by an
    exception that was meant for a thread whose identity it got, it would wait for ever.
    """

    def __init__(self, run: Callable[[], None], name: str) -> None:
        super().__init__(target=run, name=name, daemon=True)
        self._started = _Begun()


class Processor:
    """One of a worker's threads.

    `inbox` gives held tasks, in the order in which they were claimed. `deliver` takes outcomes, and
    may be given a second one of the same task: the first one counts. `wake_by` sees to it that
    `interrupt` is called at a boot time. All may be called from here.
    """

    def __init__(
        self,
        number: int,
        *,
        inbox: SimpleQueue[Held],
        deliver: Callable[[Outcome], None],
        wake_by: Callable[[float], None],
        slot: WorkerSlot,
        lease: float,
        grace: float,
        result_limit: int,
        report_progress: Callable[[Held, float, str], None],
    ) -> None:
        self.number = number
        self._deliver = deliver
        self._wake_by = wake_by
        self._slot = slot
        self._lease = lease
        self._young = lease / 4
        self._grace = grace
        self._result_limit = result_limit
        self._report_progress = report_progress
        self._pid = os.getpid()
        self._rng = random.Random()
        self._hand: list[Held] = []
        # Moves a task from the inbox into the hand without a step of the interpreter between: an
        # exception set from outside finds it in the one or in the other.
        self._takes = map(self._hand.append, iter(inbox.get, None))
        self._guard = threading.Lock()
        self.soft_limit = 0.0
        """Boot time at which the running attempt is to be interrupted, 0 for never."""
        self._timed: Held | None = None
        self.thread = ProcessorThread(self._run, f"processor-{number}")
        self._was_started = False
        # For its thread, to begin, or for who buries it because it has not begun in time.
        self._ticket = [None]

    # -- called by the main thread

    def start(self) -> None:
        self._was_started = True
        self.thread.start()
        self._slot.thread_started(self.number, self.thread.ident or 0)

    @property
    def current(self) -> Held | None:
        """The task that it holds in its hands."""
        return next(iter(self._hand), None)

    @property
    def is_dead(self) -> bool:
        """Whether its thread was started, and has ended or not begun."""
        return self._was_started and not self.thread.is_alive()

    def bury(self) -> Outcome | None:
        """Clear up after the end of its thread; return what became of the task in its hands."""
        self._ticket.clear()
        self._slot.idle(self.number)
        held = self.current
        if held is None:
            return None
        if not held.is_started:
            return Outcome(held, "released")
        return self._failure_of(held, told("ProcessorLost", "its thread was ended from outside"), 0.0)

    def postpone(self, seconds: float, before: float) -> None:
        """Move the soft limit of an attempt that was claimed before that moment."""
        with self._guard:
            if self._timed is not None and self._timed.lot.claimed_at < before:
                self.soft_limit += seconds

    def interrupt(self, now: float) -> Held | None:
        """Raise TaskTimeout in a handler whose soft limit has passed.

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

    # -- the thread

    def _run(self) -> None:
        try:
            self._ticket.pop()
        except IndexError:
            return
        hand, takes = self._hand, self._takes
        while True:
            try:
                next(takes)
                held = hand[0]
                held.is_started = True
                outcome = self._attempt(held)
                # In this order: between the two the task is delivered twice rather than never.
                self._deliver(outcome)
                hand.clear()
            except BaseException as error:
                self._recover(error)

    def _recover(self, error: BaseException) -> None:
        """An exception set from outside has landed between two attempts or beside one."""
        self._require_own_process()
        self._end_timed_call()
        self._slot.idle(self.number)
        held = self.current
        if held is None:
            return
        self._deliver(self._failed(held, error, 0.0) if held.is_started else Outcome(held, "released"))
        self._hand.clear()
        # The first delivery may have been hit before it could wake the loop.
        self._wake_by(0.0)

    def _attempt(self, held: Held) -> Outcome:
        lot = held.lot
        route = lot.route
        started = boot_time()
        # Stopped or starved for so long that somebody else may have it: it must not start here. A
        # young lease need not be looked up.
        if started - lot.claimed_at > self._young and not is_lease_valid(
            held, self._slot, self._lease, started
        ):
            return Outcome(held, "released")
        if route is None:
            return self._unknown(held)
        timeout = lot.timeout
        if timeout:
            self._slot.start(
                self.number, held.id, lot.type, lot.attempt, lot.token, started,
                started + timeout + self._grace, self._delay_of_hard_limit(held),
            )  # fmt: skip
        else:
            self._slot.start(self.number, held.id, lot.type, lot.attempt, lot.token, started)
        was_called = False
        try:
            arguments = route.arguments(held.body)
            if route.context_parameter is not None:
                arguments[route.context_parameter] = self._context(held, timeout)
            # What a handler leaves in context variables (decimal's precision is one) is not for the next one.
            call = contextvars.copy_context().run
            was_called = True
            if timeout:
                result = self._timed_call(held, call, route.function, arguments, started + timeout)
            else:
                result = call(route.function, **arguments)
            ran = boot_time() - started
            text = encode_result(result, self._result_limit)
        except BaseException as error:
            ran = boot_time() - started
            self._require_own_process()
            outcome = self._failed(held, error, ran, was_called=was_called)
        else:
            self._require_own_process()
            outcome = Outcome(held, "succeeded", ran, text)
        self._slot.finished(self.number)
        return outcome

    def _require_own_process(self) -> None:
        # A handler that forked and let its child come back here: the child is no worker.
        if os.getpid() != self._pid:
            os._exit(1)

    # -- what became of it

    def _failed(self, held: Held, error: BaseException, ran: float, *, was_called: bool = True) -> Outcome:
        if type(error) is TaskTimeout and not error.args and held.lot.timeout:
            # Set in the thread by its class: what is set from outside cannot have a text.
            error.args = (f"ran longer than its timeout of {held.lot.timeout:g} s",)
        failure = describe(error)
        # A payload that does not fit will not fit later. Out of a handler that error is about something else.
        if self._is_final(held, error) or (not was_called and isinstance(error, Invalid)):
            return Outcome(held, "dead", ran, failure.text, None, failure.type, failure.message)
        return self._failure_of(held, failure, ran, error.seconds if isinstance(error, RetryAfter) else None)

    def _delay_of_hard_limit(self, held: Held) -> float:
        """Return the seconds to the next attempt if this one ends at its hard limit, -1 if it is the last."""
        lot = held.lot
        if lot.route is None or lot.attempt >= lot.max_attempts or self._is_final(held, TaskTimeout()):
            return -1.0
        return lot.route.retry.delay(lot.attempt, self._rng)

    @staticmethod
    def _is_final(held: Held, error: BaseException) -> bool:
        route = held.lot.route
        never = route.retry.never if route is not None else ()
        return isinstance(error, (Reject, UnserializableResult, *never))

    def _failure_of(self, held: Held, failure: Failure, ran: float, asked: float | None = None) -> Outcome:
        """Return the outcome of a failure that may be retried, after `asked` seconds at least."""
        lot = held.lot
        if lot.attempt >= lot.max_attempts:
            return Outcome(held, "dead", ran, failure.text, None, failure.type, failure.message)
        retry = lot.route.retry if lot.route is not None else NO_ROUTE_RETRY
        # What was asked for is the handler's, and may be no number.
        if isinstance(asked, (int, float)) and not math.isnan(asked):
            delay = retry.at_least(asked, self._rng)
        else:
            delay = retry.delay(lot.attempt, self._rng)
        return Outcome(held, "retrying", ran, failure.text, delay, failure.type, failure.message)

    def _unknown(self, held: Held) -> Outcome:
        failure = told("UnknownType", f"no live worker knows a handler for the type {held.lot.type_name!r}")
        delay = UNKNOWN_DELAY * (1 + 0.2 * self._rng.random())
        return Outcome(held, "released", 0.0, failure.text, delay, failure.type, failure.message)

    # -- what a handler is given

    def _context(self, held: Held, timeout: float) -> TaskContext:
        lot = held.lot
        return TaskContext(
            id=held.id.decode(),
            type=lot.type_name,
            attempt=lot.attempt,
            max_attempts=lot.max_attempts,
            deadline=time.time() + timeout if timeout else None,
            token=lot.token,
            runtime=AttemptRuntime(held, self._slot, self._lease, self._report_progress),
        )

    # -- the soft time limit

    def _timed_call(
        self,
        held: Held,
        call: Callable[..., object],
        function: Callable[..., object],
        arguments: dict[str, object],
        deadline: float,
    ) -> object:
        """Call the handler so that `interrupt` can reach it, and only it.

        `interrupt` sets the exception under the guard, while `_timed` is set; leaving clears
        `_timed` under the guard. So none is set after the handler was left, and one that was set
        but not raised yet is taken back.
        """
        self._timed = held
        self.soft_limit = deadline
        try:
            self._wake_by(deadline)
            return call(function, **arguments)
        finally:
            self._end_timed_call()

    def _end_timed_call(self) -> None:
        with self._guard:
            self._timed = None
            self.soft_limit = 0.0
            set_async_exception(self.thread.ident, None)


def set_async_exception(thread: int | None, kind: type[BaseException] | None) -> None:
    """Have `kind` raised in a thread when it next runs bytecode; None takes one back.

    See PyThreadState_SetAsyncExc in CPython's C API reference.
    """
    exception = ctypes.py_object(kind) if kind is not None else None
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread or 0), exception)
