"""`ctl top`: the node, live. On anything but a terminal one snapshot, as `ctl status` prints it."""

from __future__ import annotations

import sys
import time
from typing import Any

import click

from prefork_q.cli.asking import TIMEOUT, find_socket, question, socket_option
from prefork_q.cli.exits import TIMED_OUT
from prefork_q.cli.output import elapsed, mebibytes, printable
from prefork_q.cli.parameters import duration
from prefork_q.cli.showing import show_status
from prefork_q.control.client import NoAnswer, NotRunning, ask

LEAST_INTERVAL = 0.1
GAP = 2
"""Blanks after a column."""
ROOM_FOR_RUNS = 30
"""Columns that are kept for what a worker runs."""
LESS_VALUED = ("pss", "gen", "held", "pid", "failed", "rss", "completed")
"""Columns that are left out where there is no room, in this order."""
COLOURS = {"ready": "green", "draining": "yellow", "starting": "cyan", "backoff": "red"}


@click.command("top")
@click.option(
    "--interval", default="1s", callback=duration, metavar="DURATION", show_default=True,
    help="Time between two looks.",
)  # fmt: skip
@socket_option
@click.pass_obj
def top(group_socket: str | None, socket: str | None, interval: float) -> int:
    """Show the node live: what each worker runs, and how much is done. Ends with Ctrl-C."""
    path = socket or group_socket or find_socket()
    status = question("status", path)
    if status is None:
        return TIMED_OUT
    if not sys.stdout.isatty():
        show_status(status)
        return 0
    watch(path, status, max(LEAST_INTERVAL, interval))
    return 0


def watch(path: str, status: dict[str, Any], interval: float) -> None:
    """Show and look again, until the node is gone or the user has seen enough."""
    # Imported here: no other question needs it, and it is not small.
    from rich.live import Live

    try:
        with Live(screen=True, auto_refresh=False) as live:
            live.update(picture(status, live.console.width), refresh=True)
            while True:
                time.sleep(interval)
                try:
                    status = ask(path, "status", timeout=TIMEOUT)
                    live.update(picture(status, live.console.width), refresh=True)
                except NoAnswer as error:
                    live.update(picture(status, live.console.width, str(error)), refresh=True)
    except NotRunning:
        click.echo("prefork-q: the node has stopped", err=True)
    except KeyboardInterrupt:
        return


def fitting(rows: list[dict[str, str]], width: int) -> list[str]:
    """Return the titles of the columns for which there is room beside what runs, in their order."""
    titles = rows[0] if rows else {}
    widths = {title: max(len(title), *(len(row[title]) for row in rows)) + GAP for title in titles}
    for title in LESS_VALUED:
        if sum(widths.values()) + ROOM_FOR_RUNS <= width:
            break
        widths.pop(title, None)
    return list(widths)


def _cells(worker: dict[str, Any]) -> dict[str, str]:
    return {
        "worker": str(worker["slot"]),
        "pid": str(worker["pid"] or "-"),
        "gen": str(worker["generation"]),
        "state": worker["state"],
        "busy": f"{len(worker['running'])}/{worker['threads']}",
        "held": str(worker["held"]),
        "completed": f"{worker['completed']:,}",
        "failed": f"{worker['failed']:,}",
        "rss": mebibytes(worker["rss_bytes"]) or "-",
        "pss": mebibytes(worker["pss_bytes"]) or "-",
    }


def picture(status: dict[str, Any], width: int, trouble: str | None = None) -> Any:
    """Return what is drawn on a terminal of `width` columns."""
    from rich import box
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    redis, totals = status["redis"], status["totals"]
    head = Text.assemble(
        ("prefork-q ", "bold"), f"{status['version']}  {status['node']}  pid {status['pid']}  ",
        (status["state"], "bold green" if status["state"] == "running" else "bold yellow"),
        f"  gen {status['generation']}  up {elapsed(status['uptime_s'])}  ",
        ("redis " + str(redis["version"]), "") if redis["reachable"] else ("redis unreachable", "bold red"),
    )  # fmt: skip
    done = Text(
        f"{totals['completed_per_minute']:,} completed and {totals['failed_per_minute']:,} failed a minute"
        f"   in all: {totals['completed']:,} completed, {totals['failed']:,} failed, "
        f"{totals['dead']:,} dead, {totals['crashes']:,} crashes"
    )
    workers = [*status["workers"], *status["leaving"]]
    rows = [_cells(worker) for worker in workers]
    titles = fitting(rows, width)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, expand=True)
    for title in titles:
        table.add_column(title, justify="left" if title == "state" else "right", no_wrap=True)
    table.add_column("runs", ratio=1, no_wrap=True, overflow="ellipsis")
    for worker, row in zip(workers, rows, strict=True):
        colour = COLOURS.get(worker["state"], "")
        cells = (Text(row[title], colour if title == "state" else "") for title in titles)
        runs = ", ".join(f"{printable(run['type'])} {run['runtime_s']:.1f} s" for run in worker["running"])
        table.add_row(*cells, Text(runs))
    reasons = [Text(printable(reason), "red") for reason in status["degraded"]]
    return Group(head, done, table, *reasons, *([Text(trouble, "bold red")] if trouble else []))
