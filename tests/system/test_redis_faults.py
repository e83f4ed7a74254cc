"""Redis in trouble of every kind: handlers run on, nobody has to be restarted, and nothing is lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import psutil
import pytest
import redis

from prefork_q.acl import rule
from prefork_q.client import Client
from prefork_q.ids import new_id
from prefork_q.inspector import Inspector
from prefork_q.keys import Keys
from tests.support.ledger import Ledger
from tests.support.node import Node
from tests.support.proxy import TO_CLIENT, Proxy
from tests.support.server import ProcessServer, Server, free_port
from tests.support.state import State
from tests.support.until import until
from tests.system.test_running import all_ended

StartNode = Callable[..., Node]

SOON = 8.0
"""Seconds within which everything is found again, on a machine that is busy with other tests."""


@pytest.fixture
def proxy(own_server: Server) -> Iterator[Proxy]:
    with Proxy(own_server.url) as proxy:
        yield proxy


@pytest.fixture
def state(own_server: Server, keys: Keys) -> State:
    return State(own_server.client(), keys)


def everybody_works(node: Node, ledger: Ledger, within: float = SOON) -> None:
    """Every worker takes a task: each holds its own for a while, so no one can do all."""
    before, workers = set(ledger.times_run()), node.pids()["worker"]

    def at_work() -> bool:
        # Some workers find their server a second or two later than others: there must be work left for them.
        if len(ledger.running()) < len(workers):
            node.submit_many("sleep", [{"seconds": 0.5}] * len(workers))
        return {run.pid for run in ledger.runs() if run.id not in before} >= set(workers)

    until(at_work, within, "a task in each worker", every=0.2)
    until(lambda: (now := node.metrics())["pending"] + now["processing"] == 0, SOON, "an end of them all")


# -- links


def test_dead_connections_that_nobody_closed_are_given_up(
    start_node: StartNode, own_server: Server, proxy: Proxy, keys: Keys, ledger: Ledger, state: State
) -> None:
    node = start_node(url=proxy.url)
    proxy.freeze()

    with Client(own_server.url, keys.namespace) as client:  # not through the proxy
        ids = [client.submit("sleep", {"seconds": 1.0}).id for _ in range(2)]

    # Five seconds that a read blocks, and five more in which its answer could be late.
    until(lambda: len(ledger.starts()) == 2, 20, "a start of both")
    until(lambda: {state.status(id) for id in ids} == {"succeeded"}, 5, "both ends")
    until(lambda: node.http("GET", "/readyz").status == 200, SOON, "an API that answers")


def test_a_client_that_waits_over_dead_connections_is_answered(
    start_node: StartNode, own_server: Server, proxy: Proxy, keys: Keys
) -> None:
    node, admin = start_node(url=proxy.url), own_server.client()
    node.ended(node.submit("return"))  # the api has a subscribed connection by now
    id = node.submit("sleep", {"seconds": 5.0})
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(node.task, id, wait=30)
        until(lambda: admin.pubsub_numsub(keys.ended(id))[0][1] == 1, 10, "a subscription")
        for _ in range(5):  # and what comes right after it
            assert node.task(id)["status"] in ("pending", "processing")
        proxy.freeze()
        began = time.monotonic()

        # Five seconds of silence, five for an answer, and five for a call on another dead connection.
        assert waiting.result()["status"] == "succeeded"
        assert time.monotonic() - began < 20


def test_a_link_that_flaps_is_found_by_every_worker(
    start_node: StartNode, proxy: Proxy, ledger: Ledger
) -> None:
    node = start_node(url=proxy.url, workers=3)
    workers = node.pids()["worker"]
    ids = node.submit_many("sleep", [{"seconds": 0.05}] * 60)
    for _ in range(5):
        proxy.reset()
        time.sleep(0.4)

    everybody_works(node, ledger)

    until(all_ended(node, 60), 20, "the end of all tasks")
    assert {node.task(id)["attempts"] for id in ids} == {1}
    assert node.pids()["worker"] == workers
    assert ledger.overlaps() == []


def test_what_was_done_before_an_answer_was_lost_is_done_once(
    start_node: StartNode, proxy: Proxy, state: State, ledger: Ledger, keys: Keys
) -> None:
    node = start_node(url=proxy.url, threads=4)
    with Client(proxy.url, keys.namespace) as client:
        ids = [client.submit("flaky", {"failures": n % 2}).id for n in range(40)]
        until(lambda: ledger.runs(), 10, "some work")
        for _ in range(6):
            proxy.swallow(TO_CLIENT)
            time.sleep(0.1)
            lost = threading.Thread(target=lambda: ids.append(client.submit("flaky", {"failures": 0}).id))
            lost.start()
            time.sleep(0.2)
            proxy.reset()
            proxy.heal()
            lost.join(20)

    until(all_ended(node, 46), 30, "the end of all tasks")

    assert len(set(ids)) == state.total("submitted") == state.total("completed") == 46
    assert state.total("failed") == state.total("retried") == 20
    assert [task["attempts"] for task in map(node.task, ids)] == [1 + n % 2 for n in range(40)] + [1] * 6
    assert ledger.overlaps() == []
    state.assert_sums()


# -- the server


def test_running_handlers_outlive_an_outage_and_commit_after_it(
    start_node: StartNode, own_server: Server, ledger: Ledger
) -> None:
    node = start_node(url=own_server.url, workers=2, threads=2, lease="30s")
    workers = node.pids()["worker"]
    ids = node.submit_many("sleep", [{"seconds": 3.0}] * 4, max_attempts=1)
    until(lambda: len(ledger.starts()) == 4, 10, "all starts")

    own_server.kill()
    until(lambda: len(ledger.ends()) == 4, 10, "all ends, while Redis is down")
    own_server.start()

    tasks = [node.ended(id) for id in ids]
    assert {task["status"] for task in tasks} == {"succeeded"}
    assert len(ledger.runs()) == 4
    assert node.pids()["worker"] == workers


def test_after_an_outage_longer_than_a_lease_everything_ran_once(
    start_node: StartNode, own_server: Server, ledger: Ledger, state: State
) -> None:
    nodes = [start_node(url=own_server.url, workers=2, lease="5s") for _ in range(2)]
    ids = nodes[0].submit_many("sleep", [{"seconds": 16.0}] * 4, max_attempts=1)
    until(lambda: len(ledger.starts()) == 4, 10, "all starts")
    assert len(ledger.pids()) == 4

    own_server.pause()  # type: ignore[attr-defined]
    time.sleep(8)
    own_server.resume()

    assert {nodes[0].ended(id)["status"] for id in ids} == {"succeeded"}
    assert len(ledger.runs()) == 4
    assert state.total("expired") == 0


def test_while_redis_is_away_nobody_spins_and_the_log_stays_short(
    start_node: StartNode, own_server: Server, ledger: Ledger
) -> None:
    node = start_node(url=own_server.url, workers=4)
    own_server.kill()
    time.sleep(2)
    before, lines = cpu_seconds(node), len(node.log().splitlines())

    time.sleep(8)

    # Two seconds in a minute, and what the machine adds to it.
    assert cpu_seconds(node) - before < 1.0
    assert len(node.log().splitlines()) - lines < 10
    own_server.start()
    everybody_works(node, ledger)


def cpu_seconds(node: Node) -> float:
    found = 0.0
    for process in node.processes():
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        found += times.user + times.system
    return found


def test_every_restart_is_found_by_every_worker(
    start_node: StartNode, own_server: Server, ledger: Ledger
) -> None:
    node = start_node(url=own_server.url, workers=2)
    for away in (0.0, 1.0, 2.5, 0.0, 0.2, 3.0):
        own_server.kill()
        time.sleep(away)
        own_server.start()
        until(lambda: node.http("GET", "/readyz").status == 200, SOON, "a node that is ready", every=0.05)
        everybody_works(node, ledger)


def test_a_server_that_loads_its_data_is_waited_for(
    start_node: StartNode, own_server: Server, ledger: Ledger
) -> None:
    if not isinstance(own_server, ProcessServer):
        pytest.skip("loading is slowed down by an option of the process")
    node = start_node(url=own_server.url)
    id = node.submit("sleep", {"seconds": 1.0})
    until(lambda: ledger.starts(id), 10, "a start")
    client = own_server.client()
    with client.pipeline(transaction=False) as pipe:
        for n in range(6_000):
            pipe.set(f"foreign:{n}", n)
        pipe.execute()
    client.bgrewriteaof()
    until(lambda: client.info("persistence")["aof_rewrite_in_progress"] == 0, 10, "a short file")

    own_server.kill()
    own_server._arguments += ["--key-load-delay", "500", "--loading-process-events-interval-bytes", "1024"]
    loading = threading.Thread(target=own_server.start)
    loading.start()
    refusal = until(lambda: refused_with(node, "loading"), 10, "a refusal that says why", every=0.05)
    loading.join(20)

    assert int(refusal.headers["retry-after"]) >= 1
    assert node.ended(id)["status"] == "succeeded"
    everybody_works(node, ledger)


def refused_with(node: Node, word: str) -> Any:
    """The answer to a submission, if it is a 503 that says this."""
    reply = node.http("POST", "/tasks", {"type": "return", "payload": {}})
    return reply if reply.status == 503 and word in reply.json["detail"] else None


def test_a_server_that_becomes_a_replica_is_left_and_found_again(
    start_node: StartNode, own_server: Server, state: State, ledger: Ledger
) -> None:
    node = start_node(url=own_server.url, workers=2)
    workers = node.pids()["worker"]
    ids = node.submit_many("sleep", [{"seconds": 0.1}] * 150)
    until(lambda: len(ledger.ends()) > 5, 10, "some work")
    admin = own_server.client()

    admin.replicaof("127.0.0.1", str(free_port()))
    refusal = until(lambda: refused_with(node, "replica"), SOON, "a refusal that says why", every=0.05)
    time.sleep(1)
    done = len(ledger.ends())
    admin.replicaof("NO", "ONE")

    assert refusal.status == 503
    assert done < 150
    until(all_ended(node, 150), 20, "the end of all tasks")
    assert {node.task(id)["attempts"] for id in ids} == {1}
    assert node.pids()["worker"] == workers
    everybody_works(node, ledger)
    state.assert_sums()


def test_a_server_with_no_room_for_clients_is_waited_for(
    start_node: StartNode, own_server: Server, ledger: Ledger
) -> None:
    node = start_node(url=own_server.url, workers=2)
    admin = own_server.client()
    room = admin.config_get("maxclients")["maxclients"]

    admin.config_set("maxclients", 1)
    admin.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    until(lambda: refused_with(node, "no room for another"), SOON, "a refusal that says why", every=0.05)
    admin.config_set("maxclients", room)

    everybody_works(node, ledger)


def test_scripts_that_are_flushed_all_the_time_are_no_trouble_to_anybody(
    start_node: StartNode, own_server: Server, keys: Keys, ledger: Ledger
) -> None:
    node = start_node(url=own_server.url, threads=2)
    admin, stop = own_server.client(), threading.Event()

    def flush() -> None:
        while not stop.wait(0.02):
            admin.script_flush()

    flushing = threading.Thread(target=flush)
    flushing.start()
    try:
        with Client(own_server.url, keys.namespace) as client:
            ids = [client.submit("flaky", {"failures": 1}).id for _ in range(50)]
        ids += node.submit_many("return", [{}] * 50)
        ids += [node.submit("return", {}) for _ in range(50)]
        place = ("--redis-url", own_server.url, "--namespace", keys.namespace)
        for command in (("task", "submit", "return"), ("task", "list"), ("dead", "list"), ("queue", "list")):
            assert node.cli(*command, *place).returncode == 0
        until(all_ended(node, 151), 30, "the end of all tasks")
    finally:
        stop.set()
        flushing.join()

    assert all(node.task(id)["status"] == "succeeded" for id in ids)
    for event in ("redis_lost", "chore_refused", "chore_failed"):
        assert node.events(event) == []


# -- rights


def test_the_least_rights_are_enough_for_everything(
    start_node: StartNode, own_server: Server, keys: Keys, state: State, ledger: Ledger
) -> None:
    admin = own_server.client()
    admin.execute_command("ACL", "SETUSER", "little", "on", ">secret", *rule(keys).split())
    url = own_server.url.replace("redis://", "redis://little:secret@")
    node = start_node(url=url, lease="2s", dead_limit=1)

    ended = [
        node.ended(node.submit(type_, payload, **options))["status"]
        for type_, payload, options in (
            ("return", {}, {}),
            ("flaky", {"failures": 1}, {"idempotency_key": "once"}),
            ("return", {}, {"delay_s": 0.1}),
            ("progress", {}, {}),
            ("raise", {}, {"max_attempts": 1}),
            ("die", {"times": 1}, {}),
            ("sleep", {"seconds": 2.5}, {}),
        )
    ]
    place = ("--redis-url", url, "--namespace", keys.namespace)
    waiting = node.submit("return", {}, delay_s=60)
    pending = node.submit("return", {}, queue="nobody")
    for id in (waiting, pending):
        explained = node.cli("task", "explain", id, *place)
        assert explained.returncode == 0, explained.stderr
    assert node.http("POST", f"/tasks/{waiting}/cancel").status == 200
    dead = node.http("GET", "/dead").json["tasks"][0]["id"]
    assert node.http("POST", f"/dead/{dead}/retry").status == 202
    node.ended(dead)
    assert node.http("DELETE", f"/dead/{dead}").status < 300
    for path in ("/metrics", "/queues", "/tasks", "/readyz"):
        assert node.http("GET", path).status == 200
    for verb in ("pause", "resume"):
        assert node.http("POST", f"/queues/default/{verb}").status < 300
    node.http("GET", f"/tasks/{node.submit('sleep', {'seconds': 0.5})}?wait=5")
    with own_server.client() as client:
        client.auth("secret", "little")
        assert Inspector(client, keys).nodes()
    assert node.cli("queue", "purge", "default", "--yes", *place).returncode == 0
    assert node.cli("check", *place).returncode == 0
    assert node.cli("check", "--acl", *place).stdout.strip().endswith(rule(keys))

    assert ended == ["succeeded"] * 4 + ["dead"] + ["succeeded"] * 2
    denied = [entry for entry in admin.acl_log() if "config" not in str(entry.get("object"))]
    assert denied == []  # that CONFIG GET is denied is known, and said by check
    admin.acl_deluser("little")


def test_without_a_right_to_channels_only_whoever_waits_loses_time(
    start_node: StartNode, own_server: Server, keys: Keys, state: State
) -> None:
    admin = own_server.client()
    words = (word for word in rule(keys).split() if not word.startswith("&"))
    admin.execute_command("ACL", "SETUSER", "silent", "on", ">secret", *words)
    node = start_node(url=own_server.url.replace("redis://", "redis://silent:secret@"), workers=1)
    with Client(own_server.url, keys.namespace) as client:
        tasks = [client.submit("sleep", {"seconds": 0.3}) for _ in range(3)]
        assert [task.wait(20) for task in tasks] == [0.3] * 3
    assert node.ended(node.submit("return", {"value": 1}))["result"] == 1

    assert state.ids("processing") == []
    state.assert_sums()
    admin.acl_deluser("silent")


def test_rights_that_come_late_are_enough(
    start_node: StartNode, own_server: Server, keys: Keys, ledger: Ledger
) -> None:
    admin = own_server.client()
    admin.execute_command("ACL", "SETUSER", "little", "on", ">secret", "+ping", "+info")
    url = own_server.url.replace("redis://", "redis://little:secret@")
    node = start_node(url=url, wait_ready=False)
    until(lambda: node.events("redis_lost", kind="denied"), 15, "a line that says what is missing")
    assert "secret" not in node.log()

    admin.execute_command("ACL", "SETUSER", "little", *rule(keys).split())

    node.wait_ready(SOON)
    everybody_works(node, ledger)


@pytest.mark.parametrize("how", ["right", "replicas", "key"])
def test_a_redis_that_refuses_all_work_though_it_answers_is_told_of(
    start_node: StartNode, own_server: Server, keys: Keys, state: State, ledger: Ledger, how: str
) -> None:
    admin: redis.Redis = own_server.client()
    admin.execute_command("ACL", "SETUSER", "little", "on", ">secret", *rule(keys).split())
    node = start_node(url=own_server.url.replace("redis://", "redis://little:secret@"), workers=1)
    assert node.http("GET", "/readyz").status == 200

    set_right = partial(admin.execute_command, "ACL", "SETUSER", "little")
    refuse, allow = {
        "right": [partial(set_right, word) for word in ("-zadd", "+zadd")],
        "replicas": [partial(admin.config_set, "min-replicas-to-write", least) for least in (1, 0)],
        "key": [partial(state.put_in_place_of, "processing"), partial(state.lose, "processing")],
    }[how]
    refuse()
    if how == "key":
        node.submit("add", {"a": 1, "b": 1})
    else:
        assert node.http("POST", "/tasks", {"type": "add", "payload": {"a": 1, "b": 1}}).status == 503

    until(lambda: "refuses" in str(node.ctl("status")["degraded"]), 25, "a word in the status")
    assert node.cli("ctl", "status").returncode == 1
    if how != "right":
        # Without work a worker calls nothing that needs this right.
        until(lambda: node.ctl("workers")[0]["condition"] == "unserved", 25, "a word of the worker")
        assert node.http("GET", "/readyz").status == 503
    assert len(node.events("redis_lost")) <= 3

    allow()
    until(lambda: node.http("GET", "/readyz").status == 200, SOON, "a node that is ready again")
    everybody_works(node, ledger)
    until(lambda: node.cli("ctl", "status").returncode == 0, 15, "a node that is well", every=0.5)


# -- what should not be there


def test_what_is_spoilt_in_one_queue_harms_no_other_task(
    start_node: StartNode, own_server: Server, keys: Keys, state: State, ledger: Ledger
) -> None:
    node = start_node(url=own_server.url, queues="spoilt,sound")
    workers = node.pids()["worker"]
    admin: redis.Redis = own_server.client()
    node.submit("return", {}, queue="spoilt")
    until(all_ended(node, 1), 10, "an end")

    state.put_in_place_of("pending:spoilt")
    ids = node.submit_many("return", [{}] * 20, queue="sound")
    until(all_ended(node, 21), 10, "the end of the sound ones")
    lost, wrong = new_id(), new_id()
    admin.set(keys.task(wrong), "no hash")
    admin.lpush(keys.pending("sound"), lost, wrong)
    bodiless = state.seed("pending", queue="sound", type="return")
    state.lose_body(bodiless)
    ids += node.submit_many("return", [{}] * 5, queue="sound")
    ids += node.submit_many("return", [{}] * 5, queue="spoilt")

    assert {node.ended(id)["status"] for id in ids} == {"succeeded"}
    assert node.ended(bodiless)["status"] == "dead"
    until(lambda: set(state.ids("corrupt")) == {lost, wrong}, 5, "a note of the unreadable ones")
    assert len(node.events("dropped")) >= 3
    assert node.metrics()["removed_total"] == 2
    assert node.pids()["worker"] == workers
    assert state.pending("spoilt") == state.pending("sound") == []


def test_a_task_that_lost_its_lease_with_its_node_is_found_and_run(
    start_node: StartNode, own_server: Server, keys: Keys, ledger: Ledger, state: State
) -> None:
    doomed = start_node(url=own_server.url, workers=1, lease="5s", no_http=True)
    with Client(own_server.url, keys.namespace) as client:
        id = client.submit("die", {"number": 0, "times": 1, "after": 60}).id  # signal 0 does nothing
        until(lambda: ledger.starts(id), 10, "a start")
        doomed.kill("all")
        own_server.client().zrem(keys("processing"), id)

        start_node(url=own_server.url, workers=1, lease="5s", no_http=True)

        assert client.wait(id, timeout=30) == "survived"
    assert len(ledger.runs(id)) == 2
    state.assert_sums()
