"""Redis behind sentinels: the primary of the moment is found by name, and after a failover the next one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from prefork_q.client import Client
from prefork_q.connection import Link
from prefork_q.errors import Unavailable
from prefork_q.keys import Keys
from tests.support.flavours import Flavour
from tests.support.ledger import Ledger
from tests.support.node import Node
from tests.support.sentinels import Sentinel, place_of, url_of
from tests.support.server import ProcessServer, Server
from tests.support.state import State
from tests.support.until import until
from tests.system.test_failover import accepted
from tests.system.test_redis_faults import everybody_works
from tests.system.test_running import all_ended

StartNode = Callable[..., Node]

FOUND = 15.0
"""Seconds from the primary's death until everything works again: a second until it counts as gone, an
election, and what the rest takes on a busy machine."""


class Group:
    """A primary, its replica, and three sentinels that watch them."""

    def __init__(self, new_server: Callable[..., Server], flavour: Flavour, folder: Path) -> None:
        self.primary, self.replica = new_server(), new_server()
        if not isinstance(self.primary, ProcessServer):
            pytest.skip("servers that reach one another are processes here")
        host, port = place_of(self.primary)
        self.replica.client().replicaof(host, str(port))
        until(self._is_in_step, 20, "a replica in step")
        self.sentinels = [Sentinel(flavour, folder / f"s{n}", self.primary, quorum=2) for n in range(3)]
        until(self._know_each_other, 20, "sentinels that know each other")
        self.url = url_of(self.sentinels)

    def _is_in_step(self) -> bool:
        found: Any = self.replica.client().info("replication")
        return bool(found["master_link_status"] == "up")

    def _know_each_other(self) -> bool:
        return all(sentinel.sees(sentinels=2, replicas=1) for sentinel in self.sentinels)

    def close(self) -> None:
        for sentinel in self.sentinels:
            sentinel.close()


@pytest.fixture
def group(new_server: Callable[..., Server], flavour: Flavour, tmp_path: Path) -> Iterator[Group]:
    group = Group(new_server, flavour, tmp_path)
    yield group
    group.close()


@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_after_a_failover_everybody_finds_the_new_primary(
    start_node: StartNode, group: Group, keys: Keys, ledger: Ledger, how: str
) -> None:
    group.sentinels[0].kill()  # the first one that is asked
    node = start_node(url=group.url, workers=2, threads=2, lease="40s")
    workers = node.pids()["worker"]
    ids = node.submit_many("sleep", [{"seconds": 0.2}] * 60)
    ids += node.submit_many("return", [{}] * 20, delay_s=8)
    until(lambda: len(ledger.ends()) > 10, 20, "some work")
    assert group.primary.client().wait(1, 5_000) == 1  # what was accepted has reached the replica

    if how == "killed":
        group.primary.kill()
    else:
        group.primary.pause()
    began = time.monotonic()
    ids.append(until(lambda: accepted(node), FOUND, "a submission that is accepted", every=0.1))
    everybody_works(node, ledger, within=FOUND - (time.monotonic() - began))

    state = State(group.replica.client(), keys)
    until(all_ended(node, state.total("submitted")), 30, "the end of all tasks")
    assert {node.task(id)["status"] for id in ids} == {"succeeded"}
    assert node.pids()["worker"] == workers
    assert group.sentinels[1].primary() == place_of(group.replica)
    place = ("--redis-url", group.url, "--namespace", keys.namespace)
    assert node.cli("task", "show", ids[-1], *place).returncode == 0
    assert node.cli("check", *place).returncode == 0
    with Client(group.url, keys.namespace) as client:
        assert client.submit("add", {"a": 1}).wait(10) == 2
    state.assert_sums()


def test_who_is_found_is_a_primary_whatever_a_sentinel_says(
    new_server: Callable[..., Server], flavour: Flavour, tmp_path: Path, keys: Keys
) -> None:
    old, new = new_server(), new_server()
    if not isinstance(old, ProcessServer):
        pytest.skip("servers that reach one another are processes here")
    behind = Sentinel(flavour, tmp_path / "behind", old, quorum=1, down_after=600_000)
    knowing = Sentinel(flavour, tmp_path / "knowing", new, quorum=1, down_after=600_000)
    try:
        old.client().replicaof(*map(str, place_of(new)))
        assert behind.primary() == place_of(old)

        link = Link(url_of([behind]))
        with pytest.raises(Unavailable, match="replica") as caught:
            link.connect()
        assert caught.value.kind == "readonly"
        with Client(url_of([behind, knowing]), keys.namespace) as client:
            id = client.submit("return").id

        assert State(new.client(), keys).pending() == [id]
    finally:
        behind.close()
        knowing.close()


def test_without_a_sentinel_that_knows_it_each_ones_reason_is_told(
    new_server: Callable[..., Server], flavour: Flavour, tmp_path: Path, start_node: StartNode
) -> None:
    server = new_server()
    if not isinstance(server, ProcessServer):
        pytest.skip("the sentinel and its server are processes here")
    there, gone = (Sentinel(flavour, tmp_path / name, server, quorum=1) for name in ("there", "gone"))
    gone.kill()
    try:
        url = url_of([gone, there]).replace("/tasks/", "/others/")
        node = start_node(url=url, wait_ready=False)

        told = str(node.wait_event("redis_lost", role="keeper")["error"])

        assert f"127.0.0.1:{gone.port}: " in told
        assert "refused" in told
        assert f"127.0.0.1:{there.port} knows no primary of that name" in told
        done = node.cli("check", "--redis-url", url)
        assert (done.returncode, "where others is" in done.stdout + done.stderr) == (69, True)
    finally:
        there.close()
        gone.close()
