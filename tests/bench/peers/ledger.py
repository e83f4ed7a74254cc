"""What handlers of every contender note, without Redis: a count of calls, and lines with times.

The count is a cell of shared memory a thread, so that noting costs a fraction of a microsecond and no
system call; who measures adds the cells up. Lines are appended with one write each.

The environment names the files (BENCH_LEDGER). Standard library only: this is imported by all contenders.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import threading
import time
from pathlib import Path

CELLS = 1 << 15
"""Cells of 8 bytes; the first holds how many are given away. RQ takes one a task: it forks for each."""

_local = threading.local()
_maps: dict[str, memoryview] = {}


def create(path: Path) -> None:
    """Make an empty ledger."""
    path.write_bytes(bytes(CELLS * 8))
    path.with_suffix(".lines").write_bytes(b"")


def view(path: Path) -> memoryview:
    """Return the cells of a ledger."""
    key = str(path)
    if key not in _maps:
        with path.open("r+b") as file:
            _maps[key] = memoryview(mmap.mmap(file.fileno(), CELLS * 8)).cast("Q")
    return _maps[key]


def total(cells: memoryview) -> int:
    """Return how many calls were noted."""
    return sum(cells[1 : 1 + cells[0]])


def lines(path: Path) -> list[list[float]]:
    """Return the noted lines, each as its numbers."""
    text = path.with_suffix(".lines").read_bytes()
    return [
        [float(word) for word in line.split()]
        for line in text.splitlines(keepends=True)
        if line.endswith(b"\n")
    ]


def _own_path() -> Path:
    return Path(os.environ["BENCH_LEDGER"])


def _own_cell() -> int:
    path = _own_path()
    cells = view(path)
    with path.open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        cells[0] = index = cells[0] + 1
    _local.cell, _local.pid, _local.cells = index, os.getpid(), cells
    return index


def count() -> None:
    """Note a call."""
    try:
        _local.cells[_local.cell] += 1
    except AttributeError:
        index = _own_cell()
        _local.cells[index] += 1


def after_fork() -> None:
    """Forget the parent's cell: a child needs its own."""
    _local.__dict__.clear()


os.register_at_fork(after_in_child=after_fork)


def note(*numbers: float) -> None:
    """Append a line."""
    fd = os.open(_own_path().with_suffix(".lines"), os.O_WRONLY | os.O_APPEND)
    try:
        os.write(fd, (" ".join(f"{number:.9f}" for number in numbers) + "\n").encode())
    finally:
        os.close(fd)


# -- what the handlers of every contender do


def do_noop(text: str) -> None:
    """Nothing, of a payload of about 100 bytes."""
    count()


def do_stamp(sent: float) -> None:
    """Note when it was sent and when it began."""
    note(sent, time.monotonic())
    count()


def do_spin(seconds: float) -> None:
    """Use the CPU for so long, by this thread's own clock."""
    began = time.monotonic()
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        sum(range(200))
    note(began, time.monotonic())
    count()


def do_hang(seconds: float) -> None:
    """Note the process and the time, then sleep."""
    note(os.getpid(), time.monotonic())
    time.sleep(seconds)
    count()


# -- a large object graph, for the measurement of memory

graph: list[dict[str, object]] = []


def load_graph() -> None:
    """Build as many MiB of small objects as BENCH_GRAPH_MB says, as an import of a large model would."""
    wanted = int(os.environ.get("BENCH_GRAPH_MB", "0")) * (1 << 20)
    # 520 bytes a record, by the growth of the resident memory of CPython 3.11.
    graph.extend(
        {"id": n, "name": f"record {n}", "values": [n * 1.5, n * 2.5, str(n)]} for n in range(wanted // 520)
    )


load_graph()
