"""A primary hands over to its replica: the name leads to the new one, and nobody stays with the old one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from prefork_q.client import Client
from prefork_q.errors import Unavailable
from prefork_q.keys import Keys
from tests.support.ledger import Ledger
from tests.support.node import Node
from tests.support.proxy import Proxy
from tests.support.server import ProcessServer, Server
from tests.support.state import State
from tests.support.until import until
from tests.system.test_redis_faults import everybody_works
from tests.system.test_running import all_ended

StartNode = Callable[..., Node]

FOUND = 5.0
"""Seconds after the name was changed within which everybody has found the new primary."""


class Pair:
    """A primary with its replica, and the name under which clients know the primary: a proxy."""

    def __init__(self, old: Server, new: Server) -> None:
        self.old, self.new = old, new
        self.name = Proxy(old.url)
        self._admin = old.client()
        port = old.url.rpartition(":")[2].partition("/")[0]
        new.client().replicaof("127.0.0.1", port)
        until(lambda: self._is_in_step(), 20, "a replica in step")

    def _is_in_step(self) -> bool:
        found: Any = self._admin.info("replication")
        return bool(found["connected_slaves"]) and found["slave0"]["state"] == "online"

    def hand_over(self) -> None:
        """Let the replica become the primary once it has everything; the old one becomes its replica."""
        self._admin.execute_command("FAILOVER")
        until(lambda: self._admin.info("replication")["role"] == "slave", 10, "an old primary that is none")

    def change_the_name(self) -> None:
        """From now on new connections lead to the new primary; those to the old one stay open."""
        self.name.lead_to(self.new.url)


@pytest.fixture
def pair(new_server: Callable[..., Server]) -> Iterator[Pair]:
    old, new = new_server(), new_server()
    if not isinstance(old, ProcessServer):
        pytest.skip("two servers that reach one another are processes here")
    pair = Pair(old, new)
    yield pair
    pair.name.close()


def test_everybody_follows_a_name_to_the_new_primary_and_nothing_is_lost(
    start_node: StartNode, pair: Pair, keys: Keys, ledger: Ledger
) -> None:
    node = start_node(url=pair.name.url, workers=3, lease="20s")
    workers = node.pids()["worker"]
    ids = node.submit_many("sleep", [{"seconds": 0.1}] * 60)
    long = node.submit("sleep", {"seconds": 4.0}, max_attempts=1)
    until(lambda: len(ledger.ends()) > 5, 10, "some work")

    pair.hand_over()
    refusal = until(lambda: refused(node), 5, "a refusal by the old primary", every=0.05)
    pair.change_the_name()
    began = time.monotonic()
    ids.append(until(lambda: accepted(node), FOUND, "a submission that is accepted", every=0.05))
    everybody_works(node, ledger, within=FOUND)
    found_after = time.monotonic() - began

    assert "replica" in refusal["detail"]
    # What everybody then worked on was done after that.
    assert found_after < FOUND + 8
    state = State(pair.new.client(), keys)
    until(all_ended(node, state.total("submitted")), 30, "the end of all tasks")
    assert {node.task(id)["status"] for id in [*ids, long]} == {"succeeded"}
    assert {node.task(id)["attempts"] for id in [*ids, long]} == {1}
    assert set(ledger.times_run().values()) == {1}
    assert node.pids()["worker"] == workers
    for _ in range(40):  # whichever of the api's connections it takes, each leads to the new one
        node.submit("return")
    state.assert_sums()


def test_idle_workers_that_block_at_the_old_primary_follow(
    start_node: StartNode, pair: Pair, ledger: Ledger
) -> None:
    node = start_node(url=pair.name.url, workers=2)
    pair.hand_over()
    pair.change_the_name()

    id = until(lambda: accepted(node), FOUND, "a submission that is accepted", every=0.05)

    until(lambda: ledger.starts(id), FOUND, "its start")
    delayed = node.submit("return", delay_s=1)
    until(lambda: ledger.starts(delayed), FOUND + 1, "the start of a delayed one")
    assert node.events("wakes_lost") == []
    assert node.events("chore_refused") == []


def test_clients_that_share_connections_leave_the_old_primary(pair: Pair, keys: Keys) -> None:
    with Client(pair.name.url, keys.namespace) as client:
        # Several connections, which all wait for their next call afterwards.
        threads = [threading.Thread(target=submit_some, args=(client,)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        pair.hand_over()
        with pytest.raises(Unavailable, match="replica"):
            client.submit("return")
        pair.change_the_name()

        ids = [client.submit("return").id for _ in range(20)]

        state = State(pair.new.client(), keys)
        assert set(ids) <= set(state.pending())


def submit_some(client: Client) -> None:
    for _ in range(20):
        client.submit("return")


def refused(node: Node) -> Any:
    reply = node.http("POST", "/tasks", {"type": "return", "payload": {}})
    return reply.json if reply.status == 503 else None


def accepted(node: Node) -> Any:
    reply = node.http("POST", "/tasks", {"type": "return", "payload": {}})
    assert reply.status in (202, 503), reply
    return reply.json.get("id")
