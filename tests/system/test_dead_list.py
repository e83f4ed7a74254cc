"""The dead list is bounded in number and size, and what goes is told and counted."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.node import Node
from tests.support.server import Server
from tests.support.until import until
from tests.system.test_running import all_ended

pytestmark = pytest.mark.either_server

StartNode = Callable[..., Node]

HUGE = """
from prefork_q import App

app = App()

@app.task("huge", max_attempts=1)
def huge(n: int) -> None:
    raise ValueError(f"{n} " + "\\u20ac\\U0001f600" * 700_000)
"""
"""Five megabytes of characters that take three and four bytes each."""


def test_the_oldest_beyond_the_limit_go_and_are_told_and_counted(start_node: StartNode) -> None:
    node = start_node(workers=1, threads=4, dead_limit=100)
    ids = []
    for _ in range(5):  # in this order
        ids += node.submit_many("raise", [{}] * 50, max_attempts=1)
        until(all_ended(node, len(ids)), 20, "the end of all tasks")
    again = ids[0]
    assert node.http("POST", f"/dead/{again}/retry").status == 202
    until(lambda: node.metrics()["dead_total"] == 251, 10, "another death")

    node.kill("keeper")  # the next one looks at once, this one within a minute

    told = node.wait_event("dead_trimmed", timeout=20)
    assert (told["tasks"], told["limit"]) == (150, 100)
    numbers = node.metrics()
    assert (numbers["dead"], numbers["removed_total"], numbers["submitted_total"]) == (100, 150, 250)
    first = node.http("GET", "/dead?limit=100").json["tasks"]
    assert first[0]["id"] == again
    assert {task["id"] for task in first[1:]} <= set(ids[149:])
    assert node.http("POST", f"/dead/{ids[1]}/retry").status == 404


def test_errors_of_megabytes_fill_neither_redis_nor_a_worker(
    start_node: StartNode, own_server: Server, tmp_path: Path
) -> None:
    target = tmp_path / "huge.py"
    target.write_text(HUGE)
    node = start_node(url=own_server.url, workers=1, target=f"{target}:app")
    node.ended(node.submit("huge", {"n": 0}))
    time.sleep(1.1)  # memory is sampled each second
    used, rss = memory(own_server), node.status()["workers"][0]["rss_bytes"]

    ids = node.submit_many("huge", [{"n": n} for n in range(300)])
    until(all_ended(node, 301), 60, "the end of all tasks")

    assert memory(own_server) - used < 300 * 15_000
    assert node.status()["workers"][0]["rss_bytes"] - rss < 100 << 20
    error = node.task(ids[7])["error"]
    assert error["message"].startswith("7 \u20ac")
    assert len(error["message"]) <= 1_000
    assert len(error["traceback"]) <= 8_000
    assert "\ufffd" not in error["message"] + error["traceback"]


def memory(server: Server) -> int:
    client: Any = server.client()
    return int(client.info("memory")["used_memory"])
