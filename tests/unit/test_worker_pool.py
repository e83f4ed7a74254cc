"""Processor threads without Redis: what they make of a task, in which order, and what can be taken back."""

from __future__ import annotations

import ctypes
import math
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import orjson
import pytest

from prefork_q.context import TaskContext
from prefork_q.errors import IdempotencyConflict, InvalidPayload, Reject, RetryAfter, TaskTimeout
from prefork_q.ipc.scoreboard import Scoreboard, boot_time
from prefork_q.ipc.slot import IDLE, WorkerSlot
from prefork_q.retry import MAX_DELAY, Retry
from prefork_q.worker.held import Held, Lot, Outcome
from prefork_q.worker.pool import Pool
from prefork_q.worker.processor import Processor, ProcessorThread
from prefork_q.worker.routes import Route
from tests.support.until import until

LEASE = 30.0
RETRY = Retry(base=1.0, factor=2.0, cap=60.0, jitter=0.5, never=(ZeroDivisionError,))


class Stand:
    """A pool, and what stands around it in a worker."""

    def __init__(self, threads: int = 1, kind: type[Processor] = Processor) -> None:
        self._kind = kind
        self.slot: WorkerSlot = Scoreboard(1, threads, 64).worker(0)
        self.outcomes: list[Outcome] = []
        self.reports: list[tuple[Held, float, str]] = []
        self.wakes: list[float] = []
        self.made = 0
        self.pool = Pool(threads, self._make)
        self.pool.start()

    def _make(self, number: int, inbox: SimpleQueue[Held]) -> Processor:
        self.made += 1
        return self._kind(
            number, inbox=inbox, deliver=self.outcomes.append, wake_by=self.wakes.append, slot=self.slot,
            lease=LEASE, grace=2.0, result_limit=1_000,
            report_progress=lambda *report: self.reports.append(report),
        )  # fmt: skip

    def held(
        self, function: Callable[..., Any] | None, *, body: bytes = b"{}", attempt: int = 1, age: float = 0.0,
        timeout: float | None = None, context: str | None = None, index: int = 0,
    ) -> Held:  # fmt: skip
        route = None
        if function is not None:
            route = Route(b"t", "t", function, orjson.loads, context, RETRY, timeout, 0)
        now = boot_time()
        lot = Lot(b"t", b"default", attempt, 3, 0, timeout or 0.0, 7 + index, route, now - age, now, None)
        self.slot.hold(index, b"i" * 36, lot.token, now - age)
        return Held(lot, b"i" * 36, body, index)

    def run(self, function: Callable[..., Any] | None, **options: Any) -> Outcome:
        """Have one task run, and return what became of it."""
        held = self.held(function, **options)
        self.pool.put(held)
        until(lambda: any(outcome.held is held for outcome in self.outcomes), what="an outcome")
        return next(outcome for outcome in self.outcomes if outcome.held is held)


@pytest.fixture
def stand() -> Stand:
    return Stand()


class Gate:
    """A handler that waits until it is let go."""

    def __init__(self) -> None:
        self._open = threading.Event()
        self.entered = threading.Event()

    def __call__(self) -> str:
        self.entered.set()
        assert self._open.wait(10)
        return "through"

    def open(self) -> None:
        self._open.set()


def raiser(error: BaseException) -> Callable[[], None]:
    def handler() -> None:
        raise error

    return handler


# -- outcomes


def test_what_a_handler_returns_is_its_result(stand: Stand) -> None:
    outcome = stand.run(lambda a, b: a + b, body=b'{"a":1,"b":2}')

    assert (outcome.name, outcome.text, outcome.delay) == ("succeeded", b"3", None)
    assert 0 <= outcome.ran < 1


