"""What a run will do, made out of its seed before it begins: which faults when, and which tasks when.

The same seed and options give the same plan. What comes of it also depends on the machine.
"""

from __future__ import annotations

import random
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

LEASE = 4.0
DRAIN = 4.0
"""Seconds, of every node."""

FAULTS: Mapping[str, float] = {
    "kill_worker": 6, "stop_worker": 4, "term_worker": 2,
    "kill_keeper": 2, "stop_keeper": 2, "kill_api": 2, "stop_api": 1, "kill_template": 1.5,
    "kill_master": 1.5, "stop_master": 1, "kill_node": 1, "drain_node": 1.5,
    "flush_scripts": 4, "kill_server": 1.5, "pause_server": 1.5, "fill_server": 2, "fail_over": 1.5,
    "reset_links": 3, "flap_links": 1, "freeze_links": 1.5, "cut_links": 1.5,
    "delay_links": 2, "pause_links": 1,
    "swallow_answers": 2, "swallow_commands": 1,
}  # fmt: skip
"""Every kind of fault and its weight."""

DURATIONS: Mapping[str, tuple[float, float]] = {
    # Some end within a lease and some do not.
    "stop_worker": (0.5, 9), "stop_keeper": (0.5, 7), "stop_api": (0.5, 3), "stop_master": (0.5, 4),
    "kill_server": (0, 3), "pause_server": (0.3, 7), "fill_server": (0.5, 4), "fail_over": (0.1, 2),
    "flap_links": (1, 2), "cut_links": (0.3, 7), "delay_links": (1, 5), "pause_links": (0.3, 6),
    "swallow_answers": (0.3, 5), "swallow_commands": (0.3, 5), "kill_node": (0.2, 5),
}  # fmt: skip
"""Seconds from a fault to its end, for those that have one."""

KINDS: Mapping[str, float] = {
    "echo": 40, "sleep": 18, "long": 2.5, "spin": 5, "hold_gil": 0.7, "progress": 2, "flaky": 10,
    "doomed": 5, "reject": 2, "unstorable": 1, "late": 1, "crash_once": 1.2, "poison": 0.5, "delayed": 9,
}  # fmt: skip
"""Every kind of task and its weight."""

CRASHES = (signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS, 0)


@dataclass(frozen=True, slots=True)
class Fault:
    """`at` in seconds from the round's begin; `pick` in [0, 1) chooses among what is there then."""

    at: float
    kind: str
    node: int
    pick: float
    duration: float


@dataclass(frozen=True, slots=True)
class Submission:
    """A task to be. `via` is a node's number for its API, or -1 for a client of Redis.

    `cancel_after` and `retry_after` in seconds from its acceptance, None for never.
    """

    at: float
    label: int
    kind: str
    type: str
    payload: Mapping[str, Any]
    via: int
    options: Mapping[str, Any] = field(default_factory=dict)
    idempotency_key: str | None = None
    cancel_after: float | None = None
    retry_after: float | None = None


@dataclass(frozen=True, slots=True)
class Round:
    """A time of faults, which ends in a time without, at whose end everything has to be right."""

    seconds: float
    faults: Sequence[Fault]
    submissions: Sequence[Submission]


def rounds(
    seed: int, *, nodes: int, seconds: float, rate: float, faults: Sequence[str], every: float, length: float
) -> list[Round]:
    """Plan `seconds` in rounds of about `length`: `rate` tasks a second, a fault every `every` seconds."""
    rng = random.Random(seed)
    number = max(1, round(seconds / length))
    label = 0
    planned = []
    for _ in range(number):
        submissions = []
        for at in _times(rng, seconds / number, 1 / rate):
            submissions.append(_submission(rng, at, label, nodes))
            label += 1
        # The last moments are for what goes on by itself.
        found = [_fault(rng, at, faults, nodes) for at in _times(rng, seconds / number - 1, every)]
        planned.append(Round(seconds / number, found, submissions))
    return planned


def _times(rng: random.Random, seconds: float, mean: float) -> list[float]:
    times, at = [], rng.expovariate(1 / mean)
    while at < seconds:
        times.append(at)
        at += rng.expovariate(1 / mean)
    return times


def _fault(rng: random.Random, at: float, kinds: Sequence[str], nodes: int) -> Fault:
    kind = rng.choices(kinds, [FAULTS[kind] for kind in kinds])[0]
    duration = rng.uniform(*DURATIONS.get(kind, (0, 0)))
    return Fault(at, kind, rng.randrange(nodes), rng.random(), duration)


def _submission(rng: random.Random, at: float, label: int, nodes: int) -> Submission:
    kind = rng.choices(list(KINDS), list(KINDS.values()))[0]
    payload: dict[str, Any] = {"label": label}
    options: dict[str, Any] = {}
    type_ = kind
    retry_after = None
    match kind:
        case "sleep" | "progress":
            payload["seconds"] = round(rng.uniform(0.05, 1.0), 2)
        case "long":
            type_ = "sleep"
            payload["seconds"] = round(rng.uniform(1, 1.6) * LEASE, 2)
        case "spin":
            payload["seconds"] = round(rng.uniform(0.01, 0.2), 2)
        case "hold_gil":
            payload["seconds"] = round(rng.uniform(0.2, 1.3) * LEASE, 2)
        case "flaky":
            payload["failures"] = rng.randint(1, 3)
            options["max_attempts"] = 5
        case "doomed":
            options["max_attempts"] = rng.randint(1, 3)
            retry_after = rng.choice((None, None, rng.uniform(1, 6)))
        case "late":
            payload["seconds"] = 3.0
            options |= {"timeout": 0.5, "max_attempts": rng.randint(1, 2)}
        case "poison":
            payload["number"] = int(rng.choice(CRASHES))
        case "delayed":
            type_ = "echo"
            options["delay"] = round(rng.uniform(0.1, 4), 2)
    cancel_after = rng.uniform(0, 1.5) if rng.random() < 0.04 else None
    key = f"key-{label}" if rng.random() < 0.4 else None
    via = rng.choice((-1, rng.randrange(nodes)))
    return Submission(
        at, label, kind, type_, payload, via, options,
        idempotency_key=key, cancel_after=cancel_after, retry_after=retry_after,
    )  # fmt: skip
