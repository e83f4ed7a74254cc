"""Redis away, slow, restarted, forgetful, or answering into the void: workers go on by themselves.

Nothing is lost, and nothing is counted twice.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import redis

from prefork_q.keys import Keys
from prefork_q.states import Status
from tests.support.ledger import Ledger
from tests.support.proxy import TO_CLIENT, TO_SERVER, Proxy
from tests.support.server import Server
from tests.support.state import State, request
from tests.support.tasks import Tasks
from tests.support.until import until
from tests.support.worker import Worker

StartWorker = Callable[..., Worker]


def call_count(client: redis.Redis, *names: str) -> int:
    """How often a server has been asked to do these."""
    found: Any = client.info("commandstats")
    return sum(found.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in names)


# -- a server that forgets its scripts


def test_a_server_that_forgets_its_scripts_under_load_changes_nothing(
    start_worker: StartWorker, tasks: Tasks, redis_client: redis.Redis, ledger: Ledger
) -> None:
    worker = start_worker(threads=2)
    ids: list[str] = []
    for _ in range(20):
        ids += tasks.submit("return", n=20)
        redis_client.script_flush()
    tasks.wait(*ids)

    assert ledger.times_run() == dict.fromkeys(ids, 1)
    until(lambda: worker.counters()["completed"] == len(ids))
    assert not worker.said("redis_lost")


# -- answers and calls that are lost on the way


@pytest.mark.parametrize("way", [TO_CLIENT, TO_SERVER])
def test_a_call_or_its_answer_lost_under_load_is_made_good(
    start_worker: StartWorker, tasks: Tasks, server: Server, ledger: Ledger, way: str
) -> None:
    """The connections die with calls under way: of some the script has run, of some not."""
    with Proxy(server.url) as proxy:
        worker = start_worker(url=proxy.url, threads=2)
        ids: list[str] = []
        for _ in range(12):
            ids += tasks.submit("sleep", {"seconds": 0.002}, n=20)
            proxy.swallow(way)
            time.sleep(0.01)
            proxy.reset()
            proxy.heal()
        tasks.wait(*ids)
        until(lambda: worker.counters()["completed"] == len(ids))

    assert ledger.times_run() == dict.fromkeys(ids, 1)
    counters = worker.counters()
    assert (counters["stale"], counters["failed"]) == (0, 0)
    assert tasks.total("completed") == len(ids)
    assert worker.outcomes().count("succeeded") == len(ids)


def test_an_answer_lost_without_a_word_is_asked_for_again(
    start_worker: StartWorker, tasks: Tasks, server: Server, ledger: Ledger
) -> None:
    """The link is half open: what was sent has arrived, the answer never does."""
    with Proxy(server.url) as proxy:
        worker = start_worker(url=proxy.url)
        id = tasks.submit_one("sleep", {"seconds": 2.0})
        tasks.wait(id, status="processing")
        until(worker.running)
        proxy.freeze()
        began = time.monotonic()

        until(lambda: worker.counters()["completed"] == 1, 15)

        assert time.monotonic() - began < 9.5
        after = tasks.submit("return", n=3)
        tasks.wait(*after)
        assert len(worker.said("redis_lost")) == len(worker.said("redis_found")) == 1
    assert worker.counters()["redis_timeout"] >= 1
    assert ledger.times_run() == dict.fromkeys([id, *after], 1)


def test_leases_that_expire_while_an_answer_is_lost_are_anothers(
    start_worker: StartWorker, tasks: Tasks, server: Server, state: State
) -> None:
    """The claim has run, its answer is lost, and before it is asked for again somebody else has the tasks."""
    with Proxy(server.url) as proxy:
        worker = start_worker(url=proxy.url, threads=2)
        proxy.swallow(TO_CLIENT)
        ids = tasks.submit("return", n=2)
        tasks.wait(*ids, status="processing")
        for id in ids:
            state.age(id)
        state.keepers_are_heard_of()
        tasks.broker.reap(lease=30)


        taken = tasks.broker.claim(request("other.0.1")).leases
        proxy.heal()
        proxy.reset()

        left = next(id for id in ids if id.encode() != taken[0].id)
        tasks.wait(left, timeout=20)

        assert tasks.status(left) is Status.SUCCEEDED
        assert tasks.status(taken[0].id.decode()) is Status.PROCESSING
        tasks.broker.complete(taken[0].id, taken[0].token, b"1")
        until(lambda: worker.holds() == [])
    assert worker.counters()["stale"] == 0


def test_a_call_that_arrives_long_after_it_was_given_up_takes_no_task(
    start_worker: StartWorker, tasks: Tasks, server: Server
) -> None:
    with Proxy(server.url) as proxy:
        worker = start_worker(url=proxy.url)
        # What is sent from now on waits in the network; its sender gives up and takes another way.
        proxy.pause(TO_SERVER)
        first = tasks.submit_one("return")
        until(lambda: worker.counters()["redis_timeout"] >= 1, 20)
        proxy.heal()
        tasks.wait(first)
        time.sleep(0.2)

        ids = tasks.submit("sleep", {"seconds": 0.01}, n=30)
        tasks.wait(*ids)

        assert until(lambda: worker.holds() == [])
    assert tasks.total("completed") == 31


# -- Redis away for a while


def test_running_handlers_are_not_cut_off_while_redis_stands_still(
    start_worker: StartWorker, own_server: Server, keys: Keys, ledger: Ledger
) -> None:
    tasks = Tasks(own_server.client(), keys)
    worker = start_worker(url=own_server.url, threads=2)
    ids = tasks.submit("sleep", {"seconds": 1.0}, n=2)
    until(lambda: len(worker.running()) == 2)

    own_server.pause()
    until(lambda: [run.outcome for run in ledger.runs()] == ["returned"] * 2)
    beat = worker.last_beat()
    until(lambda: worker.last_beat() > beat, 3, "a fetch loop that turns")
    own_server.resume()

    until(lambda: worker.counters()["completed"] == 2, 15)
    assert tasks.statuses(ids) == {Status.SUCCEEDED}
    assert ledger.times_run() == dict.fromkeys(ids, 1)


def test_redis_killed_and_restarted_under_load_loses_nothing(
    start_worker: StartWorker, own_server: Server, keys: Keys, ledger: Ledger
) -> None:
    tasks = Tasks(own_server.client(), keys)
    workers = [start_worker(url=own_server.url, threads=2) for _ in range(2)]
    ids: list[str] = []

    for _ in range(3):
        before = len(ledger.runs())
        ids += tasks.submit("sleep", {"seconds": 0.004}, n=300)
        until(lambda before=before: len(ledger.runs()) > before + 30)
        own_server.kill()
        time.sleep(0.2)
        own_server.start()

    tasks.wait(*ids, timeout=40)
    assert tasks.statuses(ids) == {Status.SUCCEEDED}
    assert ledger.times_run() == dict.fromkeys(ids, 1)
    until(lambda: sum(worker.counters()["completed"] for worker in workers) == len(ids))
    for worker in workers:
        assert until(lambda worker=worker: worker.holds() == [])
        # One whose next try is still to come had nothing left to do.
        until(lambda worker=worker: len(worker.said("redis_lost")) == len(worker.said("redis_found")), 15)
        assert len(worker.said("redis_found")) <= 3


def test_an_outage_costs_no_cpu_and_few_tries(
    start_worker: StartWorker, own_server: Server, keys: Keys
) -> None:
    tasks = Tasks(own_server.client(), keys)
    worker = start_worker(url=own_server.url)
    tasks.wait(tasks.submit_one("sleep", {"seconds": 1.0}), status="processing")
    own_server.kill()
    until(lambda: worker.said("redis_lost"))
    before, tries = worker.cpu_seconds(), worker.counters()["redis_connection"]

    time.sleep(3.0)

    assert worker.cpu_seconds() - before < 0.5
    assert worker.counters()["redis_connection"] - tries < 40
    assert len(worker.said("redis_lost")) == 1


def test_a_worker_that_is_born_while_redis_is_away_waits_for_it(
    start_worker: StartWorker, own_server: Server, keys: Keys
) -> None:
    own_server.kill()
    worker = start_worker(url=own_server.url, wait_ready=False)
    until(lambda: worker.said("redis_lost"), 10)

    own_server.start()
    worker.wait_ready(10)

    tasks = Tasks(own_server.client(), keys)
    tasks.wait(tasks.submit_one("return"))


def test_an_idle_worker_tells_an_outage_and_its_end(start_worker: StartWorker, own_server: Server) -> None:
    worker = start_worker(url=own_server.url)
    own_server.kill()
    until(lambda: worker.said("redis_lost"), 10)

    own_server.start()

    until(lambda: worker.said("redis_found"), 10)


def test_connections_that_a_server_closes_for_their_age_are_no_outage(
    start_worker: StartWorker, tasks: Tasks, redis_client: redis.Redis
) -> None:
    worker = start_worker()
    own_id = redis_client.client_id()
    for _ in range(3):
        for client in redis_client.client_list():
            if int(client["id"]) != own_id:
                redis_client.client_kill_filter(_id=client["id"])
        tasks.wait(tasks.submit_one("return"), timeout=3)

    assert not worker.said("redis_lost")


def test_a_token_lost_with_the_connection_that_waited_for_it_is_made_good(
    start_worker: StartWorker, tasks: Tasks, server: Server
) -> None:
    with Proxy(server.url) as proxy:
        start_worker(url=proxy.url)
        for _ in range(5):
            proxy.swallow(TO_CLIENT)
            id = tasks.submit_one("return")
            time.sleep(0.05)  # the token is on its way into the void
            # In this order: else what the next connection is told might vanish as well.
            proxy.heal()
            proxy.reset()
            tasks.wait(id, timeout=3)


def test_a_slow_link_is_no_outage(
    start_worker: StartWorker, tasks: Tasks, server: Server, ledger: Ledger
) -> None:
    with Proxy(server.url) as proxy:
        proxy.delay(0.1)
        worker = start_worker(url=proxy.url, threads=2)
        ids = tasks.submit("return", n=30)
        tasks.wait(*ids)

        assert ledger.times_run() == dict.fromkeys(ids, 1)
        assert not worker.said("redis_lost")


def test_answers_that_come_in_small_pieces_are_put_together(
    start_worker: StartWorker, tasks: Tasks, ledger: Ledger
) -> None:
    worker = start_worker(threads=2)
    ids = tasks.submit("return", {"value": "x" * 200_000}, n=12)
    tasks.wait(*ids)

    assert ledger.times_run() == dict.fromkeys(ids, 1)
    assert worker.counters()["redis_timeout"] == 0


def test_a_call_larger_than_the_socket_takes_does_not_stop_the_loop(
    start_worker: StartWorker, tasks: Tasks, server: Server
) -> None:
    """Results of megabytes for a Redis that does not read: the worker's loop turns all the same."""
    with Proxy(server.url) as proxy:
        worker = start_worker(url=proxy.url, threads=8, result_limit=1 << 23)
        ids = tasks.submit("return_large", {"size": 6_000_000}, n=8)
        until(lambda: len(worker.holds()) == 8)
        proxy.pause(TO_SERVER)
        for _ in range(3):
            beat = worker.last_beat()
            until(lambda beat=beat: worker.last_beat() > beat, 2.5, "a fetch loop that turns")
        proxy.heal()
        tasks.wait(*ids, timeout=30)

    assert tasks.statuses(ids) == {Status.SUCCEEDED}


