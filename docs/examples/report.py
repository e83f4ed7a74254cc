"""What the demonstration shows: progress while the tasks run, then the tables and the JSON."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

PLAIN_TICK = 2.0
"""Seconds between two lines of progress where there is no terminal."""
SLOWEST = 5
FAILURES = 10


class Counters(NamedTuple):
    """What the service says of the whole queue."""

    succeeded: int
    retried: int
    dead: int

    @property
    def ended(self) -> int:
        return self.succeeded + self.dead


class Summary(NamedTuple):
    """The outcome of a run: `records` are the tasks as the API shows them, in order of submission."""

    records: list[dict[str, Any]]
    counters: Counters
    seconds: float

    @property
    def succeeded(self) -> list[dict[str, Any]]:
        return [record for record in self.records if record["status"] == "succeeded"]

    @property
    def failed(self) -> list[dict[str, Any]]:
        return [record for record in self.records if record["status"] != "succeeded"]


@contextmanager
def shown(console: Console, count: int) -> Iterator[Callable[[int], None]]:
    """Show how many of `count` tasks have ended: a bar on a terminal, else a line now and then."""
    if not console.is_terminal:
        yield plain(console, count)
        return
    rate = TextColumn("{task.fields[rate]:,.0f} tasks/s")
    with Progress(
        BarColumn(None), MofNCompleteColumn(), rate, TimeElapsedColumn(), console=console
    ) as progress:
        bar = progress.add_task("", total=count, rate=0.0)
        started = time.monotonic()

        def show(ended: int) -> None:
            progress.update(bar, completed=ended, rate=ended / max(time.monotonic() - started, 1e-3))

        yield show


def plain(console: Console, count: int) -> Callable[[int], None]:
    shown_at = started = time.monotonic()

    def show(ended: int) -> None:
        nonlocal shown_at
        now = time.monotonic()
        if ended == count or now - shown_at >= PLAIN_TICK:
            shown_at = now
            console.print(f"{ended:,} of {count:,} tasks, {now - started:.1f} s")

    return show


def tables(summary: Summary, folder: Path) -> Iterator[Table]:
    """Yield the summary, the slowest tasks and, if there are any, the failures."""
    yield totals(summary)
    yield slowest(summary, folder)
    if summary.failed:
        yield failures(summary, folder)


def totals(summary: Summary) -> Table:
    results = [record["result"] for record in summary.succeeded]
    read, packed = (sum(result[key] for result in results) for key in ("bytes", "compressed_bytes"))
    rows = {
        "tasks": f"{len(summary.records):,}",
        "succeeded": f"{len(results):,}",
        "retried": f"{summary.counters.retried:,}",
        "dead": f"{summary.counters.dead:,}",
        "wall time": f"{summary.seconds:.1f} s",
        "tasks/s": f"{len(summary.records) / summary.seconds:,.0f}",
        "bytes in": f"{read:,}",
        "bytes out": f"{packed:,} ({packed / max(read, 1):.0%})",
        "lines": f"{sum(result['lines'] for result in results):,}",
    }
    table = Table("summary", "", show_header=False)
    for name, value in rows.items():
        table.add_row(name, value)
    table.columns[1].justify = "right"
    return table


def slowest(summary: Summary, folder: Path) -> Table:
    table = Table("the five slowest", "seconds", "bytes")
    table.columns[0].overflow = "fold"
    for column in table.columns[1:]:
        column.justify, column.no_wrap = "right", True
    for record in sorted(summary.succeeded, key=duration, reverse=True)[:SLOWEST]:
        table.add_row(short(record, folder), f"{duration(record):.3f}", f"{record['result']['bytes']:,}")
    return table


def failures(summary: Summary, folder: Path) -> Table:
    table = Table("not succeeded", "status", "attempts", "error")
    for record in summary.failed[:FAILURES]:
        error = record.get("error") or {}
        text = f"{error.get('type', '')}: {error.get('message', '')}"
        table.add_row(short(record, folder), record["status"], str(record["attempts"]), escape(text))
    if len(summary.failed) > FAILURES:
        table.caption = f"and {len(summary.failed) - FAILURES:,} more"
    return table


def duration(record: dict[str, Any]) -> float:
    """Return the seconds between the start of the last attempt and the end of the task."""
    start, end = (datetime.fromisoformat(record[key]) for key in ("started_at", "finished_at"))
    return (end - start).total_seconds()


def short(record: dict[str, Any], folder: Path) -> str:
    """Return the path of a task's file below `folder`, safe to show whatever characters it has."""
    path = os.path.relpath(record["payload"]["path"], folder)
    return escape("".join(char if char.isprintable() else "?" for char in path))


def as_json(summary: Summary) -> dict[str, Any]:
    """Return what `--json` writes."""
    return {
        "tasks": len(summary.records),
        "succeeded": len(summary.succeeded),
        "dead": summary.counters.dead,
        "seconds": round(summary.seconds, 3),
        "results": [record["result"] for record in summary.succeeded],
    }
