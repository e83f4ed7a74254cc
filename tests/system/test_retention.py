"""What ends is forgotten: after its time nothing in the server has grown with the number of tasks."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from prefork_q.client import Client
from prefork_q.keys import TABLE, Keys
from prefork_q.submission import NewTask
from tests.support.node import Node
from tests.support.server import Server
from tests.support.until import until
from tests.system.test_running import all_ended

pytestmark = pytest.mark.either_server

StartNode = Callable[..., Node]

TASKS = 1_500
DEAD = 20
ROWS = [re.compile(re.sub(r"<[^>]+>", ".+", key.pattern)) for key in TABLE]
OF_TASKS = ("task:", "body:", "idem:")


def names(redis: Any, keys: Keys) -> list[str]:
    """All keys of the namespace, without its name."""
    found = [key.decode() for key in redis.scan_iter(match=keys.root + "*", count=1_000)]
    return [name.removeprefix(keys.root) for name in found]


@pytest.mark.timeout(180)
def test_tasks_that_ended_leave_nothing_behind(start_node: StartNode, server: Server, keys: Keys) -> None:
    node = start_node(workers=2, threads=2, retention="1s", dead_limit=DEAD, lease="2s")
    redis: Any = server.client()
    memory: list[int] = []
    for turn in range(3):
        before = node.metrics()["submitted_total"]
        with Client(server.url, keys.namespace) as client:
            client.submit_many(
                [NewTask("return", {"value": "x" * (n % 2 * 600)}, idempotency_key=f"{turn}/{n}")
                 for n in range(TASKS)]
                + [NewTask("flaky", {"failures": 1}) for _ in range(100)]
                + [NewTask("raise", {}, max_attempts=1) for _ in range(60)]
            )  # fmt: skip
            cancelled = client.submit_many([NewTask("return", {}, delay=3_600) for _ in range(50)])
            for task in cancelled:
                # Over the API, which has this node's retention.
                assert node.http("POST", f"/tasks/{task.id}/cancel").status == 200
        until(all_ended(node, before + TASKS + 210), 60, "the end of all tasks", every=0.2)

        def is_forgotten() -> bool:
            return sum(name.startswith(OF_TASKS) for name in names(redis, keys)) == redis.zcard(keys("dead"))

        until(is_forgotten, 20, "an end of all that ended", every=0.2)
        memory.append(redis.info("memory")["used_memory"])

    # The dead are trimmed once a minute, and when a keeper begins.
    assert redis.zcard(keys("dead")) == 3 * 60
    node.kill("keeper")
    until(lambda: redis.zcard(keys("dead")) == DEAD, 20, "only so many dead as are kept")
    left = names(redis, keys)
    assert [name for name in left if not any(row.fullmatch(name) for row in ROWS)] == []
    # The dead that are kept, with what belongs to them; all else is a key of the namespace.
    assert redis.zcard(keys("dead")) == DEAD
    assert sum(name.startswith("task:") for name in left) == DEAD
    assert not any(name.startswith("idem:") for name in left)
    assert len(left) < DEAD + 40
    # From the first thousands on only the list of the last 10,000 grows, by some 40 bytes a task.
    assert memory[2] - memory[1] < 60 * (TASKS + 210) + 200_000
