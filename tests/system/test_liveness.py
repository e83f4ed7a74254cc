"""What a probe is told: busy is not stuck, without Redis is not without workers, and who is dead is gone."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import psutil
import pytest

from prefork_q.inspector import Inspector
from prefork_q.keys import Keys
from tests.support.ledger import Ledger
from tests.support.node import Node
from tests.support.proxy import Proxy
from tests.support.server import Server
from tests.support.until import until

pytestmark = pytest.mark.either_server

StartNode = Callable[..., Node]

FORGOTTEN = 22.0
"""Seconds: a node that has not spoken for fifteen is not counted, and a living one speaks every five."""


def probe(node: Node) -> tuple[int, str]:
    began = time.monotonic()
    done = node.cli("ctl", "status", "--check")
    assert time.monotonic() - began < 5
    return done.returncode, done.stdout


def test_a_node_whose_threads_are_all_busy_is_well(start_node: StartNode, ledger: Ledger) -> None:
    node = start_node(workers=2, threads=2)
    # Longer than a fetch loop may be silent: two of them hold the interpreter, the others spin beside them.
    ids = [node.submit("hold_gil", {"seconds": 9}) for _ in range(2)]
    until(lambda: len(ledger.pids()) == 2, 10, "one in each worker")
    ids += node.submit_many("spin", [{"seconds": 9}] * 2)
    until(
        lambda: [worker["condition"] for worker in node.status()["workers"]] == ["busy"] * 2,
        12, "workers that are busy", every=0.3,
    )  # fmt: skip

    assert probe(node)[0] == 0
    assert node.http("GET", "/readyz").status == 200
    assert {node.ended(id, timeout=40)["status"] for id in ids} == {"succeeded"}
    assert all(worker["restarts"] == 0 for worker in node.status()["workers"])


def test_without_redis_the_probe_says_so_and_nobody_is_restarted(
    start_node: StartNode, own_server: Server
) -> None:
    node = start_node(url=own_server.url)
    workers = node.pids()["worker"]
    own_server.kill()

    until(lambda: probe(node)[0] == 1, 10, "a probe that fails", every=0.2)

    assert "redis: unreachable" in probe(node)[1]
    assert node.cli("ctl", "ping").returncode == 0
    assert node.http("GET", "/healthz").status == 200
    assert node.http("GET", "/readyz").status == 503
    assert {worker["condition"] for worker in node.status()["workers"]} == {"well"}
    own_server.start()
    until(lambda: probe(node)[0] == 0, 10, "a node that is well", every=0.2)
    until(lambda: node.http("GET", "/readyz").status == 200, 10, "a node that is ready")
    assert node.pids()["worker"] == workers


def test_a_worker_with_dead_connections_is_well_and_comes_back(
    start_node: StartNode, own_server: Server, ledger: Ledger
) -> None:
    with Proxy(own_server.url) as proxy:
        node = start_node(url=proxy.url, workers=2)
        (pid,) = node.pids()["worker:0"]
        ports = {connection.laddr.port for connection in psutil.Process(pid).net_connections("tcp4")}
        assert ports
        proxy.freeze(*ports)

        deadline = time.monotonic() + 12
        while pid not in ledger.pids():
            assert probe(node)[0] == 0
            assert time.monotonic() < deadline, "it does not come back"
            node.submit_many("sleep", [{"seconds": 0.3}] * 4)

        assert node.pids()["worker:0"] == [pid]


def test_nodes_that_were_killed_are_soon_not_counted_any_more(
    start_node: StartNode, server: Server, keys: Keys
) -> None:
    redis: Any = server.client()
    inspector = Inspector(redis, keys)
    nodes = [start_node(workers=2, no_http=True) for _ in range(2)]
    for _ in range(3):
        nodes[0].kill("all")
        nodes[0].start()
    living = {node.status()["node"] for node in nodes}
    until(lambda: living <= {node.name for node in inspector.nodes()}, 10, "a word of the living")

    until(lambda: {node.name for node in inspector.nodes()} == living, FORGOTTEN, "silence of the dead")

    assert [node.ready for node in inspector.nodes()] == [2, 2]
    # What is left of them goes after a minute of silence: let it have passed.
    for name, said in redis.hgetall(keys("nodes")).items():
        if name.decode() not in living:
            at, _, info = said.partition(b" ")
            redis.hset(keys("nodes"), name, b"%d %s" % (int(at) - 60_000, info))
    until(lambda: {name.decode() for name in redis.hkeys(keys("nodes"))} == living, 10, "no trace of them")


def test_a_node_that_was_forgotten_tells_of_itself_again(
    start_node: StartNode, server: Server, keys: Keys
) -> None:
    redis: Any = server.client()
    inspector = Inspector(redis, keys)
    node = start_node(workers=2)
    name = node.status()["node"]
    until(lambda: [one.ready for one in inspector.nodes()] == [2], 10, "a word of it")

    redis.delete(keys("nodes"))

    (again,) = until(inspector.nodes, 7, "another word of it")
    assert (again.name, again.ready) == (name, 2)
    assert "sleep" in again.types
