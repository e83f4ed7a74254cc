"""Hard time limits end any code; who was beside it pays nothing."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest

from tests.support.ledger import Ledger
from tests.support.node import Node
from tests.support.until import until

pytestmark = pytest.mark.either_server

StartNode = Callable[..., Node]

LIMIT, GRACE = 1.0, 0.5
SLACK = 1.0
"""Seconds for a busy machine."""


def ran_for(task: dict[str, object]) -> float:
    """Seconds from the claim of its last attempt to its end."""
    return moment(task["finished_at"]) - moment(task["started_at"])


def moment(text: object) -> float:
    return datetime.fromisoformat(str(text)).timestamp()


@pytest.mark.parametrize("type", ["hold_gil", "stubborn", "sleep", "spin"])
def test_a_hard_limit_ends_any_code_within_its_time(
    start_node: StartNode, ledger: Ledger, type: str
) -> None:
    node = start_node(workers=2, threads=2, grace=f"{GRACE}s", lease="30s")
    good = node.submit_many("sleep", [{"seconds": 0.3}] * 8, max_attempts=1)
    guilty = node.submit(type, {"seconds": 30}, timeout_s=LIMIT, max_attempts=1)
    good += node.submit_many("sleep", [{"seconds": 0.3}] * 8, max_attempts=1)

    task = node.ended(guilty)

    assert (task["status"], task["attempts"], task["crashes"]) == ("dead", 1, 0)
    assert task["error"]["type"].endswith("TaskTimeout")
    assert ran_for(task) <= LIMIT + GRACE + SLACK
    if type != "spin":
        # That one ends at the soft limit already: it runs bytecode, and lets exceptions through.
        cause = task["error"]["cause"]
        assert (cause["timed_out"], cause["signal"]) == (True, signal.SIGKILL)
        assert cause["peak_rss_bytes"] > 1 << 20
        assert f"in {type}" in cause["stack"]
        line = node.wait_event("finished", id=guilty)
        assert (line["outcome"], line["error_type"], line["queue"]) == ("dead", "TaskTimeout", "default")
        assert line["duration_ms"] >= 1_000 * LIMIT
    for task in map(node.ended, good):
        assert (task["status"], task["attempts"], task["crashes"]) == ("succeeded", 1, 0)
    assert all(times <= 2 for times in ledger.times_run().values())
    until(lambda: node.status()["totals"]["dead"] == 1, 5, "a count")
    totals, metrics = node.status()["totals"], node.metrics()
    assert (totals["failed"], totals["dead"], totals["crashes"]) == (1, 1, 0)
    assert (metrics["failed_total"], metrics["dead"], metrics["crashes_total"]) == (1, 1, 0)


def test_the_slot_is_back_within_a_second(start_node: StartNode) -> None:
    node = start_node(workers=1, grace="300ms")
    id = node.submit("hold_gil", {"seconds": 30}, timeout_s=LIMIT, max_attempts=1)

    dead = node.wait_event("exited", worker=0, timeout=10)
    ready = node.wait_event("ready", worker=0, count=2)

    assert id in dead["cause"]
    assert moment(ready["ts"]) - moment(dead["ts"]) <= 1.0 + SLACK
    assert node.task(node.ended(node.submit("return", {"value": 1}))["id"])["result"] == 1


def test_a_handler_that_blocks_all_signals_and_holds_the_interpreter_does_not_escape(
    start_node: StartNode, tmp_path: Path
) -> None:
    target = tmp_path / "escape.py"
    target.write_text(
        "import ctypes, signal\n"
        "from prefork_q import App\n"
        "app = App()\n"
        "@app.task('escape', max_attempts=1, timeout=1)\n"
        "def escape() -> None:\n"
        "    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())\n"
        "    while True:\n"
        "        try:\n"
        "            ctypes.PyDLL(None).usleep(10_000_000)\n"
        "        except BaseException:\n"
        "            pass\n"
    )
    node = start_node(workers=1, target=f"{target}:app", grace=f"{GRACE}s")

    task = node.ended(node.submit("escape"))

    assert ran_for(task) <= LIMIT + GRACE + SLACK
    assert "in escape" in task["error"]["cause"]["stack"]
    metrics = node.http("GET", "/metrics").body.decode()
    assert 'prefork_q_worker_restarts_total{cause="timeout"} 1' in metrics


def test_a_crash_leaves_its_stack_in_the_error(start_node: StartNode) -> None:
    node = start_node(workers=1, max_crashes=0)

    cause = node.ended(node.submit("segfault"))["error"]["cause"]

    assert (cause["signal"], cause["timed_out"]) == (signal.SIGSEGV, False)
    assert "in segfault" in cause["stack"]
    assert "processor.py" not in cause["stack"]
    assert cause["peak_rss_bytes"] > 1 << 20


def test_an_attempt_that_ran_into_its_hard_limit_is_retried_by_its_policy(
    start_node: StartNode, ledger: Ledger
) -> None:
    node = start_node(workers=1, threads=2, grace="200ms")
    id = node.submit("stubborn", {"seconds": 20}, timeout_s=0.8, max_attempts=2)

    task = node.ended(id, 30)

    assert (task["status"], task["attempts"], task["crashes"]) == ("dead", 2, 0)
    assert [run.attempt for run in ledger.runs(id)] == [1, 2]
    node.wait_event("finished", id=id, count=2)
    assert [line["outcome"] for line in node.events("finished", id=id)] == ["retrying", "dead"]
    totals = node.status()["totals"]
    assert [totals[name] for name in ("failed", "retried", "dead")] == [2, 1, 1]
    prometheus = node.http("GET", "/metrics").body.decode()
    for name, n in (("failed", 2), ("retried", 1), ("dead", 1)):
        assert f'prefork_q_tasks_{name}_total{{type="stubborn"}} {n}' in prometheus.replace(".0", "")


def test_time_for_which_the_node_was_stopped_counts_against_no_limit(
    start_node: StartNode, ledger: Ledger
) -> None:
    node = start_node(workers=1, grace="500ms", lease="30s")
    # It goes on for two seconds after the node does, and would be over its limit twice.
    id = node.submit("stubborn", {"seconds": 8}, timeout_s=5)
    until(lambda: ledger.starts(id), 10, "a start")

    os.killpg(node.pid, signal.SIGSTOP)
    time.sleep(6)
    os.killpg(node.pid, signal.SIGCONT)

    task = node.ended(id)
    # Its result is how often something was raised in it.
    assert (task["status"], task["attempts"], task["result"]) == ("succeeded", 1, 0)
    assert len(ledger.runs(id)) == 1
    assert node.events("stood_still")
