"""The demonstration: start the whole service, give it one task a file of a tree, show what came out.

It drives the installed program from outside, as a user would: `prefork-q run` with the embedded
store in a temporary folder, and the HTTP API. Exit status: 0 every file became a succeeded task
and the service stopped cleanly; 1 not so; 2 wrong usage; 130 interrupted.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import signal
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from report import Counters, Summary, as_json, shown, tables
from rich.console import Console
from rich.markup import escape
from service import Service, ServiceFailed

HANDLERS = Path(__file__).with_name("compress.py")
BATCH = 500
"""Tasks in one submission; the API takes up to 1,000."""
PAGE = 100
TICK = 0.2
"""Seconds between two looks at the counters while the tasks run."""
PATIENCE = 600.0
"""Seconds without any task ending before the demonstration gives up."""


class Tree(NamedTuple):
    """The files to work on, and how many entries had to be left out."""

    files: list[str]
    skipped: int


def main() -> int:
    options = parse_arguments()
    console = Console(highlight=False)
    tree = find_files(options.folder)
    if not tree.files:
        print(f"demo: no file to read in {options.folder}", file=sys.stderr)
        return 2
    console.print(f"{len(tree.files):,} files in {escape(str(options.folder))}", soft_wrap=True)
    if tree.skipped:
        console.print(f"{tree.skipped:,} skipped: unreadable, no regular file, or a name that is not UTF-8")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.default_int_handler)
    try:
        with tempfile.TemporaryDirectory(prefix="prefork-q-demo-") as folder:
            summary = run(tree, Path(folder), console)
    except KeyboardInterrupt:
        print("demo: interrupted; the service was stopped", file=sys.stderr)
        return 130
    except (ServiceFailed, OSError, http.client.HTTPException) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    for table in tables(summary, options.folder):
        console.print(table)
    if options.json:
        options.json.write_text(json.dumps(as_json(summary), indent=1) + "\n", encoding="utf-8")
    return 1 if summary.failed else 0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bin/demo", description="Compress and hash every file of a tree.")
    parser.add_argument(
        "folder",
        nargs="?",
        type=Path,
        default=Path(sysconfig.get_path("stdlib")),
        help="the tree of files (default: the standard library of this Python)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results to FILE")
    options = parser.parse_args()
    if not options.folder.is_dir():
        parser.error(f"{options.folder} is not a folder")
    if options.json and not options.json.absolute().parent.is_dir():
        parser.error(f"{options.json.parent} is not a folder")
    options.folder = options.folder.resolve()
    return options


def find_files(folder: Path) -> Tree:
    """Return all regular files below `folder`, links to files too; folders are not entered by links.

    Of the standard library, what others installed into it and the bytecode are left out.
    """
    is_stdlib = folder == Path(sysconfig.get_path("stdlib")).resolve()
    foreign = {"site-packages", "dist-packages", "__pycache__"} if is_stdlib else set()
    files: list[str] = []
    skipped = 0

    def skip(_: OSError) -> None:
        nonlocal skipped
        skipped += 1

    for parent, folders, names in os.walk(folder, onerror=skip):
        folders[:] = sorted(name for name in folders if name not in foreign)
        for name in sorted(names):
            path = os.path.join(parent, name)
            if is_usable(path):
                files.append(path)
            else:
                skipped += 1
    return Tree(files, skipped)


def is_usable(path: str) -> bool:
    """Tell whether `path` is a readable regular file whose name can be written in JSON."""
    try:
        path.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return os.path.isfile(path) and os.access(path, os.R_OK)


def run(tree: Tree, folder: Path, console: Console) -> Summary:
    """Start the service, let it do all tasks, fetch the results and stop it."""
    with Service(f"{HANDLERS}:app", folder) as service:
        console.print(
            f"The service runs: pid {service.pid}, {service.url}, files in {folder}", soft_wrap=True
        )
        started = time.monotonic()
        ids = submit(service, tree.files)
        with shown(console, len(ids)) as show:
            counters = wait_for_all(service, len(ids), show)
        seconds = time.monotonic() - started
        records = fetch(service, ids)
    console.print(f"The service stopped: exit 0 in {service.stop_seconds:.1f} s, no process left")
    return Summary(records, counters, seconds)


def submit(service: Service, files: list[str]) -> list[str]:
    """Submit one task a file, in batches; return their ids in the same order."""
    ids: list[str] = []
    for start in range(0, len(files), BATCH):
        payloads = ({"path": path} for path in files[start : start + BATCH])
        tasks = [{"type": "compress_file", "payload": payload} for payload in payloads]
        answer = service.request("POST", "/tasks/batch", {"tasks": tasks})
        ids += [task["id"] for task in answer["tasks"]]
    return ids


def wait_for_all(service: Service, count: int, show: Callable[[int], None]) -> Counters:
    """Watch the counters until `count` tasks have ended, calling `show` with the number so far."""
    ended, moved_at = 0, time.monotonic()
    while True:
        metrics = service.request("GET", "/metrics")
        counters = Counters(metrics["completed_total"], metrics["retried_total"], metrics["dead_total"])
        show(counters.ended)
        if counters.ended >= count:
            return counters
        if counters.ended > ended:
            ended, moved_at = counters.ended, time.monotonic()
        elif time.monotonic() - moved_at > PATIENCE:
            raise ServiceFailed(
                f"{ended} of {count} tasks ended, none for {PATIENCE:g} s\n{service.log_end()}"
            )
        time.sleep(TICK)


def fetch(service: Service, ids: list[str]) -> list[dict[str, Any]]:
    """Fetch the tasks in the order of `ids`: page by page, then one by one what no page listed."""
    records: dict[str, dict[str, Any]] = {}
    for record in pages(service, f"/tasks?status=succeeded&limit={PAGE}"):
        records[record["id"]] = record
    for id in ids:
        if id not in records:
            records[id] = service.request("GET", f"/tasks/{id}")
    return [records[id] for id in ids]


def pages(service: Service, path: str) -> Iterator[dict[str, Any]]:
    """Yield the tasks of all pages of a listing."""
    asked = path
    while asked:
        page = service.request("GET", asked)
        yield from page["tasks"]
        asked = f"{path}&cursor={page['next']}" if page["next"] else ""


if __name__ == "__main__":
    sys.exit(main())