@pytest.mark.parametrize(
    "error",
    [
        ValueError("no"), SystemExit(3), KeyboardInterrupt(), GeneratorExit(), MemoryError(), TaskTimeout(),
        # Of a call that the handler made, not of its own payload.
        InvalidPayload("the payload of another task"), IdempotencyConflict("the key was used"),
    ],
)
def test_what_a_handler_raises_is_retried_after_a_delay(stand: Stand, error: BaseException) -> None:
    outcome = stand.run(raiser(error), attempt=2)

    assert outcome.name == "retrying"
    assert outcome.delay is not None
    assert 2.0 <= outcome.delay <= 3.0
    assert str(outcome.error_type).endswith(type(error).__name__)


def test_the_last_attempt_is_dead(stand: Stand) -> None:
    outcome = stand.run(raiser(ValueError("no")), attempt=3)

    assert (outcome.name, outcome.delay) == ("dead", None)


@pytest.mark.parametrize("error", [Reject("never"), ZeroDivisionError()])
def test_what_is_not_to_be_retried_is_dead(stand: Stand, error: Exception) -> None:
    assert stand.run(raiser(error)).name == "dead"


@pytest.mark.parametrize(
    ("seconds", "at_least"), [(40, 40.0), (0, 0.0), (-5, 0.0), (1e300, MAX_DELAY), (math.inf, MAX_DELAY)]
)
def test_a_handlers_own_delay_is_kept(stand: Stand, seconds: float, at_least: float) -> None:
    outcome = stand.run(raiser(RetryAfter(seconds)))

    assert outcome.delay is not None
    assert at_least <= outcome.delay <= min(at_least * 1.5, MAX_DELAY)


def wrong_retry_after(seconds: Any) -> RetryAfter:
    error = RetryAfter(1.0)
    error.seconds = seconds
    return error


@pytest.mark.parametrize("seconds", [math.nan, "5", None, [1], 1j])
def test_a_delay_that_is_no_number_is_the_policys(stand: Stand, seconds: Any) -> None:
    outcome = stand.run(raiser(wrong_retry_after(seconds)))

    assert outcome.name == "retrying"
    assert outcome.delay is not None
    assert 1.0 <= outcome.delay <= 1.5


def test_a_delay_without_its_seconds_ends_neither_thread_nor_task(stand: Stand) -> None:
    error = RetryAfter(1.0)
    del error.seconds

    assert stand.run(raiser(error)).name == "retrying"
    assert stand.run(lambda: 1).name == "succeeded"


def test_an_unknown_type_is_released_for_later(stand: Stand) -> None:
    outcome = stand.run(None)

    assert outcome.name == "released"
    assert outcome.delay is not None
    assert 5.0 <= outcome.delay <= 6.0
    assert outcome.error_type == "UnknownType"


def test_a_result_that_is_no_json_is_dead(stand: Stand) -> None:
    outcome = stand.run(lambda: object())

    assert outcome.name == "dead"
    assert str(outcome.error_type).endswith("UnserializableResult")


class Evil(Exception):
    @property
    def __cause__(self) -> BaseException | None:  # type: ignore[override]
        raise SystemExit

    def __str__(self) -> str:
        raise KeyboardInterrupt


def test_an_exception_with_bad_manners_ends_no_thread(stand: Stand) -> None:
    assert stand.run(raiser(Evil())).name == "retrying"
    assert stand.run(lambda: 1).name == "succeeded"
    assert stand.made == 1


def test_a_context_is_given_by_the_name_that_wants_it(stand: Stand) -> None:
    def handler(n: int, ctx: TaskContext) -> list[object]:
        ctx.progress(0.5, "half")
        return [n, ctx.attempt, ctx.token, ctx.lease_valid(), ctx.cancelled]

    outcome = stand.run(handler, body=b'{"n":1}', context="ctx")

    assert orjson.loads(outcome.text) == [1, 1, 7, True, False]
    assert [report[1:] for report in stand.reports] == [(0.5, "half")]


# -- leases


def test_an_old_lease_that_nobody_renewed_is_not_started(stand: Stand) -> None:
    ran: list[int] = []

    outcome = stand.run(lambda: ran.append(1), age=LEASE + 1)

    assert (outcome.name, outcome.delay, ran) == ("released", None, [])


