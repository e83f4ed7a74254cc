"""Tasks for later: they wait in Redis, run once, when they are due, whatever else waits and whoever stops."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest

from prefork_q.broker import Broker
from prefork_q.client import Client
from prefork_q.ids import new_id
from prefork_q.keys import Keys
from prefork_q.submission import NewTask
from prefork_q.task import Submission
from tests.support.ledger import Ledger
from tests.support.node import Node
from tests.support.server import Server
from tests.support.state import State
from tests.support.until import until
from tests.system.test_running import all_ended

pytestmark = pytest.mark.either_server

StartNode = Callable[..., Node]

CROWD = 30_000
"""Due at once. A hundred thousand pass in two seconds too, on a machine with nothing else to do."""
EARLY = 0.002
"""Seconds: Redis's clock and the handlers' are the same, read a little apart and rounded."""


def test_delayed_tasks_run_once_when_due_however_short_the_lease(
    start_node: StartNode, server: Server, keys: Keys, ledger: Ledger
) -> None:
    nodes = [start_node(workers=2, lease="1s") for _ in range(2)]
    due = time.time() + 5
    with Client(server.url, keys.namespace) as client:
        ids = [task.id for task in client.submit_many([NewTask("return", run_at=due) for _ in range(1_000)])]

    until(all_ended(nodes[0], 1_000), 30, "the end of all tasks")

    starts = ledger.starts()
    assert ledger.times_run() == dict.fromkeys(ids, 1)
    assert starts[0] >= due - EARLY
    assert starts[0] < due + 1
    assert State(server.client(), keys).total("expired") == 0


def test_delayed_tasks_are_kept_by_a_redis_that_is_killed_meanwhile(
    start_node: StartNode, own_server: Server, ledger: Ledger
) -> None:
    node = start_node(url=own_server.url)
    due = time.time() + 4
    ids = node.submit_many("return", [{}] * 100, delay_s=4)
    own_server.kill()
    time.sleep(1)
    own_server.start()

    until(lambda: len(ledger.ends()) == 100, 15, "the end of all tasks")

    assert ledger.times_run() == dict.fromkeys(ids, 1)
    assert ledger.starts()[0] >= due - EARLY
    assert ledger.starts()[-1] < due + 4


def test_what_is_for_later_takes_no_memory_of_workers(
    start_node: StartNode, server: Server, keys: Keys
) -> None:
    node = start_node(workers=1)
    node.ended(node.submit("return"))
    before = until(lambda: node.status()["workers"][0]["rss_bytes"], 5, "a sample of the memory")
    with Client(server.url, keys.namespace) as client:
        client.submit_many([NewTask("return", {"value": "x" * 500}, delay=3_600) for _ in range(20_000)])
    for _ in range(10):
        node.ended(node.submit("return"))

    worker = node.status()["workers"][0]
    assert worker["held"] == 0
    assert worker["rss_bytes"] - before < 10 << 20
    assert node.metrics()["delayed"] == 20_000


@pytest.mark.parametrize("workers", [1, 8])
def test_an_idle_node_is_hardly_late(start_node: StartNode, ledger: Ledger, workers: int) -> None:
    node = start_node(workers=workers)
    due: dict[str, tuple[float, float]] = {}
    for _ in range(60):
        delay = random.uniform(0.1, 4.0)
        # Its due time is counted from when Redis stores it, which is between the two.
        before = time.time()
        id = node.submit("return", delay_s=delay)
        due[id] = (before + delay, time.time() + delay)
    until(all_ended(node, 60), 10, "the end of all tasks")

    starts = {id: ledger.starts(id)[0] for id in due}
    assert min(starts[id] - earliest for id, (earliest, _) in due.items()) >= -EARLY
    late = sorted(starts[id] - latest for id, (_, latest) in due.items())
    assert late[30] < 0.25
    # A wake that is missed costs at least five seconds.
    assert late[-1] < 3.0


def stored_for_later(broker: Broker, number: int) -> list[str]:
    """Store tasks that are due in an hour; return their ids."""
    ids = [new_id() for _ in range(number)]
    for start in range(0, number, 500):
        some = ids[start : start + 500]
        broker.submit([Submission(id, "return", b"{}", "crowd", delay=3_600) for id in some])
    return ids


def seconds_to_promote(client: Any, keys: Keys, number: int) -> float:
    """How long this machine takes to move so many due tasks of a namespace that no node looks at."""
    broker = Broker(client, keys)
    client.zadd(keys("delayed"), dict.fromkeys(stored_for_later(broker, number), 0))
    began = time.monotonic()
    while broker.promote().moved:
        pass
    return time.monotonic() - began


def test_a_crowd_of_due_tasks_keeps_no_other_waiting(
    start_node: StartNode, server: Server, keys: Keys, ledger: Ledger
) -> None:
    node = start_node(workers=1, queues="quick")
    client: Any = server.client()
    pace = seconds_to_promote(client, Keys(f"{keys.namespace}-pace"), CROWD // 6)
    broker = Broker(client, keys)
    crowd = stored_for_later(broker, CROWD)
    due = time.time() + 2
    for start in range(0, CROWD, 5_000):  # they become due at once, as the hour passes
        client.zadd(keys("delayed"), dict.fromkeys(crowd[start : start + 5_000], round(due * 1000)))
    # The first one has the movers look again, since it is due before all that they know of.
    broker.submit([Submission(new_id(), "return", b"{}", "crowd", run_at=due - 0.2)])
    id = new_id()
    broker.submit([Submission(id, "return", b"{}", "quick", run_at=due + 0.05)])

    until(lambda: ledger.starts(id), due - time.time() + 20, "its start")

    # Thrice what the moving of the crowd takes here and now, with a worker and a test beside it.
    assert ledger.starts(id)[0] - due < max(2.0, 3 * 6 * pace)
    until(lambda: node.metrics()["delayed"] == 0, 20, "a promotion of all")
    assert node.metrics()["pending"] == CROWD + 1


def test_a_chain_of_tasks_does_not_drift(start_node: StartNode, ledger: Ledger) -> None:
    node = start_node(workers=1)
    links, every, first = 20, 0.25, time.time() + 0.5
    node.submit("chain", {"due": first, "every": every, "left": links}, delay_s=0.5)
    until(all_ended(node, links + 1), 20, "the end of the chain")

    late = [at - (first + n * every) for n, at in enumerate(ledger.starts())]
    assert min(late) >= -EARLY
    # Each is due a quarter of a second after its predecessor was, however late that one came: a drift shows
    # in the quickest few as well, a machine that is held up does not.
    assert min(late[-5:]) - min(late[1:6]) < 0.1
    # A wake that is missed costs at least five seconds, a machine that is held up some links a second.
    assert sorted(late)[-5] < 1.0
    assert max(late) < 3.0


def test_movers_that_are_stopped_anywhere_move_nothing_twice(
    start_node: StartNode, server: Server, keys: Keys, ledger: Ledger
) -> None:
    nodes = [start_node(workers=1, threads=4, lease="20s", no_http=True) for _ in range(3)]
    keepers = [node.pids()["keeper"][0] for node in nodes]
    broker, state = Broker(server.client(), keys), State(server.client(), keys)
    ids: list[str] = []
    due = time.time() + 4
    for _ in range(0, 6_000, 500):
        # They become due over a second, so that movers are at it all the time.
        batch = [Submission(new_id(), "return", b"{}", run_at=due + random.random()) for _ in range(500)]
        broker.submit(batch)
        ids += [one.id for one in batch]

    def stop_and_go() -> bool:
        some = random.sample(keepers, k=2)
        for pid in some:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(random.uniform(0, 0.4))
        for pid in some:
            os.kill(pid, signal.SIGCONT)
        return state.total("completed") >= len(ids)

    until(stop_and_go, 60, "the end of all tasks")

    assert ledger.times_run() == dict.fromkeys(ids, 1)
    assert ledger.starts()[0] >= due - EARLY
    assert [node.pids()["keeper"][0] for node in nodes] == keepers
    state.assert_sums()
