"""Many requests at once with one idempotency key, over several api processes: one task, and no error.

    .venv/bin/python -m tests.bench.one_key [--rounds 100] [--requests 200] [--processes 4]

Each round has a key of its own. The task is looked at when all are answered: it ran once.
"""

from __future__ import annotations

import argparse
import json
import select
import shutil
import socket
import sys
import tempfile
import uuid
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from tests.bench.scripts import running_server
from tests.support.node import Node


class Round(NamedTuple):
    """What came back: how often each status, and the ids that were told."""

    statuses: Counter[int]
    ids: set[str]


def race(port: int, requests: int, key: str) -> Round:
    """Send so many requests with one key, each on a connection of its own, all before any answer is read."""
    body = json.dumps({"type": "return", "payload": {"value": key}, "idempotency_key": key}).encode()
    request = b"POST /tasks HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s"
    connections = [socket.create_connection(("127.0.0.1", port)) for _ in range(requests)]
    for connection in connections:
        connection.sendall(request % (len(body), body))
    statuses: Counter[int] = Counter()
    ids = set()
    poller, answers = select.poll(), {one.fileno(): b"" for one in connections}
    for connection in connections:
        poller.register(connection, select.POLLIN)
    by_fd = {one.fileno(): one for one in connections}
    while by_fd:
        ready = poller.poll(20_000)
        assert ready, f"{len(by_fd)} of {requests} requests were not answered"
        for fd, _ in ready:
            data = by_fd[fd].recv(65_536)
            answers[fd] += data
            if data:
                continue
            poller.unregister(fd)
            by_fd.pop(fd).close()
            head, _, told = answers[fd].partition(b"\r\n\r\n")
            status = int(head[9:12])
            statuses[status] += 1
            if status < 300:
                ids.add(json.loads(told)["id"])
    return Round(statuses, ids)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--binary", default=shutil.which("redis-server"))
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--processes", type=int, default=4)
    options = parser.parse_args()
    with running_server(options.binary) as url, tempfile.TemporaryDirectory() as folder:
        node = Node(url, Path(folder), workers=1, api_processes=options.processes)
        statuses: Counter[int] = Counter()
        ids: list[set[str]] = []
        try:
            node.start()
            for _ in range(options.rounds):
                one = race(node.port, options.requests, uuid.uuid4().hex)
                statuses += one.statuses
                ids.append(one.ids)
            for some in ids:
                node.ended(next(iter(some)))
            runs = node.ledger.times_run()
        finally:
            node.close()
    print(f"{options.rounds} rounds of {options.requests} over {options.processes} api processes:")
    print(f"statuses: {dict(statuses)}")
    print(f"ids a round: {dict(Counter(map(len, ids)))}, runs a task: {dict(Counter(runs.values()))}")
    is_one = all(len(some) == 1 for some in ids) and set(runs.values()) == {1} and len(runs) == options.rounds
    sys.exit(0 if is_one and statuses.keys() == {200, 202} and statuses[202] == options.rounds else 1)


if __name__ == "__main__":
    main()