def test_an_old_lease_that_was_renewed_is_started(stand: Stand) -> None:
    held = stand.held(lambda: 1, age=LEASE + 1)
    stand.slot.renewed(held.index, held.lot.token, boot_time())

    stand.pool.put(held)
    until(lambda: stand.outcomes)

    assert stand.outcomes[0].name == "succeeded"


def test_a_lease_that_is_known_to_be_lost_is_not_started(stand: Stand) -> None:
    held = stand.held(lambda: 1, age=LEASE / 2)
    stand.slot.lost(held.index, held.lot.token)

    stand.pool.put(held)
    until(lambda: stand.outcomes)

    assert stand.outcomes[0].name == "released"


# -- the buffer


def test_tasks_start_in_their_order_and_the_rest_can_be_taken_back(stand: Stand) -> None:
    gate, order = Gate(), []
    first = stand.held(gate)
    others = [stand.held(lambda n=n: order.append(n), index=n) for n in range(1, 6)]
    for held in (first, *others):
        stand.pool.put(held)
    assert gate.entered.wait(5)

    assert stand.pool.oldest_waiting() is others[0]
    assert stand.pool.take_back() == others
    assert stand.pool.oldest_waiting() is None
    assert stand.pool.take_back() == []
    for held in others[:3]:
        stand.pool.put(held)
    gate.open()
    until(lambda: len(stand.outcomes) == 4)
    assert order == [1, 2, 3]
    assert stand.pool.oldest_waiting() is None


def test_all_threads_work_at_the_same_time() -> None:
    stand = Stand(threads=4)
    gates = [Gate() for _ in range(4)]
    for index, gate in enumerate(gates):
        stand.pool.put(stand.held(gate, index=index))

    assert all(gate.entered.wait(5) for gate in gates)
    assert len(stand.slot.running()) == 4
    for gate in gates:
        gate.open()
    until(lambda: len(stand.outcomes) == 4)
    until(lambda: stand.slot.running() == [])


# -- soft limits


def interrupted(stand: Stand, at: float) -> list[Held]:
    """Look after the limits until one has been enforced."""
    return until(lambda: stand.pool.interrupt(max(at, boot_time())))


def spin(seconds: float = 10.0) -> str:
    until_ = time.monotonic() + seconds
    while time.monotonic() < until_:
        pass
    return "in time"


def test_a_limit_is_announced_and_enforced(stand: Stand) -> None:
    held = stand.held(spin, timeout=0.1)
    began = boot_time()
    stand.pool.put(held)
    until(lambda: stand.wakes)
    assert stand.wakes[0] == stand.pool.next_soft_limit() == pytest.approx(began + 0.1, abs=0.1)

    assert interrupted(stand, 0.0) == [held]

    until(lambda: stand.outcomes)
    (outcome,) = stand.outcomes
    assert (outcome.error_type, outcome.error_message) == (
        "TaskTimeout",
        "ran longer than its timeout of 0.1 s",
    )
    assert b"TaskTimeout: ran longer than its timeout of 0.1 s" in outcome.text
    assert stand.pool.next_soft_limit() is None
    assert stand.pool.interrupt(math.inf) == []


def test_nothing_is_interrupted_before_its_time(stand: Stand) -> None:
    gate = Gate()
    stand.pool.put(stand.held(gate, timeout=50.0))
    assert gate.entered.wait(5)

    assert stand.pool.interrupt(boot_time() + 49.0) == []
    gate.open()
    until(lambda: stand.outcomes)
    assert stand.outcomes[0].name == "succeeded"


def test_what_was_left_cannot_be_interrupted(stand: Stand) -> None:
    assert stand.run(lambda: 1, timeout=0.01).name == "succeeded"

    assert stand.pool.interrupt(boot_time() + 100) == []
    assert stand.run(lambda: spin(0.05)).name == "succeeded"


