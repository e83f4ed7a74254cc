"""The measurements that every contender is put through. Each returns plain numbers of one round."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tests.bench.contenders import Contender
from tests.bench.stand import Stand, Workers, read_calls, read_cpu, read_trips

LOOK = 0.003
"""Seconds between two looks at the counts."""
START_TIMEOUT = 40.0
CORES = 2
SPIN = 0.02
"""Seconds of processor time that a CPU-bound handler uses."""


@dataclass(frozen=True, slots=True)
class Figure:
    """The median of some rounds, and the lowest and highest."""

    median: float
    low: float
    high: float
    rounds: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Figure:
        return cls(statistics.median(values), min(values), max(values), len(values))


def figures(rounds: Sequence[dict[str, float]]) -> dict[str, dict[str, float]]:
    """Return a figure for each number that all rounds have."""
    names = [name for name in rounds[0] if all(name in one for one in rounds)]
    return {name: asdict(Figure.of([one[name] for one in rounds])) for name in names}


def submission(stand: Stand, contender: Contender, *, one: int, bulk: int) -> dict[str, float]:
    """Tasks a second, one by one and in bulk, from one process; bytes a queued task."""
    stand.clean()
    answer = stand.drive(contender, "fill", "noop", str(one), "one")
    found = {"one_by_one": answer["n"] / answer["seconds"]}
    if "cpu" in answer:
        found["client_us"] = answer["cpu"] * 1e6 / answer["n"]
    stand.clean()
    before, cpu = stand.redis.info("memory")["used_memory"], read_cpu(stand.redis)
    answer = stand.drive(contender, "fill", "noop", str(bulk), "bulk")
    found["bulk"] = answer["n"] / answer["seconds"]
    found["redis_us"] = (read_cpu(stand.redis) - cpu) * 1e6 / bulk
    time.sleep(0.1)
    found["bytes"] = (stand.redis.info("memory")["used_memory"] - before) / bulk
    return found


def drain(
    stand: Stand, contender: Contender, tasks: int, *, most: float = 60.0, is_filled: bool = False
) -> dict[str, float]:
    """Tasks a second from the first that ends to the last, with everything queued before the workers start.

    The project's tasks count when their results are stored, others' when their handlers return. `steady` is
    the rate between 10 % and 90 %. With more tasks than `most` seconds are enough for, it is what was done.
    """
    if not is_filled:
        stand.clean()
        stand.drive(contender, "fill", "noop", str(tasks), "bulk")
    counted = _completed if contender.is_project else _noted
    with stand.running(contender) as workers:
        _wait_for_first(stand, workers, counted)
        cpu, calls, work = read_cpu(stand.redis), read_calls(stand.redis), workers.cpu()
        seen = [(time.monotonic(), counted(stand))]
        started = first = seen[0]
        while seen[-1][1] < tasks and seen[-1][0] - started[0] < most:
            time.sleep(LOOK)
            seen.append((time.monotonic(), counted(stand)))
        last = seen[-1]
        n = last[1] - first[1]
        spent = last[0] - first[0]
        if n == 0:
            raise RuntimeError(f"{contender.name}: nothing was done; {last[1]} of {tasks}")
        worker_us = (workers.cpu() - work) * 1e6 / n
        redis_us = (read_cpu(stand.redis) - cpu) * 1e6 / n
        return {
            "rate": n / spent,
            "steady": _steady(seen, last[1]),
            "of_two_cores": CORES * 1e6 / (worker_us + redis_us),
            "tasks": last[1],
            "worker_us": worker_us,
            "redis_us": redis_us,
            "redis_calls": (read_calls(stand.redis) - calls) / n,
        }


def pickup(stand: Stand, contender: Contender, n: int) -> dict[str, float]:
    """Milliseconds from before the submission to the handler's first line, on an otherwise idle system."""
    stand.clean()
    with stand.running(contender) as workers:
        _warm(stand, contender, workers)
        stand.drive(contender, "latency", "5")
        known = len(stand.lines())
        answer = stand.drive(contender, "latency", str(n))
        took = sorted((began - sent) * 1e3 for sent, began in stand.lines()[known:])
        if not took:
            raise RuntimeError(f"{contender.name}: nothing was picked up")
        return {
            "p50": statistics.median(took),
            "p99": took[min(len(took) - 1, round(len(took) * 0.99))],
            "max": took[-1],
            "lost": answer["lost"],
        }


