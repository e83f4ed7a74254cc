"""Reloads a node ten times at half a second's distance under load, and prints what came of it.

python -m tests.support.reloads [TASKS_PER_SECOND]
"""

from __future__ import annotations

import signal
import sys
import tempfile
import time
from pathlib import Path

from tests.support.load import load
from tests.support.node import Node
from tests.support.until import until

RELOADS = 10
PAUSE = 0.5
RATE = 510.0
"""Tasks a second that are asked for: what a request comes late is not made up for."""
BATCH = 10
"""Tasks a request: one by one it is the client that does not reach the rate on a small machine."""


def main() -> None:
    rate = float(sys.argv[1]) if sys.argv[1:] else RATE
    with tempfile.TemporaryDirectory(prefix="prefork-q-reloads-") as folder:
        node = Node(None, Path(folder), workers=2, threads=4)
        try:
            node.start()
            with load(node, "return", {}, rate=rate, connections=8, batch=BATCH) as submitted:
                until(lambda: len(node.ledger.ends()) > rate, 30, "work")
                began, first = time.time(), len(submitted.ids)
                for _ in range(RELOADS):
                    node.send(signal.SIGHUP)
                    time.sleep(PAUSE)
                until(lambda: node.status()["state"] == "running", 120, "the last reload's end", every=0.2)
                ended, last = time.time(), len(submitted.ids)
            ids = submitted.ids
            until(lambda: node.metrics()["completed_total"] >= len(ids), 60, "the end of all tasks")
            ends = sorted(end for end in node.ledger.ends() if began <= end <= ended)
            gap = max(b - a for a, b in zip([began, *ends], [*ends, ended], strict=True))
            times_run = node.ledger.times_run()
            seconds = ended - began
            print(f"seconds        {seconds:.1f}")
            print(f"signals        {RELOADS}, which became {len(node.events('reloaded'))} reloads")
            print(f"tasks/s        {(last - first) / seconds:.0f} submitted, {len(ends) / seconds:.0f} ended")
            print(f"longest gap    {gap:.3f} s")
            print(f"HTTP errors    {len(submitted.errors)} {submitted.errors[:3]}")
            print(f"submitted      {len(ids)}")
            print(f"never run      {len(set(ids) - times_run.keys())}")
            print(f"run twice      {sum(n > 1 for n in times_run.values())}")
            print(f"at once        {len(node.ledger.overlaps())}")
        finally:
            node.close()


if __name__ == "__main__":
    main()
