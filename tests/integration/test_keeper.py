"""The keeper's loop, with a real channel and a real server that is killed, paused and restarted.

It runs in a thread here; `test_keeper_vigil` runs it in a process of its own.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from prefork_q.ipc import stats
from prefork_q.ipc.channel import Channel
from prefork_q.ipc.messages import Acknowledged, Claim, DeathNotice, Drain, Message, RedisState
from prefork_q.ipc.scoreboard import boot_time
from prefork_q.keeper.keeper import Keeper, KeeperSettings
from prefork_q.keys import Keys
from tests.support.server import Server, free_port
from tests.support.stage import Stage
from tests.support.until import until


class Kept:
    """A stage with a running keeper, and the master's end of its channel."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.master, its = Channel.pair()
        self.heard: list[Message] = []
        self.redis: RedisState | None = None
        settings = KeeperSettings(stage.url, "n1", stage.keys.namespace, lease=stage.lease, drain_timeout=0.2)
        self.keeper = Keeper(stage.board, its, settings, stage.events, master_pid=os.getpid())
        self.exit_code: int | None = None
        self._its = its
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def hears(self, message: Message) -> bool:
        """Whether the keeper has said this, since it was last found to have."""
        self._listen()
        if message not in self.heard:
            return False
        self.heard.remove(message)
        return True

    def hears_of_redis(self, *, reachable: bool) -> bool:
        """Whether this is the last that the keeper has said of Redis."""
        self._listen()
        return self.redis is not None and self.redis.reachable is reachable

    def _listen(self) -> None:
        while (said := self.master.receive()) is not None:
            self.heard.append(said)
            if isinstance(said, RedisState):
                self.redis = said

    def wait(self, timeout: float = 5.0) -> int:
        """Return the exit code."""
        self._thread.join(timeout)
        assert self.exit_code is not None, "the keeper still runs"
        return self.exit_code

    def close(self) -> None:
        if self.exit_code is None:
            self.master.send(Drain(0.0))
        self._thread.join(10)
        self.master.close()
        self._its.close()
        assert not self._thread.is_alive()

    def _run(self) -> None:
        self.exit_code = self.keeper.run()


@pytest.fixture
def keep(tmp_path: Path, keys: Keys) -> Iterator[Callable[..., Kept]]:
    kept: list[Kept] = []

    def begin(url: str, **options: Any) -> Kept:
        kept.append(Kept(Stage(url, keys, tmp_path, **options)))
        return kept[-1]

    yield begin
    for one in kept:
        one.close()
        one.stage.close()


def notice(stage: Stage) -> tuple[DeathNotice, bytes]:
    """A worker that died while it ran a task."""
    stage.submit()
    slot = stage.worker()
    [lease] = stage.claim(slot)
    running = (Claim(lease.id.decode(), lease.token),)
    return DeathNotice(slot.incarnation, 0, "killed by signal 9", signal=9, running=running), lease.id


def test_the_master_is_told_that_redis_is_reached_and_its_version(
    server: Server, keep: Callable[..., Kept]
) -> None:
    kept = keep(server.url)

    until(lambda: kept.hears(RedisState(reachable=True, version=server.version)))


def test_a_dead_workers_task_is_back_within_milliseconds(server: Server, keep: Callable[..., Kept]) -> None:
    kept = keep(server.url)
    until(lambda: kept.hears_of_redis(reachable=True))
    notices = [notice(kept.stage) for _ in range(5)]

    took = []
    for message, id in notices:
        began = time.monotonic()
        kept.master.send(message)
        until(lambda message=message: kept.hears(Acknowledged(message.incarnation)), every=0.001)
        took.append(time.monotonic() - began)
        assert kept.stage.status(id) == "pending"

    # What the machine holds up is not every one.
    assert min(took) < 0.1


def test_a_task_that_is_due_earlier_than_was_known_moves_when_it_is_due(
    server: Server, keep: Callable[..., Kept]
) -> None:
    kept = keep(server.url)
    until(lambda: kept.hears_of_redis(reachable=True))
    kept.stage.submit(delay=60.0)

    took = []
    for _ in range(3):
        began = time.monotonic()
        [id] = kept.stage.submit(delay=0.3)
        until(lambda id=id: kept.stage.status(id) == "pending", every=0.003)
        took.append(time.monotonic() - began)

    # None is early; what the machine holds up is not every one.
    assert 0.29 <= min(took) < 0.5


