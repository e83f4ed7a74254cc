"""A node with nothing to do costs nothing to speak of."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import psutil
import pytest

from tests.support.node import Node
from tests.support.server import Server

pytestmark = pytest.mark.either_server

SECONDS = 10.0


def test_an_idle_node_makes_few_calls_and_takes_no_processor_time(
    start_node: Callable[..., Node], own_server: Server
) -> None:
    node = start_node(url=own_server.url, workers=4, threads=8)
    node.ended(node.submit("return"))
    client: Any = own_server.client()
    workers = [psutil.Process(pid) for pid in node.pids()["worker"]]
    time.sleep(2)  # for what comes after a start
    before, traffic, spent = calls(client), sent(client), [cpu(worker) for worker in workers]

    time.sleep(SECONDS)

    made = {name: n - before.get(name, 0) for name, n in calls(client).items()}
    # A BLPOP of five seconds each. All else is the keeper's, and does not grow with the number of workers.
    assert made["blpop"] <= len(workers) * (SECONDS / 5 + 1) + 3
    assert sum(made.values()) / SECONDS < 5 * len(workers)
    assert made.get("watch", 0) == made.get("keys", 0) == made.get("scan", 0) == 0
    assert (sent(client) - traffic) / SECONDS < 50_000
    # A hundredth of a core, and a machine that does other things.
    assert all(cpu(worker) - one < 0.02 * SECONDS for worker, one in zip(workers, spent, strict=True))


def calls(client: Any) -> dict[str, int]:
    """How often the server was asked to do what, that of scripts and of this test included."""
    return {
        name.removeprefix("cmdstat_").split("|")[0]: stats["calls"]
        for name, stats in client.info("commandstats").items()
    }


def sent(client: Any) -> int:
    stats = client.info("stats")
    return int(stats["total_net_output_bytes"]) + int(stats["total_net_input_bytes"])


def cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system
