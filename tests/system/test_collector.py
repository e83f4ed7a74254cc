"""The garbage collector runs at any moment, with locks held too: nobody waits for a lock of his own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import littering
from tests.support.node import Node
from tests.support.server import Server
from tests.support.until import until

pytestmark = pytest.mark.either_server

QUICK, LITTER = 12_000, 1_500
STALL = 5.0
"""Seconds without an end of any task."""


@pytest.mark.timeout(240)
def test_a_collector_that_always_runs_stalls_no_process(
    start_node: Callable[..., Node], own_server: Server
) -> None:
    node = start_node(
        url=own_server.url, target=f"{Path(littering.__file__)}:app", workers=2, threads=4,
        environ={littering.URL: own_server.url},
    )  # fmt: skip
    pids = node.pids()

    def submit(start: int) -> None:
        for first in range(start, QUICK, 1_500):
            node.submit_many("quick", [{"n": n} for n in range(500)])
            node.submit_many("litter", [{"n": first}] * (LITTER * 500 // QUICK))

    # Many at once, so that the api's threads share connections too.
    clients = [threading.Thread(target=submit, args=(start,)) for start in (0, 500, 1_000)]
    for client in clients:
        client.start()
    done, since, longest = 0, time.monotonic(), 0.0
    wanted = QUICK // 500 * (500 + LITTER * 500 // QUICK)
    while done < wanted:
        before, done = done, node.metrics()["completed_total"]
        if done > before:
            since = time.monotonic()
        longest = max(longest, time.monotonic() - since)
        assert longest < 4 * STALL, node.log_end()
        time.sleep(0.05)
    for client in clients:
        client.join(10)

    assert longest < STALL
    assert node.pids() == pids
    numbers = node.metrics()
    assert (numbers["completed_total"], numbers["failed_total"]) == (wanted, 0)
    until(lambda: node.status()["degraded"] == [], 5, "a node that is well")