def test_a_wake_list_that_is_no_list_is_told_and_the_worker_goes_on(
    start_worker: StartWorker, tasks: Tasks, redis_client: redis.Redis, keys: Keys
) -> None:
    worker = start_worker()
    redis_client.set(keys.wake("default"), "not a list")

    until(lambda: worker.said("wakes_lost"), 20)
    redis_client.delete(keys.wake("default"))
    ids = tasks.submit("return", n=3)
    tasks.wait(*ids)

    assert len(worker.said("wakes_lost")) == 1
    assert not worker.said("redis_lost")


# -- idle


def test_an_idle_worker_makes_a_call_in_five_seconds(
    start_worker: StartWorker, own_server: Server, keys: Keys
) -> None:
    client = own_server.client()
    workers = [start_worker(url=own_server.url, threads=8) for _ in range(2)]
    until(lambda: client.info("clients")["blocked_clients"] == 2)
    before, cpu = call_count(client, "blpop", "evalsha", "eval"), [one.cpu_seconds() for one in workers]

    time.sleep(6.0)

    calls = call_count(client, "blpop", "evalsha", "eval") - before
    assert calls <= len(workers) * 2
    assert all(one.cpu_seconds() - spent <= 0.05 for one, spent in zip(workers, cpu, strict=True))


def test_the_first_task_after_idle_time_starts_soon(
    start_worker: StartWorker, tasks: Tasks, ledger: Ledger
) -> None:
    start_worker(threads=4)
    delays = []
    for _ in range(5):
        time.sleep(0.3)
        submitted_at = time.time()
        id = tasks.submit_one("return")
        tasks.wait(id)
        delays.append(ledger.starts(id)[0] - submitted_at)

    assert min(delays) < 0.02


def test_many_submitters_and_idle_workers_miss_no_task(
    start_worker: StartWorker, server: Server, keys: Keys, tasks: Tasks, ledger: Ledger
) -> None:
    """Single tasks, at moments at which workers fall asleep."""
    for threads in (1, 2):
        start_worker(threads=threads)
    ids: list[str] = []

    def submit() -> None:
        own = Tasks(server.client(), keys)
        for n in range(150):
            ids.append(own.submit_one("return"))
            time.sleep(0.0005 * (n % 7))

    submitters = [threading.Thread(target=submit) for _ in range(3)]
    for submitter in submitters:
        submitter.start()
    for submitter in submitters:
        submitter.join()
    tasks.wait(*ids, timeout=5)

    assert ledger.times_run() == dict.fromkeys(ids, 1)