def test_a_drain_ends_it_once_all_is_handed_back(server: Server, keep: Callable[..., Kept]) -> None:
    kept = keep(server.url)
    until(lambda: kept.hears_of_redis(reachable=True))
    message, id = notice(kept.stage)

    kept.master.send(message)
    kept.master.send(Drain(5.0))

    assert kept.wait() == 0
    assert kept.hears(Acknowledged(message.incarnation))
    assert kept.stage.status(id) == "pending"


def test_a_drain_without_redis_ends_in_time_and_says_what_is_left(
    own_server: Server, keep: Callable[..., Kept]
) -> None:
    kept = keep(own_server.url)
    until(lambda: kept.hears_of_redis(reachable=True))
    message, id = notice(kept.stage)
    own_server.kill()
    until(lambda: kept.hears_of_redis(reachable=False))

    kept.master.send(message)
    began = time.monotonic()
    kept.master.send(Drain(0.3))

    assert kept.wait() == 1
    assert time.monotonic() - began < 2.0
    assert [line["ids"] for line in kept.stage.said("left_to_leases")] == [[id.decode()]]


def test_a_redis_that_is_back_in_time_is_found_in_time(
    own_server: Server, keep: Callable[..., Kept]
) -> None:
    failures = stats.redis_error("connection")
    took = []
    for _ in range(3):
        kept = keep(own_server.url)
        until(lambda kept=kept: kept.hears_of_redis(reachable=True))
        message, id = notice(kept.stage)
        own_server.kill()
        # By now it looks every second or two, and just did.
        until(lambda kept=kept: kept.stage.board.keeper.counters()[failures] >= 6, timeout=10)
        own_server.start()

        kept.master.send(message)
        began = time.monotonic()
        kept.master.send(Drain(5.0))

        assert kept.wait(10.0) == 0
        took.append(time.monotonic() - began)
        assert kept.stage.status(id) == "pending"
        kept.stage.broker.purge("default")

    # What the machine holds up is not every one.
    assert min(took) < 0.4


def test_a_drain_without_redis_and_with_nothing_to_give_back_ends_at_once(
    own_server: Server, keep: Callable[..., Kept]
) -> None:
    kept = keep(own_server.url)
    until(lambda: kept.hears_of_redis(reachable=True))
    own_server.kill()
    until(lambda: kept.hears_of_redis(reachable=False))

    began = time.monotonic()
    kept.master.send(DeathNotice("gone.0.1", 0, "exited 0", exit_code=0, drained=True))
    kept.master.send(Drain(10.0))

    assert kept.wait() == 0
    assert time.monotonic() - began < 1.0


def test_an_outage_makes_two_lines_and_what_waited_is_done_after_it(
    own_server: Server, keep: Callable[..., Kept]
) -> None:
    kept = keep(own_server.url)
    until(lambda: kept.hears_of_redis(reachable=True))
    message, id = notice(kept.stage)
    own_server.kill()
    until(lambda: kept.hears_of_redis(reachable=False))
    kept.master.send(message)

    own_server.start()
    until(lambda: kept.hears(Acknowledged(message.incarnation)))

    assert kept.stage.status(id) == "pending"
    assert kept.hears_of_redis(reachable=True)
    assert len(kept.stage.said("redis_lost")) == len(kept.stage.said("redis_found")) == 1
    assert kept.stage.said("redis_found")[0]["away_s"] > 0


def test_it_waits_for_a_redis_that_is_not_there_yet(keep: Callable[..., Kept]) -> None:
    kept = keep(f"redis://127.0.0.1:{free_port()}/0")

    until(lambda: kept.hears(RedisState(reachable=False, version=None)))

    assert [line["kind"] for line in kept.stage.said("redis_lost")] == ["connection"]


def test_it_beats_while_redis_stands_still(own_server: Server, keep: Callable[..., Kept]) -> None:
    kept = keep(own_server.url)
    until(lambda: kept.hears_of_redis(reachable=True))

    own_server.pause()
    try:
        until(lambda: kept.hears_of_redis(reachable=False))
        silences = []
        for _ in range(40):
            time.sleep(0.1)
            silences.append(boot_time() - kept.stage.board.keeper.last_beat)
    finally:
        own_server.resume()

    assert max(silences) < 2.5
    until(lambda: kept.hears_of_redis(reachable=True))


