"""What preloading saves: the memory of workers over one large object graph, with preload on and off.

    .venv/bin/python -m tests.bench.preload [--workers 8] [--mebibytes 200] [--tasks 1000] [--json FILE]

Each node runs on an embedded server of its own, and its handlers' module makes a graph of small objects at
import. Every worker runs `tasks` tasks that do not touch it. Then the proportional set sizes are summed:
PSS shares each page among those that map it, so the sum over all processes is the memory that they really
take; the embedded server is left out. `base` is a worker of the same node without the graph; `copy` is what
the graph adds to one process. Exits 1 if the workers take over 1.5 copies and a base each with preload on.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import psutil

from tests.support.node import Node
from tests.support.until import until

HANDLERS = """
import os
from prefork_q import App

app = App()
# Small objects, as those of a parsed configuration or a model's vocabulary: about 250 bytes each.
GRAPH = [{{"n": n, "name": f"entry {{n}}"}} for n in range({objects})]


@app.task("nothing")
def nothing() -> int:
    return os.getpid()
"""
BYTES_A_MEMBER = 316
"""Of the graph, with its list and the allocator's overhead; measured with CPython 3.11."""
MIB = 1 << 20
BATCH = 1_000
ALLOWED_COPIES = 1.5


@dataclass(frozen=True, slots=True)
class Memory:
    """Of one node, MiB."""

    preload: str
    graph: int
    others_pss: float
    api_pss: float
    template_pss: float
    template_rss: float
    workers_pss: float
    worker_pss: float
    worker_rss: float
    least_tasks: int

    @property
    def total(self) -> float:
        return self.others_pss + self.api_pss + self.template_pss + self.workers_pss


def measure(folder: Path, *, preload: str, workers: int, mebibytes: int, tasks: int) -> Memory:
    """Run a node, have each worker run its tasks, and look at its processes."""
    folder.mkdir()
    target = folder / "graph.py"
    target.write_text(HANDLERS.format(objects=mebibytes * MIB // BYTES_A_MEMBER))
    node = Node(None, folder / "node", target=f"{target}:app", workers=workers, preload=preload)
    node.start(timeout=180)
    try:
        least = work(node, workers, tasks)
        pids = node.pids()
        full = [psutil.Process(pid).memory_full_info() for pid in pids["worker"]]
        template = psutil.Process(pids["template"][0]).memory_full_info()
        others = sum(psutil.Process(pids[role][0]).memory_full_info().pss for role in ("master", "keeper"))
        api = psutil.Process(pids["api"][0]).memory_full_info()
        return Memory(
            preload=preload,
            graph=mebibytes,
            others_pss=others / MIB,
            api_pss=api.pss / MIB,
            template_pss=template.pss / MIB,
            template_rss=template.rss / MIB,
            workers_pss=sum(one.pss for one in full) / MIB,
            worker_pss=statistics.mean(one.pss for one in full) / MIB,
            worker_rss=statistics.mean(one.rss for one in full) / MIB,
            least_tasks=least,
        )
    finally:
        node.stop()
        node.close()


def work(node: Node, workers: int, tasks: int) -> int:
    """Submit until each worker has run so many; return what the least busy one has run."""
    submitted = 0
    while True:
        for _ in range(workers):
            node.submit_many("nothing", [{}] * BATCH)
        submitted += workers * BATCH
        until(partial(has_completed, node, submitted), 300, "the end of the tasks", every=0.2)
        least = min(worker["completed"] for worker in node.status()["workers"])
        if least >= tasks:
            return int(least)


def has_completed(node: Node, tasks: int) -> bool:
    return bool(node.status()["totals"]["completed"] >= tasks)


def show(rows: list[Memory], copy: float, base: float, workers: int) -> None:
    print(f"\n{workers} workers, MiB; one copy of the graph: {copy:.0f}, a worker without it: {base:.0f}\n")
    header = (
        "preload", "graph", "others' PSS", "api PSS", "template PSS", "workers' PSS", "all PSS",
        "one worker RSS", "copies",
    )  # fmt: skip
    print("".join(f"{title:>16}" for title in header))
    for row in rows:
        copies = (row.workers_pss - workers * base) / copy if row.graph else 0.0
        numbers = (
            row.others_pss, row.api_pss, row.template_pss, row.workers_pss, row.total, row.worker_rss
        )  # fmt: skip
        told = "".join(f"{number:>16.1f}" for number in numbers)
        print(f"{row.preload:>16}{row.graph:>16}{told}{copies:>16.2f}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--mebibytes", type=int, default=200)
    parser.add_argument("--tasks", type=int, default=1_000)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory(prefix="prefork-q-preload-") as folder:
        for preload, mebibytes in (("on", 0), ("on", given.mebibytes), ("off", given.mebibytes)):
            place = Path(folder) / str(len(rows))
            workers, tasks = given.workers, given.tasks
            rows.append(measure(place, preload=preload, workers=workers, mebibytes=mebibytes, tasks=tasks))
            print(f"measured: preload {preload}, {mebibytes} MiB", file=sys.stderr)
    without, on, off = rows
    base = without.worker_pss
    copy = on.template_rss - without.template_rss
    show(rows, copy, base, given.workers)
    allowed = ALLOWED_COPIES * copy + given.workers * base
    is_good = on.workers_pss <= allowed
    print(
        f"\nworkers' PSS with preload on: {on.workers_pss:.0f} of at most {allowed:.0f} MiB "
        f"({ALLOWED_COPIES:g} copies and {given.workers} bases): {'good' if is_good else 'TOO MUCH'}\n"
        f"in copies, with all else that workers take: {on.workers_pss / copy:.2f} with preload on, "
        f"{off.workers_pss / copy:.2f} with it off"
    )
    if given.json:
        given.json.write_text(json.dumps({"rows": [asdict(row) for row in rows], "copy": copy, "base": base}))
    return 0 if is_good else 1


if __name__ == "__main__":
    os.environ.setdefault("PYTHONDONTWRITEBYTECODE", "1")
    sys.exit(main())
