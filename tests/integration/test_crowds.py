"""Tens of thousands of tasks at once: every script takes a bounded part, and none keeps Redis for long."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from prefork_q.broker import Broker
from prefork_q.ids import new_id
from prefork_q.keys import Keys
from prefork_q.leases import Settlement
from prefork_q.states import Status
from prefork_q.task import Submission
from tests.support.server import Server
from tests.support.state import State, request

pytestmark = pytest.mark.either_server

LEASE = 30.0
BATCH = 500
SLOW = 20.0
"""Milliseconds of the server's processor that a call may take. The bench of sizes, on a quiet machine, looks
at the time that passes."""

BODY = b'{"path":"' + b"x" * 91 + b'"}'


class Crowd:
    """A server of the test's own, and what its scripts cost."""

    def __init__(self, server: Server, keys: Keys) -> None:
        self.redis: Any = server.client()
        self.broker = Broker(self.redis, keys)
        self.state = State(self.redis, keys)

    def submit(self, n: int, queue: str = "default", **options: Any) -> None:
        for _ in range(0, n, BATCH):
            self.broker.submit([Submission(new_id(), "t", BODY, queue, **options) for _ in range(BATCH)])

    def assert_quick(self, work: Callable[[], int]) -> None:
        """Call `work` until it has done nothing more, and assert that a call does not take long."""
        began, calls = self.cpu(), 1
        while work():
            calls += 1
        assert (self.cpu() - began) / calls * 1_000 < SLOW

    def cpu(self) -> float:
        """Seconds of the server's main thread."""
        used = self.redis.info("cpu")
        return float(used["used_cpu_user_main_thread"] + used["used_cpu_sys_main_thread"])

    def work(self, n: int) -> float:
        """Claim and complete `n` tasks as a worker does, submit as many; return Redis's seconds for it."""
        began, handled = self.cpu(), 0
        done: list[Settlement] = []
        while handled < n:
            _, claimed = self.broker.commit(done, request(room=50))
            done = [Settlement("complete", one.id, one.token, 3, b"1") for one in claimed.leases]
            handled += len(done)
            self.broker.submit([Submission(new_id(), "t", BODY) for _ in done])
        self.broker.commit(done, request(room=0))
        return self.cpu() - began


@pytest.fixture
def crowd(new_server: Callable[..., Server], keys: Keys) -> Crowd:
    return Crowd(new_server(is_persistent=False), keys)


def test_a_hundred_thousand_tasks_due_in_one_second_are_promoted_in_bounded_parts(crowd: Crowd) -> None:
    due = time.time() + 3_600
    crowd.submit(100_000, run_at=due)
    ids = crowd.state.ids("delayed")
    for start in range(0, len(ids), 5_000):
        crowd.redis.zadd(crowd.state.keys("delayed"), dict.fromkeys(ids[start : start + 5_000], 1))

    def promote() -> int:
        moved = crowd.broker.promote().moved
        assert moved <= BATCH
        return moved

    crowd.assert_quick(promote)

    assert len(crowd.state.pending()) == 100_000


def test_fifty_thousand_expired_leases_go_back_in_bounded_parts(crowd: Crowd) -> None:
    crowd.submit(50_000)
    for _ in range(0, 50_000, 250):
        assert len(crowd.broker.claim(request(room=250, lease=0.001)).leases) == 250
    began = time.monotonic()

    def reap() -> int:
        crowd.state.keepers_are_heard_of()
        expired = crowd.broker.reap(lease=LEASE).expired
        assert len(expired) <= BATCH
        assert {one.status for one in expired} <= {Status.PENDING}
        return len(expired)

    crowd.assert_quick(reap)

    assert len(crowd.state.pending()) == 50_000
    assert time.monotonic() - began < 60


def test_work_beside_a_backlog_costs_what_it_costs_without(crowd: Crowd) -> None:
    crowd.submit(1_000)
    crowd.work(5_000)  # the first of its kind
    alone = min(crowd.work(5_000) for _ in range(3))
    crowd.submit(150_000)
    crowd.submit(100_000, run_at=time.time() + 3_600)

    beside = min(crowd.work(5_000) for _ in range(3))

    # The bench of sizes allows 15 %, on a quiet machine. A look at all that waits would cost a hundredfold.
    assert beside < 3 * alone


def test_the_first_task_after_an_hour_of_quiet_costs_what_any_costs(crowd: Crowd) -> None:
    crowd.submit(500)
    crowd.work(200)
    usual = commands_of(crowd, lambda: crowd.work(1))

    # An hour passes: what tells of seconds is so much older, and no keeper has been heard of.
    root = crowd.state.keys("rate:")
    for name in crowd.redis.keys(root.replace("{", "\\{") + "*"):
        crowd.redis.rename(name, f"{root}{int(name.rpartition(b':')[2]) - 3_600}")
    crowd.state.keepers_are_heard_of()
    crowd.state.time_passes(3_600)

    assert commands_of(crowd, lambda: crowd.work(1)) <= 1.2 * usual
    assert crowd.state.total("completed") == 300


def commands_of(crowd: Crowd, work: Callable[[], object]) -> int:
    """How many commands the server carries out for it, those of scripts included."""
    before = crowd.redis.info("commandstats")
    work()
    after = crowd.redis.info("commandstats")
    return sum(n["calls"] - before.get(name, {"calls": 0})["calls"] for name, n in after.items())
