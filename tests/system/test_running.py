"""Tasks of one and several nodes: each runs once, fails and is retried as promised, and the numbers agree."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.ledger import Ledger
from tests.support.node import Node
from tests.support.until import until

StartNode = Callable[..., Node]


def all_ended(node: Node, tasks: int) -> Callable[[], bool]:
    def have_ended() -> bool:
        numbers = node.metrics()
        ended: int = numbers["completed_total"] + numbers["dead"] + numbers["cancelled_total"]
        return ended >= tasks

    return have_ended


def test_two_nodes_share_a_thousand_tasks_and_each_runs_once(start_node: StartNode, ledger: Ledger) -> None:
    first = start_node(workers=1)
    second = start_node(workers=1)

    ids = first.submit_many("spin", [{"seconds": 0.002}] * 1_000)
    until(all_ended(second, 1_000), 60, "the end of all tasks")

    assert ledger.times_run() == dict.fromkeys(ids, 1)
    workers = {node.pids()["worker"][0] for node in (first, second)}
    assert ledger.pids() == workers


def test_a_failing_task_dies_after_its_last_attempt_and_can_be_retried(node: Node, ledger: Ledger) -> None:
    id = node.submit("raise_slowly", {"message": "boom"}, max_attempts=3)

    task = node.ended(id)

    assert (task["status"], task["attempts"], task["error"]["message"]) == ("dead", 3, "boom")
    assert task["error"]["type"] == "RuntimeError"
    assert "raise_slowly" in task["error"]["traceback"]
    first, second, third = ledger.starts(id)
    # Bases of 0.4 and 0.8 s, up to a fifth more by jitter, and what a claim takes.
    assert 0.4 <= second - first <= 0.4 * 1.2 + 2.0
    assert 0.8 <= third - second <= 0.8 * 1.2 + 2.0
    (dead,) = node.http("GET", "/dead").json["tasks"]
    assert (dead["id"], dead["error"]["message"]) == (id, "boom")

    assert node.http("POST", f"/dead/{id}/retry").status == 202
    until(lambda: len(ledger.runs(id)) == 6, 20, "three more runs")
    assert node.ended(id)["attempts"] == 3
    assert [run.attempt for run in ledger.runs(id)] == [1, 2, 3, 1, 2, 3]


def test_the_delays_of_tasks_that_fail_together_differ(node: Node, ledger: Ledger) -> None:
    ids = node.submit_many("raise_slowly", [{}] * 20, max_attempts=2)
    until(all_ended(node, 20), 20, "the end of all tasks")

    delays = [second - first for first, second in (ledger.starts(id) for id in ids)]
    assert max(delays) - min(delays) > 0.02


def test_a_flaky_task_succeeds_in_the_end(node: Node, ledger: Ledger) -> None:
    task = node.ended(node.submit("flaky", {"failures": 2, "value": "done"}))

    assert (task["status"], task["attempts"], task["result"]) == ("succeeded", 3, "done")
    assert [run.outcome for run in ledger.runs(task["id"])] == ["RuntimeError", "RuntimeError", "returned"]


def test_a_rejected_task_is_dead_at_once(node: Node, ledger: Ledger) -> None:
    task = node.ended(node.submit("reject", {"reason": "never"}))

    assert (task["status"], task["attempts"], task["error"]["message"]) == ("dead", 1, "never")
    assert len(ledger.runs(task["id"])) == 1


def sums(numbers: Mapping[str, Any]) -> int:
    """What was submitted, by what became of it."""
    total: int = (
        numbers["pending"] + numbers["processing"] + numbers["delayed"] + numbers["dead"]
        + numbers["completed_total"] + numbers["cancelled_total"]
    )
    return total


def test_the_numbers_agree_with_a_count_made_outside(start_node: StartNode, ledger: Ledger) -> None:
    first, second = start_node(workers=2), start_node(workers=2)
    before = first.metrics()
    assert (before["submitted_total"], sums(before)) == (0, 0)

    first.submit_many("return", [{}] * 300)
    second.submit_many("flaky", [{"failures": 1}] * 50)
    second.submit_many("raise", [{}] * 20, max_attempts=2)

    def is_quiet() -> bool:
        numbers = second.metrics()
        assert sums(numbers) == numbers["submitted_total"] == 370
        return bool(numbers["pending"] + numbers["processing"] + numbers["delayed"] == 0)

    until(is_quiet, 30, "the end of all tasks")
    after = first.metrics()
    outcomes = [run.outcome for run in ledger.runs()]
    assert after["completed_total"] == outcomes.count("returned") == 350
    assert after["failed_total"] == outcomes.count("RuntimeError") + outcomes.count("ValueError") == 90
    assert after["retried_total"] == 70
    assert after["dead_total"] == after["dead"] == 20
    assert (after["completed_per_minute"], after["failed_per_minute"]) == (350, 90)

    def of_nodes() -> list[int]:
        totals = [node.status()["totals"] for node in (first, second)]
        return [sum(one[name] for one in totals) for name in ("completed", "failed")]

    # A worker counts an attempt when it has heard from Redis what became of it.
    until(lambda: of_nodes() == [350, 90], 10, "all counts of the nodes")
    assert of_nodes() == [350, 90]


def test_short_tasks_pass_long_ones_on_the_one_free_thread(start_node: StartNode, ledger: Ledger) -> None:
    node = start_node(workers=2, threads=4, drain_timeout="1s")
    # A pace that is known is what tempts a worker to buffer.
    node.submit_many("return", [{}] * 50)
    until(all_ended(node, 50), 20, "the end of the first tasks")
    node.submit_many("sleep", [{"seconds": 30}] * 7)
    until(lambda: len(ledger.running()) == 7, 10, "seven long tasks")

    ids = node.submit_many("return", [{}] * 100)

    until(lambda: len(set(ids) & ledger.times_run().keys()) == 100, 15, "a start of all short tasks")


@pytest.mark.parametrize(
    "options", [{}, {"preload": "off"}, {"workers": None, "no_fork": True}], ids=["preload", "import", "solo"]
)
def test_a_node_warns_once_of_handlers_whose_queue_it_does_not_work_on(
    start_node: StartNode, tmp_path: Path, options: dict[str, Any]
) -> None:
    handlers = tmp_path / "slow.py"
    handlers.write_text(
        "from prefork_q import App\napp = App()\n@app.task('fetch', queue='slow')\ndef fetch(): ...\n"
    )

    def started(**more: Any) -> Node:
        node = start_node(target=f"{handlers}:app", wait_ready=False, **options, **more)
        node.wait_event("running")
        return node

    careless = started()
    (event,) = careless.events("queues_left_out")
    assert event["level"] == "warning"
    assert "fetch (slow): add them to --queues" in event["detail"]

    assert not started(queues="default,slow").events("queues_left_out")


@pytest.mark.parametrize("options", [{}, {"workers": None, "no_fork": True}], ids=["master", "solo"])
def test_an_embedded_server_that_cannot_read_its_folder_is_quoted(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    node = Node(None, tmp_path / "node", **options)
    try:
        node.start(wait_ready=False)
        node.wait_event("running")
        assert node.stop() == 0
        assert not node.events("store_had_failed")
        (base,) = (node.state_dir / "appendonlydir").glob("*.base.*")
        base.write_bytes(b"nonsense")

        node.start(wait_ready=False)
        told = node.wait_event("failed", role="store") if options else node.wait_event("store_had_failed")

        assert told["level"] == "error"
        assert "Bad file format" in told["reason"]
        assert str(node.state_dir / "store.log") in told["reason"]
    finally:
        node.close()
        print(node.log_end())