def cpu_bound(stand: Stand, contender: Contender, n: int) -> dict[str, float]:
    """The share of two cores that handlers of 20 ms get, from the first that begins to the last that ends."""
    stand.clean()
    with stand.running(contender) as workers:
        _warm(stand, contender, workers)
        known = stand.count()
        stand.drive(contender, "fill", "spin", str(n), "bulk")
        deadline = time.monotonic() + 20 + n * SPIN * 4
        # Seldom: who looks takes from the two cores as well.
        while stand.count() < known + n and time.monotonic() < deadline:
            workers.require()
            time.sleep(0.1)
        lines = stand.lines()
        if len(lines) < n:
            raise RuntimeError(f"{contender.name}: {len(lines)} of {n} were done")
        elapsed = max(ended for _, ended in lines) - min(began for began, _ in lines)
        return {"efficiency": n * SPIN / (2 * elapsed)}


def idle(stand: Stand, contender: Contender, seconds: float) -> dict[str, float]:
    """What two idle workers cost: Redis commands and processor time a second; settled for 3 s before."""
    stand.clean()
    with stand.running(contender) as workers:
        _warm(stand, contender, workers)
        time.sleep(3)
        began, work = time.monotonic(), workers.cpu()
        calls, cpu, trips = read_calls(stand.redis), read_cpu(stand.redis), read_trips(stand.redis)
        blocked = read_calls(stand.redis, "blpop")
        time.sleep(seconds)
        spent = time.monotonic() - began
        # INFOs of ours lie between.
        found = {
            "trips": (read_trips(stand.redis) - trips - 2) / spent,
            "commands": (read_calls(stand.redis) - calls - 4) / spent,
            "worker_cpu": (workers.cpu() - work) / spent,
            "redis_cpu": (read_cpu(stand.redis) - cpu) / spent,
        }
        if contender.is_project:
            # All that an idle worker sends; the rest is the keeper's, whatever the number of workers.
            found["a_worker"] = (read_calls(stand.redis, "blpop") - blocked) / spent / 2
        return found


def memory(
    stand: Stand, contender: Contender, *, megabytes: int, workers: int, tasks: int
) -> dict[str, float]:
    """MiB (PSS) of all processes over an object graph of that size: idle, and after `tasks` a worker."""
    stand.clean()
    with stand.running(contender, more={"BENCH_GRAPH_MB": str(megabytes)}, workers=workers) as running:
        _warm(stand, contender, running, timeout=90)
        time.sleep(2)
        found = {"idle": running.pss() / (1 << 20), "processes": len(running.processes())}
        known = stand.count()
        stand.drive(contender, "fill", "noop", str(tasks * workers), "bulk")
        deadline = time.monotonic() + 120
        while stand.count() < known + tasks * workers and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(1)
        found["after"] = running.pss() / (1 << 20)
        return found


# -- waiting


def _noted(stand: Stand) -> int:
    return stand.count()


def _completed(stand: Stand) -> int:
    return int(stand.redis.hget("pq:{default}:totals", "completed") or 0)


def _wait_for_first(stand: Stand, workers: Workers, counted: Any) -> None:
    deadline = time.monotonic() + START_TIMEOUT
    while not counted(stand):
        if time.monotonic() > deadline:
            raise RuntimeError(f"{workers.contender.name}: no task was done within {START_TIMEOUT:g} s")
        workers.require()
        time.sleep(LOOK)


def _warm(stand: Stand, contender: Contender, workers: Workers, timeout: float = START_TIMEOUT) -> None:
    """Wait until tasks are done: both processes have begun, their connections are there."""
    stand.drive(contender, "fill", "noop", "20", "bulk")
    deadline = time.monotonic() + timeout
    while stand.count() < 20:
        if time.monotonic() > deadline:
            raise RuntimeError(f"{contender.name}: no task was done within {timeout:g} s")
        workers.require()
        time.sleep(0.02)
    time.sleep(0.5)
    stand.ledger.with_suffix(".lines").write_bytes(b"")


def _steady(seen: Sequence[tuple[float, int]], total: int) -> float:
    inside = [one for one in seen if 0.1 * total <= one[1] <= 0.9 * total]
    if len(inside) < 2 or inside[-1][0] == inside[0][0]:
        return (seen[-1][1] - seen[0][1]) / (seen[-1][0] - seen[0][0])
    return (inside[-1][1] - inside[0][1]) / (inside[-1][0] - inside[0][0])


def until_lines(stand: Stand, n: int, timeout: float = 20.0) -> None:
    """Wait until so many lines were noted.

    Raises:
        RuntimeError: they were not in time.
    """
    deadline = time.monotonic() + timeout
    while len(stand.lines()) < n:
        if time.monotonic() > deadline:
            raise RuntimeError(f"{n} lines were not noted within {timeout:g} s")
        time.sleep(0.001)