def test_limits_enforced_at_the_very_end_of_handlers_hit_nothing_else(stand: Stand) -> None:
    """The handler ends at any moment around its interruption; the untimed one after it never sees it."""
    for n in range(300):
        limited = stand.held(lambda: None, timeout=0.0001 * (n % 4 + 1))
        free = stand.held(lambda: spin(0.0003), index=1)
        stand.pool.put(limited)
        stand.pool.put(free)

        def is_over(free: Held = free) -> bool:
            return any(outcome.held is free for outcome in stand.outcomes)

        until(lambda is_over=is_over: stand.pool.interrupt(math.inf) or is_over(), every=0.0)
        until(is_over, every=0.0001)
        assert next(one for one in stand.outcomes if one.held is free).name == "succeeded"
        stand.outcomes.clear()
    assert stand.made == 1


# -- threads that are ended from outside


def strike(processor: Processor, error: type[BaseException] = SystemExit) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(processor.thread.ident or 0), ctypes.py_object(error)
    )


def test_an_exception_from_outside_between_two_tasks_ends_nothing(stand: Stand) -> None:
    for _ in range(50):
        strike(stand.pool.processors[0])
        outcome = stand.run(lambda: 1)
        assert outcome.name in ("succeeded", "released", "retrying")
        stand.outcomes.clear()
    assert stand.pool.replace_dead() == []


ends_threads = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")


class Mortal(Processor):
    """One that an exception ends, as exceptions do that come faster than they can be caught."""

    def _recover(self, error: BaseException) -> None:
        raise SystemExit

    def _attempt(self, held: Held) -> Outcome:
        if held.body == b'"die"':
            raise SystemExit
        return super()._attempt(held)


@ends_threads
def test_what_a_dead_thread_had_started_is_retried_and_its_place_is_free() -> None:
    stand = Stand(kind=Mortal)
    dead = stand.pool.processors[0]
    held = stand.held(lambda: 1, body=b'"die"')
    stand.pool.put(held)
    until(lambda: dead.is_dead)

    (lost,) = stand.pool.replace_dead()

    assert (lost.held, lost.name, lost.error_type) == (held, "retrying", "ProcessorLost")
    assert lost.delay is not None
    assert 1.0 <= lost.delay <= 1.5
    assert stand.slot.processor_state(0) == IDLE
    assert (stand.made, stand.pool.replace_dead()) == (2, [])
    assert stand.run(lambda: 1).name == "succeeded"


@ends_threads
def test_what_a_dead_thread_had_taken_and_not_started_is_released() -> None:
    stand = Stand(kind=Mortal)
    dead = stand.pool.processors[0]
    strike(dead)  # it sleeps, and will be hit when it has taken something
    held = stand.held(lambda: 1)
    stand.pool.put(held)
    until(lambda: dead.is_dead)

    (lost,) = stand.pool.replace_dead()

    assert (lost.held, lost.name) == (held, "released")
    assert stand.run(lambda: 1).name == "succeeded"


class Stillborn(ProcessorThread):
    """One that is ended from outside before it has begun."""

    def _bootstrap(self) -> None:
        return


class FirstStillborn(Processor):
    """The first one's thread never begins."""

    def start(self) -> None:
        if self.number == 0 and not self._slot.thread_of(1):
            self.thread = Stillborn(self._run, "processor-0")
        super().start()


def test_a_thread_that_never_begins_holds_up_nobody_and_is_replaced() -> None:
    stand = Stand(threads=2, kind=FirstStillborn)

    assert [processor.is_dead for processor in stand.pool.processors] == [True, False]
    assert stand.pool.replace_dead() == []
    assert [processor.is_dead for processor in stand.pool.processors] == [False, False]
    assert (stand.made, stand.run(lambda: 1).name) == (3, "succeeded")


def test_a_thread_that_begins_after_it_was_given_up_takes_nothing() -> None:
    stand = Stand()
    late = Processor(
        0, inbox=SimpleQueue(), deliver=stand.outcomes.append, wake_by=stand.wakes.append, slot=stand.slot,
        lease=LEASE, grace=2.0, result_limit=1_000, report_progress=lambda *report: None,
    )  # fmt: skip

    assert late.bury() is None
    late.start()

    until(lambda: late.is_dead)
