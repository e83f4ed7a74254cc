"""Kills workers under load, and looks at what that does to the master and to the numbers.

    python -m tests.support.kills [1000]

Prints what the master had at the beginning and has at the end: descriptors, memory, processes; and the
counters beside those of the ledger. The system tests run it with a few dozen kills.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from prefork_q.control.client import ask
from tests.support.load import load
from tests.support.node import Node
from tests.support.until import until

WARM_UP = 10
"""Kills before the first look: what is made at the first use is no leak."""


@dataclass(frozen=True, slots=True)
class Footprint:
    """What a master has."""

    descriptors: int
    rss_bytes: int
    children: int

    @classmethod
    def of(cls, pid: int) -> Footprint:
        """Look a few times: somebody may just be asking something over the control socket."""
        master = psutil.Process(pid)
        descriptors = []
        for _ in range(5):
            descriptors.append(master.num_fds())
            time.sleep(0.05)
        return cls(min(descriptors), master.memory_info().rss, len(master.children(recursive=True)))


@dataclass(frozen=True, slots=True)
class Tally:
    """What came of it. `runs`, `returned` and `crashed` (cut short) are the ledger's, `completed`, `dead` and
    `crashes_in_all` Redis's, the other crashes the master's; `longest_s` is how long at most it took until
    both workers were ready again.

    A task can return and be dead: killed between its last line and its commit, and in its other runs too.
    `returned` is without those.

    The ledger begins with a handler's first line and ends with its last, an attempt a little earlier and a
    little later. So a crash that the log names by task and process was either `crashed`, or it came `before`
    the first line or `after` the last one. `unnamed` are runs cut short that the log does not name.
    """

    kills: int
    submitted: int
    first: Footprint
    last: Footprint
    runs: int
    returned: int
    completed: int
    dead: int
    crashes: int
    crashes_in_all: int
    restarts: int
    crashed: int
    before: int
    after: int
    unnamed: int
    overlaps: int
    longest_s: float


def kill_workers(node: Node, kills: int, *, rate: float = 60.0, seed: int = 1) -> Tally:
    """Kill so many workers of a node that runs, one after the other, each once it is ready."""
    rng = random.Random(seed)
    first: Footprint | None = None
    longest = 0.0
    with load(node, "sleep", {"seconds": 0.01}, rate=rate) as submitted:
        for number in range(WARM_UP + kills):
            if number == WARM_UP:
                all_ready(node)
                first = Footprint.of(node.pid)
            began = time.monotonic()
            worker = rng.choice(all_ready(node))
            longest = max(longest, time.monotonic() - began)
            os.kill(worker, signal.SIGKILL)
            until(lambda gone=worker: gone not in pids(node), 20, "the death to be seen", every=0.005)  # type: ignore[misc]
    until(lambda: ended(node) >= len(submitted.ids), 60, "the end of all tasks")
    assert submitted.errors == [], submitted.errors[:3]
    all_ready(node)
    assert first is not None
    status, numbers, runs = node.status(), node.metrics(), node.ledger.runs()
    dead = {task["id"] for task in node.http("GET", "/dead?limit=100").json["tasks"]}
    cut_short = {(run.id, run.pid) for run in runs if run.ended_at is None}
    ended_runs = {(run.id, run.pid) for run in runs} - cut_short
    named = [(one["id"], one["pid"]) for one in node.events("handed_back") if one["has_crashed"]]
    return Tally(
        kills=WARM_UP + kills,
        submitted=len(submitted.ids),
        first=first,
        last=Footprint.of(node.pid),
        runs=len(runs),
        returned=len({run.id for run in runs if run.outcome == "returned"} - dead),
        completed=numbers["completed_total"],
        dead=len(dead),
        crashes_in_all=numbers["crashes_total"],
        crashes=status["totals"]["crashes"],
        restarts=sum(worker["restarts"] for worker in status["workers"]),
        crashed=len(cut_short),
        before=sum(one not in cut_short and one not in ended_runs for one in named),
        after=sum(one in ended_runs for one in named),
        unnamed=len(cut_short - set(named)),
        overlaps=len(node.ledger.overlaps()),
        longest_s=round(longest, 3),
    )


def pids(node: Node) -> list[int]:
    return [worker["pid"] for worker in ask(node.ctl_socket, "workers")]


def all_ready(node: Node) -> list[int]:
    """Wait until all workers are ready; return their ids."""

    def ready() -> list[int]:
        workers = ask(node.ctl_socket, "workers")
        return [w["pid"] for w in workers] if all(w["state"] == "ready" for w in workers) else []

    return until(ready, 30, "ready workers", every=0.005) or []


def ended(node: Node) -> int:
    numbers = node.metrics()
    total: int = numbers["completed_total"] + numbers["dead"]
    return total


def main() -> None:
    kills = int(sys.argv[1]) if sys.argv[1:] else 1_000
    with tempfile.TemporaryDirectory(prefix="prefork-q-kills-") as folder:
        node = Node(None, Path(folder), workers=2)
        try:
            node.start()
            began = time.monotonic()
            tally = kill_workers(node, kills)
            for name, value in asdict(tally).items():
                print(f"{name:12} {value}")
            print(f"{'seconds':12} {time.monotonic() - began:.0f}")
        except AssertionError:
            print(node.status(), node.log_end(), sep="\n")
            raise
        finally:
            node.close()


if __name__ == "__main__":
    main()
