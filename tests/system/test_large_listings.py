"""A namespace with a great many tasks beside a great many foreign keys: every look is a bounded one."""

from __future__ import annotations

import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Thread
from typing import Any

import pytest

from prefork_q.broker import Broker
from prefork_q.ids import new_id
from prefork_q.inspector import Inspector
from prefork_q.keys import Keys
from prefork_q.leases import Settlement
from prefork_q.task import Submission
from tests.support.ledger import Ledger
from tests.support.node import PROGRAM, Node
from tests.support.proxy import Proxy
from tests.support.server import Server
from tests.support.state import request
from tests.support.until import until

pytestmark = pytest.mark.either_server

StartNode = Callable[..., Node]

FOREIGN, PENDING, DEAD = 100_000, 60_000, 10_000
QUICK = 0.1
"""Seconds for the quickest of five answers: what else the machine does is no matter here."""
WINDOW = 1_100
"""Entries that one command of a look may ask for."""


@pytest.fixture
def volatile(new_server: Callable[..., Server]) -> Server:
    return new_server(is_persistent=False)


def fill(server: Server, keys: Keys) -> str:
    """Store all those; return the id of a dead one."""
    client: Any = server.client()
    for start in range(0, FOREIGN, 10_000):
        client.mset({f"foreign:{n}": n for n in range(start, start + 10_000)})
    broker = Broker(client, keys)
    for queue, n in (("others", DEAD), ("crowd", PENDING)):
        for _ in range(0, n, 500):
            broker.submit([Submission(new_id(), "return", b"{}", queue) for _ in range(500)])
    done: list[Settlement] = []
    last = b""
    for _ in range(0, DEAD, 250):
        _, claimed = broker.commit(done, request(room=250, queues=["others"]))
        done = [Settlement("fail", one.id, one.token, 0, b'{"type":"E"}') for one in claimed.leases]
        last = claimed.leases[-1].id
    broker.commit(done, request(room=0, queues=["others"]))
    return last.decode()


@contextmanager
def watched(server: Server) -> Iterator[list[str]]:
    """Gather the commands that the server carries out, those of scripts too."""
    client: Any = server.client(socket_timeout=None)
    seen: list[str] = []

    def watch(monitor: Any) -> None:
        for entry in monitor.listen():
            if entry["command"] == "ECHO the end":
                return
            seen.append(entry["command"])

    with client.monitor() as monitor:
        watcher = Thread(target=watch, args=(monitor,))
        watcher.start()
        try:
            yield seen
        finally:
            server.client().echo("the end")
            watcher.join(10)


def test_every_look_is_bounded_and_quick(
    start_node: StartNode, volatile: Server, keys: Keys, ledger: Ledger
) -> None:
    dead = fill(volatile, keys)
    node = start_node(url=volatile.url, queues="quick", workers=1)
    pending = Inspector(volatile.client(), keys).page(None, queue="crowd", limit=1).tasks[0].id
    next_page = node.http("GET", "/dead?limit=100").json["next"]
    paths = [
        "/metrics", "/queues", "/readyz", "/tasks", "/tasks?status=pending", "/tasks?status=dead&type=return",
        "/tasks?queue=crowd&limit=100", f"/tasks/{pending}", "/dead", "/dead?limit=100", f"/dead/{dead}",
        f"/dead?limit=100&cursor={next_page}",
    ]  # fmt: skip
    place = ("--redis-url", volatile.url, "--namespace", keys.namespace)
    commands = [("task", "list"), ("dead", "list"), ("queue", "list"), ("task", "explain", pending)]

    with watched(volatile) as seen:
        times = {path: min(seconds_of(node, path) for _ in range(5)) for path in paths}
        for command in commands:
            assert node.cli(*command, *place).returncode == 0
        assert node.cli("ctl", "status", "--check").returncode == 0
        node.ended(node.submit("return", queue="quick"))

    assert {path: taken for path, taken in times.items() if taken > QUICK} == {}
    words = [command.split() for command in seen]
    assert {"EVALSHA", "LRANGE"} <= {word[0].upper() for word in words}
    forbidden = {"KEYS", "SCAN", "SSCAN", "ZSCAN", "SMEMBERS", "SORT", "WATCH", "FLUSHALL"}
    assert forbidden & {word[0].upper() for word in words} == set()
    assert [command for command in seen if is_unbounded(command)] == []


def seconds_of(node: Node, path: str) -> float:
    began = time.monotonic()
    assert node.http("GET", path).status == 200, path
    return time.monotonic() - began


def is_unbounded(command: str) -> bool:
    """Whether it may answer with more than a window of a list or a sorted set."""
    words = re.split(r"\s+", command)
    name = words[0].upper()
    if name in ("LRANGE", "ZRANGE", "ZREVRANGE") and "BYSCORE" not in command.upper():
        start, stop = int(words[2]), int(words[3])
        return (start < 0) != (stop < 0) or stop - start > WINDOW
    if name in ("ZRANGE", "ZREVRANGEBYSCORE", "ZRANGEBYSCORE"):
        return "LIMIT" not in command.upper()
    return False


def test_a_purge_may_be_interrupted_and_keeps_nobody_waiting(
    start_node: StartNode, volatile: Server, keys: Keys, ledger: Ledger
) -> None:
    fill(volatile, keys)
    node = start_node(url=volatile.url, queues="quick", workers=1)
    inspector = Inspector(volatile.client(), keys)
    command = [str(PROGRAM), "queue", "purge", "crowd", "--yes", "--namespace", keys.namespace]
    with Proxy(volatile.url) as proxy:
        proxy.delay(0.02)  # so that it still goes on when it is interrupted
        slow = [*command, "--redis-url", proxy.url]
        purge = subprocess.Popen(slow, cwd=node.folder, stderr=subprocess.PIPE, text=True)
        until(lambda: inspector.counts().pending < PENDING - 2_000, 20, "the first deleted", every=0.0)

        purge.send_signal(signal.SIGINT)
        told = purge.communicate(timeout=20)[1]

    counts = inspector.counts()
    assert 0 < counts.pending < PENDING
    assert purge.returncode != 0
    (deleted,) = re.findall(r"([\d,]+) tasks deleted", told)
    # The call that was interrupted may have been carried out.
    assert PENDING - counts.pending - int(deleted.replace(",", "")) in (0, 500)
    assert counts.totals["submitted"] == counts.pending + counts.dead + counts.totals["removed"]

    late = []
    command += ["--redis-url", volatile.url]
    purge = subprocess.Popen(command, cwd=node.folder, stderr=subprocess.DEVNULL, text=True)
    while purge.poll() is None:
        began = time.time()
        id = node.submit("return", queue="quick")
        node.ended(id)
        late.append(ledger.starts(id)[0] - began)
    assert purge.returncode == 0
    assert sorted(late)[len(late) // 2] < 0.25
    assert Inspector(volatile.client(), keys).counts().pending == 0
