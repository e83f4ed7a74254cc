"""Where the worker's Python microseconds go: each step of a task's way alone, in processor time.

    .venv/bin/python -m tests.bench.hot_path [--batch 200] [--rounds 30]

The steps are those of the product, with real objects; what lies between them (the loop's turns, system
calls, the hand-over between threads) is not here. Printed is the best of some rounds, a task.
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import tempfile
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import hiredis

from prefork_q import App
from prefork_q.events import Events
from prefork_q.ids import new_id
from prefork_q.ipc.scoreboard import Scoreboard
from prefork_q.leases import ClaimRequest, Limits, commit_arguments, parse_claimed
from prefork_q.nonblocking import pack_command
from prefork_q.scripts import scripts
from prefork_q.sink import Sink
from prefork_q.worker.commit import Ledger, Run, runs
from prefork_q.worker.held import Held, Outcome
from prefork_q.worker.holdings import Holdings
from prefork_q.worker.pace import Paces
from prefork_q.worker.processor import Processor
from prefork_q.worker.queues import QueueOrder
from prefork_q.worker.routes import routes

PAYLOAD = b'{"text":"' + b"x" * 89 + b'"}'


def packed(value: Any) -> bytes:
    """Return a value in Redis's protocol, as an answer has it."""
    if isinstance(value, list):
        return b"*%d\r\n" % len(value) + b"".join(map(packed, value))
    if isinstance(value, int):
        return b":%d\r\n" % value
    return b"$%d\r\n%s\r\n" % (len(value), value)


def unpacked(answer: bytes) -> Any:
    """Parse an answer as the worker does."""
    reader = hiredis.Reader()
    reader.feed(answer)
    return reader.gets()


class Way:
    """The objects of a worker, and the steps of a batch's way through them."""

    def __init__(self, batch: int, log: Path) -> None:
        app = App("redis://127.0.0.1:1")

        @app.task("noop")
        def noop(text: str) -> None: ...

        self.batch = batch
        self.slot = Scoreboard(1, 1, 1_024).worker(0)
        self.slot.open("bench.0.1", 1)
        self.slot.register(["noop"], ["default"])
        paces, queues = Paces(), QueueOrder(["default"], [None], random.Random())
        paces.learn(b"noop", 0.00001)
        self.routes = routes(app)
        self.holdings = Holdings(self.slot, self.routes, queues, paces)
        process = {"worker": 0, "gen": 1, "pid": os.getpid()}
        self.events = Events(Sink.file(log), format="json", level="info", process=process)
        self.ledger = Ledger(self.slot, self.events)
        self.request = ClaimRequest("bench.0.1", 1, 30_000, 1, 256, 100_000, ["default"], paces.fast())
        tasks: list[Any] = []
        for _ in range(batch):
            tasks += (new_id().encode(), PAYLOAD, 5)
        lot: list[Any] = [b"noop", b"default", 1, 3, 0, 0, tasks]
        claimed: list[Any] = [b"ok", b"1795968761965000", [lot], [], 1]
        self.answer = packed([[b"ok"] * batch, claimed])
        self.outbox: deque[Outcome] = deque()
        self.inbox: SimpleQueue[Held] = SimpleQueue()
        self.processor = Processor(
            0,
            inbox=self.inbox,
            deliver=self.outbox.append,
            wake_by=lambda at: None,
            slot=self.slot,
            lease=30.0,
            grace=2.0,
            result_limit=1 << 20,
            report_progress=lambda held, fraction, note: None,
        )
        self.parsed: Any = None
        self.claimed: Any = None
        self.held: list[Held] = []
        self.outcomes: list[Outcome] = []
        self.runs: list[Run] = []
        self.arguments: list[object] = []

    def parse(self) -> None:
        self.parsed = unpacked(self.answer)

    def claim(self) -> None:
        self.claimed = parse_claimed(self.parsed[1])

    def take(self) -> None:
        now = time.clock_gettime(time.CLOCK_BOOTTIME)
        self.held = self.holdings.take(self.claimed.lots, self.claimed.token, now, now)

    def put(self) -> None:
        for held in self.held:
            self.inbox.put(held)

    def get(self) -> None:
        for _ in self.held:
            self.inbox.get()

    def attempt(self) -> None:
        attempt, deliver = self.processor._attempt, self.outbox.append
        for held in self.held:
            held.is_started = True
            deliver(attempt(held))

    def take_batch(self) -> None:
        self.outcomes = self.holdings.take_batch(self.outbox)
        self.runs = runs(self.outcomes)

    def settle_arguments(self) -> None:
        self.arguments = commit_arguments([run.settlements() for run in self.runs], self.request, Limits())

    def pack(self) -> None:
        pack_command(scripts()["commit"].by_sha("pq:{default}:", *self.arguments))

    def let_go(self) -> None:
        self.holdings.settle(self.outcomes)

    def book(self) -> None:
        self.ledger.book(self.runs, self.parsed[0], time.clock_gettime(time.CLOCK_BOOTTIME))


STEPS: tuple[tuple[str, str, Callable[[Way], None]], ...] = (
    ("main", "parse the answer (hiredis)", Way.parse),
    ("main", "see what it says: broker.parse_claimed", Way.claim),
    ("main", "hold them: Holdings.take", Way.take),
    ("main", "into the inbox", Way.put),
    ("processor", "out of the inbox", Way.get),
    ("processor", "run: Processor._attempt", Way.attempt),
    ("main", "gather outcomes: Holdings.take_batch, runs", Way.take_batch),
    ("main", "arguments: Run.settlements, commit_arguments", Way.settle_arguments),
    ("main", "pack the command (hiredis)", Way.pack),
    ("main", "let go: Holdings.settle", Way.let_go),
    ("main", "count and log: Ledger.book", Way.book),
)


def measure(batch: int, rounds: int) -> list[tuple[str, str, float]]:
    """Return the thread, the step, and its µs a task."""
    gc.freeze()
    with tempfile.TemporaryDirectory() as folder:
        way = Way(batch, Path(folder) / "log")
        best = [float("inf")] * len(STEPS)
        for _ in range(rounds):
            for number, (_, _, step) in enumerate(STEPS):
                started = time.process_time()
                step(way)
                best[number] = min(best[number], (time.process_time() - started) * 1e6 / batch)
    return [(thread, name, cost) for (thread, name, _), cost in zip(STEPS, best, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=200)
    options = parser.parse_args()
    found = measure(options.batch, options.rounds)
    for thread, name, cost in found:
        print(f"{thread:12}{name:55}{cost:8.2f}")
    for thread in ("main", "processor"):
        print(f"{thread:12}{'in all':55}{sum(cost for who, _, cost in found if who == thread):8.2f}")


if __name__ == "__main__":
    main()
