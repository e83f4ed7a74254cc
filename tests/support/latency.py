"""How fast the master answers while every core burns and Redis is stopped.

    python -m tests.support.latency [QUESTIONS [WORKERS]]

As many workers as there are cores run a loop each, or so many. Asks for the status over the control socket,
and then a few times by `prefork-q ctl status`, the start of the interpreter and all. Prints milliseconds; of
the master also what a question took of the processor, and how long it waited for one: that is the scheduler's
part, and grows with what else the machine does.
"""

from __future__ import annotations

import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from prefork_q.control.client import ask
from tests.support.node import Node
from tests.support.until import until

COMMANDS = 20


def main() -> None:
    questions = int(sys.argv[1]) if sys.argv[1:] else 1_000
    workers = int(sys.argv[2]) if sys.argv[2:] else len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory(prefix="prefork-q-latency-") as folder:
        node = Node(None, Path(folder), workers=workers)
        try:
            node.start()
            node.submit_many("spin", [{"seconds": 600} for _ in range(workers)])
            until(lambda: all(w["running"] for w in ask(node.ctl_socket, "workers")), 20, "busy workers")
            (store,) = node.pids()["store"]
            os.kill(store, signal.SIGSTOP)
            before = processor_times(node.pid)
            show("status, socket", [timed(lambda: ask(node.ctl_socket, "status")) for _ in range(questions)])
            ran, waited = (
                after - then for after, then in zip(processor_times(node.pid), before, strict=True)
            )
            print(f"the master      ran {ran / questions:.2f}, waited {waited / questions:.2f} a question")
            print(f"load average    {os.getloadavg()[0]:.1f}")
            show("ctl status", [timed(lambda: node.cli("ctl", "status", "--json")) for _ in range(COMMANDS)])
        finally:
            node.close()


def processor_times(pid: int) -> tuple[float, float]:
    """Return for how many ms a process has run, and waited to run (proc(5), schedstat)."""
    ran, waited, _ = Path(f"/proc/{pid}/schedstat").read_text().split()
    return int(ran) / 1e6, int(waited) / 1e6


def timed(question: Callable[[], object]) -> float:
    began = time.perf_counter()
    question()
    return (time.perf_counter() - began) * 1_000


def show(name: str, took: list[float]) -> None:
    p99 = statistics.quantiles(took, n=100)[98] if len(took) >= 100 else max(took)
    median = statistics.median(took)
    print(f"{name:15} n={len(took):<5} median {median:7.1f}  p99 {p99:7.1f}  max {max(took):7.1f}")


if __name__ == "__main__":
    main()
