"""Whose leases the keeper extends, and whose not."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from prefork_q.ipc.scoreboard import boot_time
from prefork_q.keeper.renewer import BATCH, SILENCE, Renewer
from prefork_q.keys import Keys
from tests.support.server import Server
from tests.support.stage import Stage
from tests.support.until import until

LEASE = 30.0
OLD = LEASE / 3 + 1
"""Seconds since a claim, after which it is renewed."""


@pytest.fixture
def stage(server: Server, keys: Keys, tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(server.url, keys, tmp_path, lease=LEASE)
    yield stage
    stage.close()


@pytest.fixture
def renewer(stage: Stage) -> Renewer:
    return Renewer(stage.board, stage.broker, stage.events, lease=LEASE)


def test_the_lease_of_what_runs_is_extended_and_noted_as_of_before_the_call(
    stage: Stage, renewer: Renewer
) -> None:
    stage.submit()
    slot = stage.worker()
    [lease] = stage.claim(slot, age=OLD)
    stage.run(slot, lease, age=OLD)
    stage.expire(lease.id)
    before = boot_time()

    renewer.run(before)

    assert LEASE - 1 < stage.lease_left(lease.id) <= LEASE
    assert before <= slot.lease_started(0) <= boot_time()


def test_a_young_lease_is_left_alone(stage: Stage, renewer: Renewer) -> None:
    stage.submit()
    slot = stage.worker()
    [lease] = stage.claim(slot)
    stage.expire(lease.id)

    wakes_at = renewer.run(boot_time())

    assert stage.lease_left(lease.id) < 0
    assert wakes_at - boot_time() <= 1.0


def test_a_buffered_claim_is_renewed_without_being_called_started(stage: Stage, renewer: Renewer) -> None:
    stage.submit()
    slot = stage.worker()
    [lease] = stage.claim(slot, age=OLD)

    renewer.run(boot_time())

    assert slot.holds()[0].renewed_at > 0
    assert stage.client.hget(stage.keys.task(lease.id.decode()), "started") is None


def test_redis_is_told_early_of_a_task_that_was_started(stage: Stage, renewer: Renewer) -> None:
    stage.submit()
    slot = stage.worker()
    [lease] = stage.claim(slot, age=1.5)
    stage.run(slot, lease, age=1.5)

    renewer.run(boot_time())
    renewed_at = slot.holds()[0].renewed_at
    renewer.run(boot_time())

    assert stage.client.hget(stage.keys.task(lease.id.decode()), "started") == b"%d" % lease.token
    assert slot.holds()[0].renewed_at == renewed_at > 0


def test_a_stopped_worker_is_not_renewed(stage: Stage, renewer: Renewer) -> None:
    stage.submit()
    slot = stage.worker()
    [lease] = stage.claim(slot, age=OLD)
    stage.run(slot, lease, age=OLD)
    os.kill(slot.pid, signal.SIGSTOP)
    until(lambda: _state(slot.pid) == "T")

    renewer.run(boot_time())
    assert slot.holds()[0].renewed_at == 0

    os.kill(slot.pid, signal.SIGCONT)
    until(lambda: _state(slot.pid) != "T")
    renewer.run(boot_time())
    assert slot.holds()[0].renewed_at > 0


def test_a_dead_worker_is_not_renewed_while_the_master_has_not_noticed(
    stage: Stage, renewer: Renewer
) -> None:
    stage.submit()
    slot = stage.worker()
    stage.claim(slot, age=OLD)
    os.kill(slot.pid, signal.SIGKILL)
    until(lambda: _state(slot.pid) == "Z")

    renewer.run(boot_time())

    assert slot.holds()[0].renewed_at == 0


def test_a_worker_whose_loop_stands_still_keeps_what_runs_and_loses_its_buffer(
    stage: Stage, renewer: Renewer
) -> None:
    stage.submit(2)
    slot = stage.worker()
    running, _ = stage.claim(slot, 2, age=OLD)
    stage.run(slot, running, age=OLD)
    slot.beat(boot_time() - SILENCE - 1)

    renewer.run(boot_time())

    renewed = {held.id: held.renewed_at > 0 for held in slot.holds()}
    assert renewed.pop(running.id.decode())
    assert list(renewed.values()) == [False]


def test_what_has_finished_and_waits_to_be_committed_is_renewed_though_the_loop_stands_still(
    stage: Stage, renewer: Renewer
) -> None:
    stage.submit()
    slot = stage.worker()
    [lease] = stage.claim(slot, age=OLD)
    stage.run(slot, lease, age=OLD)
    renewer.run(boot_time())
    slot.finished(0)
    slot.beat(boot_time() - SILENCE - 1)
    slot.renewed(0, lease.token, boot_time() - OLD)

    renewer.run(boot_time())

    assert boot_time() - slot.holds()[0].renewed_at < 5


def test_a_lease_that_is_lost_is_marked_and_not_asked_for_again(stage: Stage, renewer: Renewer) -> None:
    stage.submit()
    slot = stage.worker()
    [lease] = stage.claim(slot, age=OLD)
    stage.broker.release(lease.id, lease.token)

    renewer.run(boot_time())

    assert slot.is_lost(0, lease.token)
    assert slot.holds()[0].renewed_at == 0
    calls = _renew_calls(stage)
    renewer.run(boot_time())
    assert _renew_calls(stage) == calls


def test_a_wish_to_cancel_reaches_the_slot(stage: Stage, renewer: Renewer) -> None:
    stage.submit()
    slot = stage.worker()
    [lease] = stage.claim(slot, age=OLD)
    stage.run(slot, lease, age=OLD)
    assert stage.broker.cancel(lease.id.decode()) == "requested"

    renewer.run(boot_time())

    assert slot.is_cancel_requested(0, lease.token)
    assert slot.holds()[0].renewed_at > 0


def test_a_wish_to_cancel_what_runs_is_heard_at_the_next_tick(stage: Stage, renewer: Renewer) -> None:
    stage.submit(2)
    slot = stage.worker()
    asked, other = stage.claim(slot, 2)
    stage.run(slot, asked)
    stage.run(slot, other, processor=1)
    renewer.run(boot_time())
    assert not slot.is_cancel_requested(0, asked.token)

    assert stage.broker.cancel(asked.id.decode()) == "requested"
    renewer.run(boot_time())

    assert slot.is_cancel_requested(0, asked.token)
    assert not slot.is_cancel_requested(1, other.token)
    # Once is enough, and a young lease is not renewed for it again.
    stage.expire(asked.id)
    renewer.run(boot_time())
    assert stage.lease_left(asked.id) < 0


def test_a_wish_to_cancel_what_is_buffered_is_heard_when_it_runs(stage: Stage, renewer: Renewer) -> None:
    stage.submit(2)
    slot = stage.worker()
    running, buffered = stage.claim(slot, 2)
    stage.run(slot, running)
    assert stage.broker.cancel(buffered.id.decode()) == "requested"
    renewer.run(boot_time())

    stage.run(slot, buffered, processor=1)
    renewer.run(boot_time())

    assert slot.is_cancel_requested(1, buffered.token)


def test_an_old_wish_to_cancel_is_not_for_a_new_life_of_the_task(stage: Stage, renewer: Renewer) -> None:
    [id] = stage.submit(max_attempts=1)
    slot = stage.worker()
    [first] = stage.claim(slot)
    stage.client.zadd(stage.keys("cancels"), {id: 1})
    stage.run(slot, first)

    renewer.run(boot_time())

    assert not slot.is_cancel_requested(0, first.token)



def test_idle_workers_cost_no_call(stage: Stage, renewer: Renewer) -> None:
    stage.worker()
    before = _renew_calls(stage)

    renewer.run(boot_time())

    assert _renew_calls(stage) == before


def test_more_than_a_batch_is_renewed_in_several_runs(
    server: Server, keys: Keys, tmp_path: Path
) -> None:
    stage = Stage(server.url, keys, tmp_path, lease=LEASE, held=BATCH)
    try:
        renewer = Renewer(stage.board, stage.broker, stage.events, lease=LEASE)
        stage.submit(BATCH + 50)
        slots = [stage.worker(0), stage.worker(1)]
        for slot in slots:
            stage.claim(slot, (BATCH + 50) // 2, age=OLD)
        now = boot_time()

        assert renewer.run(now) == now
        assert renewer.run(now) > now

        assert all(held.renewed_at > 0 for slot in slots for held in slot.holds())
    finally:
        stage.close()


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def _renew_calls(stage: Stage) -> int:
    stats = stage.client.info("commandstats")
    return sum(stats.get(f"cmdstat_{name}", {}).get("calls", 0) for name in ("evalsha", "eval"))
