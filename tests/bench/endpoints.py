"""How long each endpoint takes with many tasks stored, in milliseconds.

    .venv/bin/python -m tests.bench.endpoints [--tasks 200000] [--times 30] [--limit 100]

It fills a server of its own: six tenths of the tasks pending in five queues, the rest delayed, dead and
succeeded; one task in a thousand has a type of its own, so that a filtered page has to look for it. With
--limit (milliseconds) it fails if the median of an endpoint is above.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from prefork_q.broker import Broker
from prefork_q.connection import connect
from prefork_q.ids import new_id
from prefork_q.keys import Keys
from prefork_q.leases import ClaimRequest, Settlement
from prefork_q.task import Submission
from tests.bench.scripts import running_server
from tests.support.api import Api

BATCH = 500
QUEUES = ("default", "a", "b", "c", "d")
PAYLOAD = b'{"value":"' + b"x" * 80 + b'"}'
RARE = 1_000
"""One task in so many has the type `plain`, all others `return`."""


def fill(broker: Broker, tasks: int) -> dict[str, str]:
    """Store the tasks; return the id of one of each status."""
    ids: dict[str, str] = {}
    counts = {
        "dead": tasks // 10, "succeeded": tasks * 3 // 20,
        "delayed": tasks * 3 // 20, "pending": tasks * 6 // 10,
    }  # fmt: skip
    made = 0
    for status, count in counts.items():
        for first in range(0, count, BATCH):
            batch = []
            for _ in range(min(BATCH, count - first)):
                made += 1
                queue = QUEUES[made % len(QUEUES)] if status in ("pending", "delayed") else "work"
                delay = 86_400.0 + made % 1_000 if status == "delayed" else None
                type = "plain" if made % RARE == 0 else "return"
                batch.append(Submission(new_id(), type, PAYLOAD, queue, 1, delay))
            broker.submit(batch)
            ids[status] = batch[0].id
            if status in ("dead", "succeeded"):
                end(broker, status)
    return ids


SEQ = iter(range(1, 10_000_000))


def end(broker: Broker, status: str) -> None:
    """Claim what waits in the queue `work`, and let it succeed or fail."""
    verb = "complete" if status == "succeeded" else "fail"
    text = b'{"size":1}' if status == "succeeded" else b'{"type":"ValueError","message":"as told"}'
    done: list[Settlement] = []
    while True:
        known = [(b"return", BATCH), (b"plain", BATCH)]
        request = ClaimRequest("bench.0.1", next(SEQ), 30_000, 250, 250, 1 << 20, ["work"], known)
        _, claimed = broker.commit(done, request)
        done = [Settlement(verb, lease.id, lease.token, 3, text) for lease in claimed.leases]
        if not done:
            return


def measure(ask: Callable[[], Any], times: int) -> tuple[float, float]:
    """Return the median and the longest of some requests."""
    took = []
    for _ in range(times):
        began = time.perf_counter()
        reply = ask()
        took.append((time.perf_counter() - began) * 1e3)
        assert reply.status < 300, reply
    return statistics.median(took), max(took)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--binary", default=shutil.which("redis-server"))
    parser.add_argument("--tasks", type=int, default=200_000)
    parser.add_argument("--times", type=int, default=30)
    parser.add_argument("--limit", type=float, default=0.0)
    options = parser.parse_args()
    with running_server(options.binary) as url, tempfile.TemporaryDirectory() as folder:
        client = connect(url, timeout=60)
        began = time.monotonic()
        ids = fill(Broker(client, Keys("bench")), options.tasks)
        memory = client.info("memory")["used_memory"] / 2**20
        seconds = time.monotonic() - began
        print(f"{options.tasks:,} tasks stored in {seconds:.0f} s, {memory:.0f} MiB in Redis")
        api = Api(url, Path(folder), namespace="bench", log_level="warning").start()
        slow = []
        try:
            print(f"{'':58}{'median ms':>11}{'longest ms':>12}")
            for method, path, body in requests(api, ids):
                headers = {"Accept": "application/json"} if body == "json" else {}
                sent = None if body == "json" else body
                median, longest = measure(
                    lambda: api.http(method, path, sent, headers=headers),  # noqa: B023
                    options.times if method == "GET" else min(5, options.times),
                )
                shown = path if len(path) < 48 else f"{path[:45]}..."
                name = f"{shown} as JSON" if body == "json" else shown
                print(f"{method:6}{name:52}{median:11.1f}{longest:12.1f}")
                if options.limit and median > options.limit:
                    slow.append(path)
        finally:
            api.close()
    sys.exit(f"over {options.limit:g} ms: {', '.join(slow)}" if slow else 0)


def requests(api: Api, ids: dict[str, str]) -> list[tuple[str, str, Any]]:
    """Return the requests to measure; pages are also taken from the middle of a listing."""
    deep = []
    for listing in ("/tasks?", "/tasks?status=pending&", "/dead?"):
        cursor = ""
        for _ in range(30):
            page = api.http("GET", f"{listing}limit=100{cursor and '&cursor='}{cursor}").json
            cursor = page["next"] or cursor
        deep.append(("GET", f"{listing}limit=100&cursor={cursor}", None))
    statuses = ("pending", "processing", "delayed", "succeeded", "dead", "cancelled")
    return [
        ("POST", "/tasks", {"type": "plain"}),
        ("POST", "/tasks/batch", {"tasks": [{"type": "plain"}] * 100}),
        ("GET", f"/tasks/{ids['pending']}", None),
        ("GET", f"/tasks/{ids['succeeded']}?wait=10", None),
        ("GET", "/tasks", None),
        *(("GET", f"/tasks?status={status}&limit=100", None) for status in statuses),
        ("GET", "/tasks?type=plain&limit=100", None),
        ("GET", "/tasks?status=pending&type=nobody", None),
        ("GET", "/tasks?status=pending&queue=d&type=plain", None),
        ("GET", "/tasks?status=succeeded&type=plain", None),
        ("GET", "/dead?limit=100", None),
        ("GET", "/dead?type=plain", None),
        *deep,
        ("GET", f"/dead/{ids['dead']}", None),
        ("GET", "/queues", None),
        ("GET", "/metrics", None),
        ("GET", "/metrics", "json"),
        ("GET", "/healthz", None),
        ("GET", "/openapi.json", None),
        ("POST", "/queues/a/pause", None),
        ("POST", "/queues/a/resume", None),
        ("POST", "/dead/retry", {"limit": 100}),
    ]


if __name__ == "__main__":
    main()
