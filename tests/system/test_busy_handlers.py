"""Handlers that take all the time or hold the interpreter: leases last, and nobody else waits for them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

from tests.support.ledger import Ledger
from tests.support.node import Node
from tests.support.until import until

StartNode = Callable[..., Node]

LEASE = 1.0


def test_a_process_full_of_busy_handlers_keeps_all_its_leases(
    start_embedded: StartNode, ledger: Ledger
) -> None:
    node = start_embedded(workers=1, threads=9, lease=f"{LEASE}s")
    ids = node.submit_many("spin", [{"seconds": 4 * LEASE}] * 8, max_attempts=1)
    until(lambda: len(ledger.running()) == 8, 20, "all of them at work")
    ids.append(node.submit("hold_gil", {"seconds": 3 * LEASE}, max_attempts=1))

    tasks = [node.ended(id, 40) for id in ids]

    assert {(task["status"], task["attempts"], task["crashes"]) for task in tasks} == {("succeeded", 1, 0)}
    assert set(ledger.times_run().values()) == {1}
    assert len(ledger.pids()) == 1
    text = node.http("GET", "/metrics").body.decode()
    for name in ("leases_expired", "stale_commits"):
        assert f"prefork_q_{name}_total 0" in text.replace(".0", "")
    assert not node.events("commit_refused")


def test_the_tasks_of_a_busy_process_that_is_killed_start_again_at_once(
    start_embedded: StartNode, ledger: Ledger
) -> None:
    node = start_embedded(workers=2, threads=4, lease="30s")
    ids = node.submit_many("spin", [{"seconds": 3.0}] * 3, max_attempts=1)
    ids.append(node.submit("hold_gil", {"seconds": 3.0}, max_attempts=1))
    until(lambda: len(ledger.starts()) == 4, 20, "all of them at work")
    victim = ledger.runs(ids[-1])[0].pid
    struck = {run.id for run in ledger.runs() if run.pid == victim}

    os.kill(victim, signal.SIGKILL)
    killed_at = time.time()

    tasks = {id: node.ended(id, 60) for id in ids}
    assert {(task["status"], task["attempts"]) for task in tasks.values()} == {("succeeded", 1)}
    assert {id for id, task in tasks.items() if task["crashes"]} == struck
    # Far below the lease. Each runs alone now, so some wait for others.
    again = min(at for id in struck for at in ledger.starts(id)[1:])
    assert again - killed_at < 5
