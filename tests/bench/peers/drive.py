"""Submits to one contender, from its own environment: `drive.py MODULE ACTION ARGUMENT...`; prints JSON.

fill KIND N one|bulk   submit N tasks; answers the seconds that took
latency N              submit N tasks, each after the last began and a pause; their handlers note the times
"""

from __future__ import annotations

import importlib
import json
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

import ledger

PAYLOADS: dict[str, Any] = {"noop": "x" * 89, "spin": 0.02, "hang": 60.0, "nap": 0.05}
"""The single argument of each handler. That of `noop` makes a payload of 100 bytes as JSON: {"text":"…"}."""
CHUNK = 10_000
PAUSE = 0.03


def fill(contender: Any, kind: str, n: int, way: str) -> dict[str, float]:
    """Submit `n` tasks and time it; imports and the first connection are not counted."""
    value = PAYLOADS[kind]
    if way == "one":
        contender.submit_one_by_one("noop", [value] * 0)
    started = time.perf_counter()
    cpu = time.process_time()
    submit = contender.submit_one_by_one if way == "one" else contender.submit_bulk
    for first in range(0, n, CHUNK):
        submit(kind, [value] * min(CHUNK, n - first))
    return {"seconds": time.perf_counter() - started, "cpu": time.process_time() - cpu, "n": n}


def latency(contender: Any, n: int) -> dict[str, float]:
    """Submit one at a time to an idle system."""
    cells = ledger.view(Path(os.environ["BENCH_LEDGER"]))
    pauses = random.Random(7)
    lost = 0
    for _ in range(n):
        known = ledger.total(cells)
        contender.submit_one_by_one("stamp", [time.monotonic()])
        deadline = time.monotonic() + 5
        while ledger.total(cells) == known and time.monotonic() < deadline:
            time.sleep(0.002)
        lost += ledger.total(cells) == known
        time.sleep(PAUSE * (0.5 + pauses.random()))
    return {"n": n, "lost": lost}


def main() -> None:
    module, action, *arguments = sys.argv[1:]
    contender = importlib.import_module(module)
    contender.connect()
    if action == "fill":
        answer = fill(contender, arguments[0], int(arguments[1]), arguments[2])
    else:
        answer = latency(contender, int(arguments[0]))
    print(json.dumps(answer), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
