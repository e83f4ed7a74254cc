"""What `ctl top` draws on terminals of any width."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from prefork_q.cli.top import picture

WORKER: dict[str, Any] = {
    "slot": 0, "pid": 1_234_567, "generation": 2, "state": "ready", "threads": 4, "held": 3,
    "completed": 1_234_567, "failed": 12, "rss_bytes": 123 << 20, "pss_bytes": 45 << 20,
    "running": [{"type": "make_thumbnails", "runtime_s": 12.34}],
}  # fmt: skip
STATUS: dict[str, Any] = {
    "version": "1", "node": "host", "pid": 7, "state": "running", "generation": 2, "uptime_s": 5.0,
    "redis": {"reachable": True, "version": "7.0"}, "degraded": [], "leaving": [],
    "workers": [WORKER, WORKER | {"slot": 1, "running": []}],
    "totals": {"completed_per_minute": 1, "failed_per_minute": 0, "completed": 9, "failed": 1, "dead": 0,
               "crashes": 0},
}  # fmt: skip


def drawn(width: int, status: dict[str, Any] = STATUS) -> list[str]:
    """Return the lines of the table."""
    file = io.StringIO()
    Console(file=file, width=width).print(picture(status, width))
    lines = file.getvalue().splitlines()
    return lines[next(n for n, line in enumerate(lines) if "runs" in line) :]


@pytest.mark.parametrize("width", [60, 80, 100, 132, 200])
def test_there_is_room_for_what_a_worker_runs(width: int) -> None:
    assert "make_thumbnails 12.3 s" in "".join(drawn(width))


def test_a_narrow_terminal_has_the_columns_of_more_value() -> None:
    titles = {width: drawn(width)[0].split() for width in (60, 80, 132)}

    assert " ".join(titles[132]) == "worker pid gen state busy held completed failed rss pss runs"
    assert titles[80] == ["worker", "state", "busy", "completed", "rss", "runs"]
    assert titles[60][:3] == ["worker", "state", "busy"]


def test_a_node_without_workers_is_drawn() -> None:
    assert drawn(80, STATUS | {"workers": []})[0].split()[-1] == "runs"
