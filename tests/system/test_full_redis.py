"""Redis without room: nothing more is taken in, what is there is finished, and nothing is half written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from prefork_q.keys import Keys
from tests.support.ledger import Ledger
from tests.support.node import Node
from tests.support.server import Server
from tests.support.state import State
from tests.support.until import until
from tests.system.test_redis_faults import refused_with
from tests.system.test_running import all_ended

StartNode = Callable[..., Node]


@pytest.fixture
def state(own_server: Server, keys: Keys) -> State:
    return State(own_server.client(), keys)


def test_a_redis_that_fills_up_under_load_loses_nothing_and_is_emptied(
    start_node: StartNode, own_server: Server, ledger: Ledger, state: State
) -> None:
    node, admin = start_node(url=own_server.url, threads=2), own_server.client()
    workers = node.pids()["worker"]
    good = node.submit_many("sleep", [{"seconds": 0.02}] * 150)
    flaky = node.submit_many("flaky", [{"failures": 2}] * 40)
    bad = node.submit_many("raise", [{}] * 20, max_attempts=2)
    late = node.submit_many("return", [{}] * 20, delay_s=1)
    until(lambda: len(ledger.ends()) > 20, 10, "some work")

    memory: Any = admin.info("memory")
    # Well below: what connections take comes and goes by more than the tasks.
    admin.config_set("maxmemory", memory["used_memory"] // 2)
    refusal = until(lambda: refused_with(node, "full"), 5, "a refusal that says why")
    before = state.total("submitted")
    batch = node.http("POST", "/tasks/batch", {"tasks": [{"type": "return"}] * 50})
    later = node.http("POST", "/tasks", {"type": "return", "delay_s": 60})
    until(all_ended(node, 230), 40, "the end of all tasks while it is full")
    state.assert_sums()

    assert {refusal.status, batch.status, later.status} == {503}
    assert int(refusal.headers["retry-after"]) >= 1
    assert state.total("submitted") == before
    assert {node.task(id)["status"] for id in [*good, *flaky, *late]} == {"succeeded"}
    assert {node.task(id)["attempts"] for id in flaky} == {3}
    assert {node.task(id)["status"] for id in bad} == {"dead"}
    assert set(ledger.times_run()) == {*good, *flaky, *bad, *late}
    assert node.pids()["worker"] == workers

    admin.config_set("maxmemory", 0)
    assert node.ended(node.submit("return"))["status"] == "succeeded"


def test_a_policy_that_deletes_tasks_is_warned_of_at_the_start_and_in_the_status(
    start_node: StartNode, own_server: Server
) -> None:
    own_server.client().config_set("maxmemory-policy", "allkeys-lru")
    node = start_node(url=own_server.url)

    warning = node.wait_event("redis_doubtful", level="warning")

    assert "maxmemory-policy is allkeys-lru" in warning["detail"]
    assert node.status()["redis"]["warning"] == warning["detail"]
    shown = node.cli("ctl", "status")
    assert (shown.returncode, f"WARNING: {warning['detail']}" in shown.stdout) == (0, True)

    own_server.client().config_set("maxmemory-policy", "noeviction")
    own_server.restart()  # it is asked again when it is found again
    until(lambda: node.status()["redis"]["warning"] is None, 10, "an end of the warning")
    assert len(node.events("redis_doubtful")) == 1