def test_after_an_outage_longer_than_a_lease_the_living_keep_what_they_hold(
    own_server: Server, keep: Callable[..., Kept]
) -> None:
    kept = keep(own_server.url, lease=1.0)
    until(lambda: kept.hears_of_redis(reachable=True))
    kept.stage.submit()
    slot = kept.stage.worker()
    [lease] = kept.stage.claim(slot)
    kept.stage.run(slot, lease)

    own_server.pause()
    try:
        until(lambda: kept.hears_of_redis(reachable=False))
        until(lambda: boot_time() - slot.lease_started(0) > 2.0)
    finally:
        own_server.resume()
    until(lambda: kept.hears_of_redis(reachable=True))
    until(lambda: boot_time() - slot.lease_started(0) < 0.5)

    assert not slot.is_lost(0, lease.token)
    assert kept.stage.status(lease.id) == "processing"
    assert kept.stage.said("lease_expired") == []


def test_an_idle_keeper_makes_few_calls(server: Server, keep: Callable[..., Kept]) -> None:
    kept = keep(server.url)
    kept.stage.worker()
    until(lambda: kept.hears_of_redis(reachable=True))
    until(lambda: kept.stage.client.hexists(kept.stage.keys("nodes"), "n1"))
    # What all chores do at their first time is over.
    until(lambda: _is_calm(kept.stage))
    before = _commands(kept.stage)

    time.sleep(4.0)

    # Scripts count as calls; so do the commands in them, which are not counted here.
    assert (_commands(kept.stage) - before) / 4.0 <= 2.8


def test_scripts_that_the_server_forgot_are_sent_again(server: Server, keep: Callable[..., Kept]) -> None:
    kept = keep(server.url)
    until(lambda: kept.hears_of_redis(reachable=True))
    message, _ = notice(kept.stage)

    kept.stage.client.script_flush()
    kept.master.send(message)

    until(lambda: kept.hears(Acknowledged(message.incarnation)))
    assert kept.stage.said("redis_lost") == []


def test_a_full_redis_is_no_outage_and_tasks_still_go_back(
    own_server: Server, keep: Callable[..., Kept]
) -> None:
    kept = keep(own_server.url)
    until(lambda: kept.hears_of_redis(reachable=True))
    message, id = notice(kept.stage)
    kept.stage.client.config_set("maxmemory", 1)
    try:
        kept.master.send(message)
        until(lambda: kept.hears(Acknowledged(message.incarnation)))
    finally:
        kept.stage.client.config_set("maxmemory", 0)

    assert kept.stage.status(id) == "pending"
    assert kept.stage.said("redis_lost") == []
    assert kept.stage.said("chore_refused") == []


def test_without_a_master_it_hands_back_what_ended_workers_held(
    server: Server, keep: Callable[..., Kept]
) -> None:
    kept = keep(server.url)
    until(lambda: kept.hears_of_redis(reachable=True))
    kept.stage.submit(2)
    slot = kept.stage.worker()
    running, held = kept.stage.claim(slot, 2)
    kept.stage.run(slot, running)

    kept.master.close()
    until(lambda: kept.stage.said("master_lost"))
    os.kill(slot.pid, signal.SIGKILL)

    assert kept.wait() == 0
    assert {kept.stage.status(lease.id) for lease in (running, held)} == {"pending"}
    assert kept.stage.task(running.id).crashes == 0


def test_without_a_master_and_without_redis_an_idle_keeper_leaves_at_once(
    own_server: Server, keep: Callable[..., Kept]
) -> None:
    kept = keep(own_server.url)
    until(lambda: kept.hears_of_redis(reachable=True))
    own_server.kill()

    began = time.monotonic()
    kept.master.close()

    assert kept.wait() == 0
    assert time.monotonic() - began < 1.0


def test_asked_to_leave_alone_it_leaves(server: Server, keep: Callable[..., Kept]) -> None:
    kept = keep(server.url)
    kept.stage.worker()
    until(lambda: kept.hears_of_redis(reachable=True))

    kept.keeper.leave_when_calm()

    assert kept.wait() == 0


def test_asked_to_leave_with_all_others_it_outlasts_the_workers(
    server: Server, keep: Callable[..., Kept]
) -> None:
    kept = keep(server.url)
    slot = kept.stage.worker()
    slot.state = "draining"
    until(lambda: kept.hears_of_redis(reachable=True))

    kept.keeper.leave_when_calm()
    time.sleep(1.5)
    assert kept.exit_code is None

    slot.is_alive = False
    kept.master.send(Drain(1.0))
    assert kept.wait() == 0


def _is_calm(stage: Stage) -> bool:
    before = _commands(stage)
    time.sleep(0.3)
    return _commands(stage) - before <= 1


def _commands(stage: Stage) -> int:
    found: Any = stage.client.info("commandstats")
    names = ("evalsha", "eval", "blpop", "info", "ping", "hello", "select")
    return sum(found.get(f"cmdstat_{name}", {}).get("calls", 0) for name in names)
