"""Nodes on their own servers, and a systemd in a container for the tests of the service."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.fixtures import RUN
from tests.support.ledger import Ledger
from tests.support.node import Node
from tests.support.service import Service
from tests.support.systemd import NoSystemd, System, installed_image, system_image


def run_of(config: pytest.Config, image: Callable[[], str]) -> Iterator[System]:
    """Run a container. Where none can be had the test is skipped, or fails if one is said to be there."""
    try:
        system = System(image(), config.stash[RUN])
    except NoSystemd as reason:
        if os.environ.get("PREFORK_Q_TEST_SYSTEMD") == "1":
            pytest.fail(f"no systemd to test with: {reason}", pytrace=False)
        pytest.skip(f"no systemd to test with: {reason}")
    yield system
    system.close()


@pytest.fixture
def empty_server(pytestconfig: pytest.Config) -> Iterator[System]:
    """A server on which nothing is installed but Debian's packages, and a folder with our wheel."""
    yield from run_of(pytestconfig, system_image)


@pytest.fixture(scope="session")
def installed_server(pytestconfig: pytest.Config) -> Iterator[System]:
    """A server with prefork-q in /opt/prefork-q; shared by the tests of one process."""
    yield from run_of(pytestconfig, installed_image)


@pytest.fixture
def service(installed_server: System) -> Service:
    """Installed and set up anew, with the handlers of `tests.support.service`; it does not run yet."""
    service = Service(installed_server)
    service.set_up()
    return service


@pytest.fixture
def start_embedded(ledger: Ledger, tmp_path: Path) -> Iterator[Callable[..., Node]]:
    """Like `start_node`, with a server of each node's own: for what has nothing to do with the server.

    A node that has ended is started again, with its tasks, by its `start`.
    """
    nodes: list[Node] = []

    def start(*, wait_ready: bool = True, **options: Any) -> Node:
        common: dict[str, Any] = {"url": None, "embedded": True, "ledger": ledger.path}
        node = Node(folder=tmp_path / f"node-{len(nodes) + 1}", **(common | options))
        nodes.append(node)
        return node.start(wait_ready=wait_ready)

    yield start
    for node in nodes:
        node.close()
        print(node.log_end())
