"""The keeper's chores, each by itself against a real server."""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from prefork_q.errors import ConfigurationError
from prefork_q.ipc import stats
from prefork_q.ipc.messages import Acknowledged, Claim, DeathNotice, Ended, LeasesExpired, TimedOut
from prefork_q.ipc.scoreboard import boot_time
from prefork_q.ipc.slot import WorkerSlot
from prefork_q.keeper.handback import Returner
from prefork_q.keeper.mover import LONGEST_WAIT, Mover
from prefork_q.keeper.processes import resident_bytes
from prefork_q.keeper.pruner import Pruner
from prefork_q.keeper.reaper import Reaper
from prefork_q.keeper.registrar import Registrar
from prefork_q.keeper.reminder import Reminder
from prefork_q.keeper.renewer import Renewer
from prefork_q.keeper.sampler import Sampler
from prefork_q.keys import Keys
from tests.support.server import Server
from tests.support.stage import TYPE, Stage
from tests.support.state import State
from tests.support.until import until


@pytest.fixture
def stage(server: Server, keys: Keys, tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(server.url, keys, tmp_path)
    yield stage
    stage.close()


class Told(list[Acknowledged]):
    """What the master was told."""


def returner_of(stage: Stage, told: Told | None = None) -> Returner:
    acknowledge = (Told() if told is None else told).append
    return Returner(stage.broker, acknowledge, stage.events, stage.board.keeper, lease=stage.lease)


def killed(slot: WorkerSlot, running: Claim, *held: Claim, drained: bool = False) -> DeathNotice:
    return DeathNotice(
        slot.incarnation, slot.number, "killed by signal 9 (SIGKILL)", signal=9, drained=drained,
        running=(running,), held=held, peak_rss_bytes=4096,
    )  # fmt: skip


# -- hand back


def test_a_killed_workers_tasks_go_back_and_only_what_ran_is_charged(stage: Stage) -> None:
    stage.submit(3)
    slot = stage.worker()
    first, *others = (Claim(lease.id.decode(), lease.token) for lease in stage.claim(slot, 3))
    told = Told()
    returner = returner_of(stage, told)

    returner.add(killed(slot, first, *others))
    assert returner.run(boot_time()) == math.inf

    assert [stage.task(claim.id).crashes for claim in (first, *others)] == [1, 0, 0]
    assert [stage.task(claim.id).attempts for claim in (first, *others)] == [0, 0, 0]
    assert {stage.status(claim.id) for claim in (first, *others)} == {"pending"}
    assert told == [Acknowledged(slot.incarnation)]
    assert [line["has_crashed"] for line in stage.said("handed_back")].count(True) == 1
    assert returner.is_done


def test_the_error_of_a_crash_names_the_signal(stage: Stage) -> None:
    stage.submit()
    slot = stage.worker()
    [lease] = stage.claim(slot)
    returner = returner_of(stage)

    returner.add(killed(slot, Claim(lease.id.decode(), lease.token)))
    returner.run(boot_time())

    error = stage.task(lease.id).error
    assert error is not None
    assert error["type"] == "WorkerDied"
    assert "killed by signal 9 (SIGKILL)" in error["message"]
    assert error["cause"] == {
        "signal": 9, "exit_code": None, "timed_out": False, "peak_rss_bytes": 4096,
    }  # fmt: skip


def test_a_hard_time_limit_ends_that_task_alone(stage: Stage) -> None:
    retried, last, neighbour = stage.submit(3, max_attempts=2)
    slot = stage.worker()
    tokens = {lease.id.decode(): lease.token for lease in stage.claim(slot, 3)}
    told = Told()
    returner = returner_of(stage, told)

    returner.add(
        DeathNotice(
            slot.incarnation, 3, "killed by signal 9 (SIGKILL): time limit", signal=9, drained=True, pid=4711,
            generation=2, peak_rss_bytes=4096, ran={retried: 2.5},
            timed_out=(
                TimedOut(retried, tokens[retried], 2.0, 60.0, "in spin"),
                TimedOut(last, tokens[last], 2.0, None, "in sleep"),
            ),
            running=(Claim(neighbour, tokens[neighbour]),),
        )
    )
    returner.run(boot_time())

    assert [stage.status(id) for id in (retried, last, neighbour)] == ["delayed", "dead", "pending"]
    assert [stage.task(id).attempts for id in (retried, last, neighbour)] == [1, 1, 0]
    assert {stage.task(id).crashes for id in (retried, last, neighbour)} == {0}
    error = stage.task(last).error
    assert error is not None
    assert (error["type"], error["traceback"]) == ("TaskTimeout", "")
    assert error["cause"] == {
        "signal": 9, "exit_code": None, "timed_out": True, "peak_rss_bytes": 4096, "stack": "in sleep",
    }  # fmt: skip
    counters = stage.board.keeper.counters()
    assert [counters[n] for n in (stats.FAILED, stats.RETRIED, stats.DEAD, stats.RELEASED)] == [2, 1, 1, 1]
    assert set(told[0].ended) == {
        Ended("thing", stats.FAILED, 2), Ended("thing", stats.RETRIED, 1), Ended("thing", stats.DEAD, 1),
    }  # fmt: skip
    lines = {line["id"]: line for line in stage.said("finished")}
    assert [lines[id]["outcome"] for id in (retried, last)] == ["retrying", "dead"]
    assert lines[retried]["duration_ms"] == 2500
    assert (lines[last]["worker"], lines[last]["pid"], lines[last]["attempt"]) == (3, 4711, 1)


def test_a_task_that_kills_once_too_often_is_dead(stage: Stage) -> None:
    [id] = stage.submit(max_attempts=1)
    returner = returner_of(stage)

    for number in range(4):
        assert stage.status(id) == "pending"
        slot = stage.worker(number)
        [lease] = stage.claim(slot)
        returner.add(killed(slot, Claim(id, lease.token)))
        returner.run(boot_time())

    assert stage.status(id) == "dead"
    assert stage.task(id).crashes == 4
    assert [line["outcome"] for line in stage.said("handed_back")] == ["released"] * 3 + ["dead"]
    assert stage.board.keeper.counters()[stats.DEAD] == 1


def test_what_the_master_killed_for_its_own_reasons_is_charged_to_nobody(stage: Stage) -> None:
    stage.submit()
    slot = stage.worker()
    [lease] = stage.claim(slot)
    returner = returner_of(stage)

    returner.add(killed(slot, Claim(lease.id.decode(), lease.token), drained=True))
    returner.run(boot_time())

    assert stage.status(lease.id) == "pending"
    assert (stage.task(lease.id).crashes, stage.task(lease.id).attempts) == (0, 0)


def test_a_claim_that_never_reached_the_slot_goes_back_too(stage: Stage) -> None:
    stage.submit(2)
    slot = stage.worker()
    leases = stage.claim(slot, 2)
    returner = returner_of(stage)

    returner.add(DeathNotice(slot.incarnation, 0, "exited 1", exit_code=1))
    returner.run(boot_time())

    assert {stage.status(lease.id) for lease in leases} == {"pending"}


def test_the_dead_can_claim_nothing_more(stage: Stage) -> None:
    slot = stage.worker()
    returner = returner_of(stage)
    returner.add(DeathNotice(slot.incarnation, 0, "exited 0", exit_code=0, drained=True))
    returner.run(boot_time())

    [id] = stage.submit()

    assert stage.claim(slot) == []
    assert stage.status(id) == "pending"


def test_a_notice_that_comes_twice_changes_nothing_the_second_time(stage: Stage) -> None:
    stage.submit()
    slot = stage.worker()
    [lease] = stage.claim(slot)
    notice = killed(slot, Claim(lease.id.decode(), lease.token))
    told = Told()
    returner = returner_of(stage, told)

    for _ in range(2):
        returner.add(notice)
        returner.run(boot_time())

    assert stage.task(lease.id).crashes == 1
    assert told == [Acknowledged(slot.incarnation)] * 2


def test_more_than_a_batch_is_handed_back_whole(server: Server, keys: Keys, tmp_path: Path) -> None:
    stage = Stage(server.url, keys, tmp_path, held=700)
    try:
        stage.submit(700)
        slot = stage.worker()
        claims = [Claim(lease.id.decode(), lease.token) for lease in stage.claim(slot, 700)]
        assert len(claims) == 700
        returner = returner_of(stage)

        returner.add(killed(slot, claims[0], *claims[1:]))
        returner.run(boot_time())

        assert stage.inspector.counts().pending == 700
        assert stage.inspector.counts().processing == 0
    finally:
        stage.close()


# -- mover


def test_due_tasks_are_promoted_in_batches_until_none_is_left(stage: Stage) -> None:
    ids = stage.submit(501, delay=60.0)
    stage.make_due(*ids)
    mover = Mover(stage.broker, stage.board.keeper)
    now = boot_time()

    assert mover.run(now) == now
    assert stage.inspector.counts().pending == 500
    assert mover.run(now) > now

    assert stage.inspector.counts().pending == 501
    assert stage.board.keeper.counters()[stats.PROMOTED] == 501


def test_the_mover_sleeps_until_the_next_is_due_but_never_long(stage: Stage) -> None:
    mover = Mover(stage.broker, stage.board.keeper)
    now = boot_time()
    assert mover.run(now) == now + LONGEST_WAIT

    stage.submit(delay=60.0)
    assert mover.run(now) == now + LONGEST_WAIT

    stage.submit(delay=2.0)
    assert 1.5 < mover.run(now) - now <= 2.0


# -- reaper


def reaper_of(stage: Stage, told: list[LeasesExpired] | None = None) -> Reaper:
    tell = ([] if told is None else told).append
    return Reaper(stage.broker, tell, stage.events, stage.board.keeper, lease=stage.lease)


def test_expired_leases_go_back_and_each_is_said(stage: Stage) -> None:
    stage.keepers_were_seen(1.0)
    stage.submit(2)
    slot = stage.worker()
    expired, kept = stage.claim(slot, 2)
    stage.expire(expired.id)

    wakes_at = reaper_of(stage).run(boot_time())

    assert stage.status(expired.id) == "pending"
    assert stage.status(kept.id) == "processing"
    assert [line["id"] for line in stage.said("lease_expired")] == [expired.id.decode()]
    assert stage.board.keeper.counters()[stats.LEASES_EXPIRED] == 1
    assert 0 < wakes_at - boot_time() <= 1.2


def test_what_the_expiry_ends_counts_for_its_type(server: Server, stage: Stage) -> None:
    stage.keepers_were_seen(1.0)
    state = State(server.client(), stage.keys)
    for _ in range(2):
        state.age(state.seed("processing", token=7, type="doomed", losses=10, is_started=True))
    state.age(state.seed("processing", token=7, type="unwanted", is_cancel_requested=True))
    state.age(state.seed("processing", token=7, type="held up"))
    told: list[LeasesExpired] = []

    reaper_of(stage, told).run(boot_time())

    assert told == [LeasesExpired((Ended("doomed", stats.DEAD, 2),))]
    counters = stage.board.keeper.counters()
    assert [counters[n] for n in (stats.LEASES_EXPIRED, stats.DEAD, stats.CANCELLED)] == [4, 2, 1]


def test_a_full_batch_means_at_once_again(server: Server, keys: Keys, tmp_path: Path) -> None:
    stage = Stage(server.url, keys, tmp_path, held=501)
    try:
        stage.keepers_were_seen(1.0)
        stage.submit(501)
        stage.expire(*(lease.id for lease in stage.claim(stage.worker(), 501)))
        reaper = reaper_of(stage)
        now = boot_time()

        assert reaper.run(now) == now
        assert reaper.run(now) > now

        assert stage.inspector.counts().pending == 501
    finally:
        stage.close()


def test_reapers_do_not_keep_step_with_each_other(stage: Stage) -> None:
    reaper = reaper_of(stage)
    now = boot_time()

    intervals = {reaper.run(now) - now for _ in range(20)}

    assert len(intervals) > 10
    assert max(intervals) - min(intervals) > 0.05


@pytest.mark.parametrize("first", ["reap", "renew"])
def test_after_a_time_without_keepers_nobody_reaps_whoever_speaks_first(stage: Stage, first: str) -> None:
    stage.submit(2)
    mine, others = stage.worker(0), stage.worker(1)
    [held] = stage.claim(mine, age=stage.lease)
    [lost] = stage.claim(others)
    stage.run(mine, held)
    stage.expire(held.id, lost.id)
    stage.keepers_were_seen(20.0)
    others.is_alive = False

    if first == "renew":
        Renewer(stage.board, stage.broker, stage.events, lease=stage.lease).run(boot_time())
    reaper_of(stage).run(boot_time())
    reaper_of(stage).run(boot_time())

    assert stage.status(held.id) == stage.status(lost.id) == "processing"


# -- reminder, pruner, registrar, sampler


def test_a_lost_token_is_left_again(stage: Stage) -> None:
    stage.submit()
    stage.client.delete(stage.keys.wake("default"))

    wakes_at = Reminder(stage.broker, stage.board.keeper).run(boot_time())

    assert stage.client.llen(stage.keys.wake("default")) == 1
    assert stage.board.keeper.pending == 1
    assert wakes_at - boot_time() <= 1.0


def test_thousands_of_queues_are_reminded_of_in_several_runs(stage: Stage) -> None:
    ids = [stage.submit(queue=f"q{n}")[0] for n in range(1_200)]
    stage.client.delete(*(stage.keys.wake(f"q{n}") for n in range(1_200)))
    reminder, now = Reminder(stage.broker, stage.board.keeper), boot_time()

    runs = 1
    while reminder.run(now) == now:
        # No sum until it is whole.
        assert stage.board.keeper.pending == 0
        runs += 1

    assert 2 <= runs <= 10
    assert stage.board.keeper.pending == len(ids)
    assert {stage.client.llen(stage.keys.wake(f"q{n}")) for n in range(1_200)} == {1}


def test_the_dead_are_trimmed_to_their_limit_in_batches(stage: Stage) -> None:
    stage.submit(300)
    slot = stage.worker()
    while leases := stage.claim(slot, 10):
        for lease in leases:
            stage.broker.fail(lease.id, lease.token, b"{}", delay=None)
        for held in slot.holds():
            slot.drop(held.index)
    pruner = Pruner(
        stage.broker, stage.events, stage.board.keeper, dead_limit=10, dead_retention=1000.0
    )
    now = boot_time()

    assert pruner.run(now) == now
    assert pruner.run(now) == now + 60

    assert stage.inspector.counts().dead == 10
    assert [line["tasks"] for line in stage.said("dead_trimmed")] == [290]


def test_the_node_says_what_it_runs(stage: Stage) -> None:
    stage.worker(0)
    stage.worker(1).state = "starting"
    facts: dict[str, object] = {"host": "here", "threads": 2}
    registrar = Registrar(stage.board, stage.broker, node="n1", facts=facts)

    registrar.run(boot_time())

    said: Any = stage.client.hget(stage.keys("nodes"), "n1")
    info = orjson.loads(said.split(b" ", 1)[1])
    assert info == {
        "host": "here", "workers": 2, "ready": 1, "threads": 2, "types": [TYPE], "queues": ["default"],
        "quiet": False,
    }  # fmt: skip


def test_what_has_another_layout_is_left_alone(stage: Stage) -> None:
    stage.client.set(stage.keys("layout"), "2")
    registrar = Registrar(stage.board, stage.broker, node="n1", facts={})

    with pytest.raises(ConfigurationError, match="has layout 2, and this version of prefork-q knows 1"):
        registrar.run(boot_time())

    assert not stage.client.exists(stage.keys("nodes"))


def test_memory_is_sampled_of_the_living_only(stage: Stage) -> None:
    slot, gone, other = stage.worker(0), stage.worker(1), stage.worker(2)
    os.kill(gone.pid, signal.SIGKILL)
    until(lambda: Path(f"/proc/{gone.pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z")
    # A program that has just begun has hardly a page.
    until(lambda: min(resident_bytes(one.pid) or 0 for one in (slot, other)) > 100_000)
    sampler = Sampler(stage.board)

    sampler.run(boot_time())

    assert min(slot.rss_bytes, other.rss_bytes) > 100_000
    # One share at a time, each in turn.
    until(lambda: 0 < slot.pss_bytes <= slot.rss_bytes)
    until(lambda: sampler.run(boot_time()) and 0 < other.pss_bytes <= other.rss_bytes)
    assert (gone.rss_bytes, gone.pss_bytes) == (0, 0)
