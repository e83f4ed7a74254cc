"""Servers for tests, and the watch on what the tests leave.

`server` is shared: one a flavour and pytest process, emptied before each test; a test that uses it runs once
on each flavour. `own_server` is for tests that kill, pause or configure theirs.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from prefork_q.keys import Keys
from tests.support import leaks
from tests.support.flavours import Flavour
from tests.support.images import Engine
from tests.support.ledger import Ledger
from tests.support.node import Node
from tests.support.server import ContainerServer, ProcessServer, Server
from tests.support.until import until

FLAVOURS: pytest.StashKey[tuple[Flavour, ...]] = pytest.StashKey()
RUN: pytest.StashKey[str] = pytest.StashKey()


def flavours(config: pytest.Config) -> tuple[Flavour, ...]:
    """The flavours of this run."""
    return config.stash[FLAVOURS]


@pytest.fixture(scope="session", autouse=True)
def no_process_left() -> Iterator[None]:
    """Fail the run if a process that its tests started is left when they are done."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "this run")
    mark = leaks.mark(worker.replace(" ", "-"))
    yield
    try:
        until(lambda: not leaks.left_behind(mark), timeout=3)
    except AssertionError:
        left = leaks.left_behind(mark)
        described = "\n".join(map(leaks.describe, left))
        leaks.end(left)
        pytest.fail(f"processes were left behind by the tests of {worker}:\n{described}", pytrace=False)


@pytest.fixture(scope="session")
def flavour(request: pytest.FixtureRequest) -> Flavour:
    """The kind of server that this test runs on; given by `pytest_generate_tests`."""
    chosen: Flavour = request.param
    return chosen


@pytest.fixture(scope="session")
def shared_servers(
    no_process_left: None, pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[Flavour], Server]]:
    """Return the shared server of a flavour, started at its first use."""
    started: dict[str, Server] = {}

    def shared(flavour: Flavour) -> Server:
        if flavour.name not in started:
            server: Server
            if flavour.image:
                server = ContainerServer(flavour, run=pytestconfig.stash[RUN])
            else:
                folder = tmp_path_factory.mktemp(flavour.name)
                server = ProcessServer(flavour, folder, is_persistent=False)
            server.start()
            started[flavour.name] = server
        return started[flavour.name]

    yield shared
    for server in started.values():
        server.stop()


@pytest.fixture
def server(flavour: Flavour, shared_servers: Callable[[Flavour], Server]) -> Server:
    """A shared server, emptied."""
    shared = shared_servers(flavour)
    shared.empty()
    return shared


@pytest.fixture
def redis_server(server: Server) -> Server:
    """Another name of `server`."""
    return server


@pytest.fixture
def new_server(
    flavour: Flavour, pytestconfig: pytest.Config, tmp_path: Path
) -> Iterator[Callable[..., Server]]:
    """Return a function that starts servers of the test's own: `new_server(is_unix=True, arguments=[...])`.

    They are processes where the machine has the program, and persistent unless told otherwise.
    """
    started: list[Server] = []

    def new(**options: Any) -> Server:
        server: Server
        if flavour.binary:
            server = ProcessServer(flavour, tmp_path / f"server-{len(started)}", **options)
        else:
            server = ContainerServer(
                flavour, run=pytestconfig.stash[RUN], **({"is_persistent": True} | options)
            )
        started.append(server)
        server.start()
        return server

    yield new
    for server in started:
        server.stop()


@pytest.fixture
def own_server(new_server: Callable[..., Server]) -> Server:
    """A persistent server of the test's own, to be killed, paused and restarted."""
    return new_server()


@pytest.fixture
def keys() -> Keys:
    """A namespace that no other test has."""
    return Keys(f"t{uuid.uuid4().hex[:12]}")


@pytest.fixture
def redis_client(server: Server) -> Iterator[redis.Redis]:
    """A client of the shared server."""
    client = server.client()
    yield client
    client.close()


@pytest.fixture
def single_threaded(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The test runs in a process with one thread, so that it may fork: see `tests.support.alone`."""


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """What the handlers of all the test's nodes did."""
    return Ledger(tmp_path / "ledger")


@pytest.fixture
def start_node(server: Server, keys: Keys, ledger: Ledger, tmp_path: Path) -> Iterator[Callable[..., Node]]:
    """Return a function that starts nodes on the shared server: `start_node(workers=4, lease="2s")`.

    Its arguments are `Node`'s; `url=` names another server, `wait_ready=False` returns at once. What is left
    of the nodes is killed after the test, and the ends of their logs are shown if it failed.
    """
    nodes: list[Node] = []

    def start(*, wait_ready: bool = True, **options: Any) -> Node:
        common: dict[str, Any] = {"url": server.url, "namespace": keys.namespace, "ledger": ledger.path}
        node = Node(folder=tmp_path / f"node-{len(nodes) + 1}", **(common | options))
        nodes.append(node)
        return node.start(wait_ready=wait_ready)

    yield start
    for node in nodes:
        node.close()
        print(node.log_end())


@pytest.fixture
def node(start_node: Callable[..., Node]) -> Node:
    """A node with two workers of one thread on the shared server."""
    return start_node()


def remove_containers(run: str, environ: dict[str, str]) -> list[str]:
    """Remove the containers that a killed pytest process of `run` left."""
    engine = Engine.connect(environ, [])
    if engine is None:
        return []
    try:
        return engine.remove_containers(run)
    finally:
        engine.close()
