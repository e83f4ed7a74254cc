"""What must hold after whatever was done; each breach is a line that names the task."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

from prefork_q.states import Status
from tests.chaos.clients import Clients
from tests.chaos.faults import Faults, Stop
from tests.chaos.plan import LEASE, Submission
from tests.support.state import State

MAX_CRASHES = 3
LINE_START = '{"ts":'
SLACK = 0.05
"""Seconds that may pass between what happens and its being noted."""

NEVER_SUCCEED = {"doomed", "reject", "unstorable", "poison"}
FAILED_BY = {"doomed": "Told", "reject": "Reject", "unstorable": "UnserializableResult"}


@dataclass(frozen=True, slots=True)
class Run:
    """One time that a handler ran; `ended_at`, `outcome` and `is_held` are None for one cut short."""

    id: str
    type: str
    label: int
    token: int
    attempt: int
    pid: int
    node: str
    started_at: float
    ended_at: float | None
    outcome: str | None
    is_held: bool | None
    """Whether its worker was sure of the lease at its end."""


@dataclass(slots=True)
class Findings:
    """Breaches, and the numbers of the report."""

    violations: list[str] = field(default_factory=list)
    numbers: Counter[str] = field(default_factory=Counter)


def runs_of(ledger: Path) -> dict[str, list[Run]]:
    """Read the ledger: the runs of each task, in the order of their starts."""
    if not ledger.exists():
        return {}
    complete, _, _ = ledger.read_bytes().rpartition(b"\n")
    entries = [json.loads(line) for line in complete.splitlines()]
    ends = {
        (entry["id"], entry["token"], entry["pid"]): entry for entry in entries if entry["event"] == "end"
    }
    runs: dict[str, list[Run]] = defaultdict(list)
    for start in entries:
        if start["event"] != "start":
            continue
        end = ends.get((start["id"], start["token"], start["pid"]), {})
        runs[start["id"]].append(
            Run(
                start["id"],
                start["type"],
                start["label"],
                start["token"],
                start["attempt"],
                start["pid"],
                start["node"],
                start["at"],
                end.get("at"),
                end.get("outcome"),
                end.get("held"),
            )
        )
    return runs


def events_of(log: Path) -> tuple[list[dict[str, Any]], list[str], int]:
    """Read a node's log: its events, the lines that are none, and how many were cut off.

    The kernel ends a write to a file between two of its pages if the process is killed just then. What was
    said until there stands before the next line, of somebody else.
    """
    events, others, cut = [], [], 0
    for line in log.read_text(errors="replace").splitlines():
        start = line.rfind(LINE_START)
        try:
            events.append(json.loads(line[max(start, 0) :]))
        except ValueError:
            others.append(line)
        else:
            cut += start > 0
    return events, others, cut


def check(state: State, clients: Clients, faults: Faults, ledger: Path, logs: Sequence[Path]) -> Findings:
    """Look at everything. To be called when nothing is open any more, and nobody is at work."""
    found = Findings()
    snapshot = state.snapshot()
    tasks = {
        name.removeprefix("task:"): value for name, (value, _) in snapshot.items() if name.startswith("task:")
    }
    bodies = {id: json.loads(body) for id in tasks if (body := state.body(id)) is not None}
    totals = {name: int(n) for name, n in snapshot.get("totals", ({}, False))[0].items()}
    runs = runs_of(ledger)
    events, others = [], []
    cut_off = 0
    for log in logs:
        these, lines, cut = events_of(log)
        cut_off += cut
        events += these
        others += [f"{log}: {line}" for line in lines]

    found.violations += _lost(tasks, clients)
    found.violations += _strangers(tasks, bodies, clients)
    labels = {one.id: one.plan for one in clients.accepted}
    for id, body in bodies.items():
        if body["label"] in clients.submitted:
            labels.setdefault(id, clients.submitted[body["label"]])
    for id, task in tasks.items():
        if id in labels:
            found.violations += _outcome(id, task, labels[id], runs.get(id, []), clients)
    for of_one in runs.values():
        found.violations += _overlaps(of_one, faults.kills, faults.stops)
    found.violations += _cancelled(tasks, runs, clients)
    found.violations += _sums(state, tasks, totals)
    found.violations += _logged(events, others)
    if cut_off > len(faults.kills):
        found.violations.append(f"{cut_off} lines in the logs were cut off, by {len(faults.kills)} kills")
    _count(found, clients, runs, totals, events)
    return found


def _lost(tasks: Mapping[str, Mapping[str, str]], clients: Clients) -> Iterator[str]:
    for one in clients.accepted:
        if one.id not in tasks:
            yield f"{one.id} (label {one.plan.label}, {one.plan.kind}) was accepted and is lost"
        elif not Status(tasks[one.id]["status"]).has_ended:
            yield f"{one.id} ({one.plan.kind}) has not ended: {tasks[one.id]}"


def _strangers(
    tasks: Mapping[str, object], bodies: Mapping[str, Mapping[str, Any]], clients: Clients
) -> Iterator[str]:
    """Nothing is stored that nobody submitted, and nothing twice for one key."""
    by_label: dict[int, set[str]] = defaultdict(set)
    for one in clients.accepted:
        by_label[one.plan.label].add(one.id)
    for id in tasks:
        if id in bodies:
            by_label[bodies[id]["label"]].add(id)
    for label, ids in by_label.items():
        if label not in clients.submitted:
            yield f"{ids}: label {label} was never submitted"
        elif len(ids) > 1:
            yield f"label {label} was submitted once and stored as {ids}"


def _outcome(
    id: str, task: Mapping[str, str], plan: Submission, runs: Sequence[Run], clients: Clients
) -> Iterator[str]:
    """It ended as its handler says, by the run that held it last."""
    status, token = Status(task["status"]), int(task.get("token", 0))
    error = json.loads(task["error"]) if status is Status.DEAD else {}
    name = f"{id} ({plan.kind}, label {plan.label})"
    latest = max((run.token for run in runs), default=0)
    match status:
        case Status.CANCELLED:
            if not any(one.id == id and one.word != "missing" for one in clients.cancels):
                yield f"{name} is cancelled, and nobody asked for that"
        case Status.SUCCEEDED:
            result = json.loads(task["result"])
            written = result["token"] if isinstance(result, dict) else None
            if written != token:
                yield f"{name}: the result is that of token {written}, its holder has {token}"
            if written is not None and latest > written:
                yield f"{name}: the result is that of token {written}, and {latest} has run later"
            if not any(run.token == written and run.outcome == "returned" for run in runs):
                yield f"{name}: no run returned its result"
            if plan.kind in NEVER_SUCCEED:
                yield f"{name} has succeeded"
            wanted = plan.payload.get("failures", 0) + 1
            if plan.kind != "late" and int(task["attempts"]) != wanted:
                yield f"{name} succeeded at attempt {task['attempts']} instead of {wanted}"
        case Status.DEAD:
            yield from _death(name, task, error, plan, runs)


def _death(
    name: str, task: Mapping[str, str], error: Mapping[str, Any], plan: Submission, runs: Sequence[Run]
) -> Iterator[str]:
    cut_short = sum(run.ended_at is None for run in runs)
    if error["type"] == "WorkerDied":
        if int(task["crashes"]) != MAX_CRASHES + 1:
            yield f"{name} died of {task['crashes']} crashes"
        # One crash may have come before the run could note its start.
        if cut_short < MAX_CRASHES:
            yield f"{name} died of crashes, and only {cut_short} of its runs were cut short"
    elif error["type"] == "LeaseLost":
        if len(runs) < 10:
            yield f"{name} died of lost leases, with {len(runs)} runs"
    elif plan.kind in FAILED_BY:
        if not error["type"].endswith(FAILED_BY[plan.kind]):
            yield f"{name} died of {error['type']}"
        limit = plan.options.get("max_attempts", 3)
        if plan.kind == "doomed" and int(task["attempts"]) != limit:
            yield f"{name} died after {task['attempts']} attempts instead of {limit}"
        if "token=" in error["message"] and f"token={task['token']}" not in error["message"]:
            yield f"{name}: the error is that of another run than that of token {task['token']}: {error}"
    elif plan.kind != "late":
        yield f"{name} is dead: {error['type']}: {error['message']}"


def _overlaps(runs: Sequence[Run], kills: Mapping[int, float], stops: Sequence[Stop]) -> Iterator[str]:
    """No run begins while another's worker is sure of the lease."""
    for first, second in combinations(sorted(runs, key=lambda run: run.started_at), 2):
        if first.token == second.token:
            yield f"{first.id} was started twice under token {first.token}"
        elif first.ended_at is None:
            died_at = kills.get(first.pid)
            was_stopped = any(
                stop.pid == first.pid and stop.since < second.started_at and stop.until > first.started_at
                for stop in stops
            )
            # A run's process was alive, its lease may have run out: that a keeper lost it is not known here,
            # so only what begins within the first half of a lease is surely wrong.
            is_within = bool(died_at) and second.started_at < (died_at or 0) - SLACK
            if is_within and not was_stopped and second.started_at - first.started_at < LEASE / 2:
                yield f"{first.id} began again while pid {first.pid} ran it, which was killed later"
        elif second.started_at < first.ended_at and first.is_held:
            yield (
                f"{first.id} ran twice at a time: token {first.token} held the lease until its end at "
                f"{first.ended_at:.3f}, token {second.token} began at {second.started_at:.3f}"
            )


def _cancelled(
    tasks: Mapping[str, Mapping[str, str]], runs: Mapping[str, Sequence[Run]], clients: Clients
) -> Iterator[str]:
    for one in clients.cancels:
        if one.word == "missing":
            yield f"{one.id} was accepted, and missing when it was to be cancelled"
        if one.word == "cancelled":
            if tasks.get(one.id, {}).get("status") != Status.CANCELLED:
                yield f"{one.id} was cancelled, and is {tasks.get(one.id, {}).get('status')}"
            if any(run.started_at > one.at for run in runs.get(one.id, [])):
                yield f"{one.id} was cancelled, and ran after that"


def _sums(state: State, tasks: Mapping[str, Mapping[str, str]], totals: Mapping[str, int]) -> Iterator[str]:
    try:
        state.assert_sums()
    except AssertionError as error:
        yield f"the sums do not add up: {error}"
    statuses = Counter(task["status"] for task in tasks.values())
    for name, wanted in (
        ("submitted", len(tasks)), ("completed", statuses["succeeded"]), ("cancelled", statuses["cancelled"]),
        ("removed", 0), ("corrupt", 0), ("strays", 0),
    ):  # fmt: skip
        if totals.get(name, 0) != wanted:
            yield f"the total of {name} is {totals.get(name, 0)} instead of {wanted}"


def _logged(events: Sequence[Mapping[str, Any]], others: Sequence[str]) -> Iterator[str]:
    """No outcome is logged twice, nothing was dropped, nobody raised."""
    succeeded = Counter(event["id"] for event in events if event.get("outcome") == "succeeded")
    for id, times in succeeded.items():
        if times > 1:
            yield f"{id}: {times} outcomes were logged as succeeded"
    for event in events:
        if event.get("event") == "dropped":
            yield f"a task was dropped: {event}"
    if others:
        yield f"{len(others)} lines in the logs are no events; the first: " + " | ".join(others[:8])


def _count(
    found: Findings,
    clients: Clients,
    runs: Mapping[str, Sequence[Run]],
    totals: Mapping[str, int],
    events: Sequence[Mapping[str, Any]],
) -> None:
    all_runs = [run for these in runs.values() for run in these]
    names = Counter(str(event.get("event")) for event in events)
    found.numbers.update(  # noughts are kept, unlike by |=
        {
            "tasks submitted": len(clients.submitted),
            "accepted": len({one.id for one in clients.accepted}),
            "unclear answers": len(clients.unclear),
            "runs": len(all_runs),
            "runs cut short": sum(run.ended_at is None for run in all_runs),
            "succeeded": totals.get("completed", 0),
            "cancelled": totals.get("cancelled", 0),
            "dead": totals.get("dead", 0),
            "retries": totals.get("retried", 0),
            "crashes": totals.get("crashes", 0),
            "leases expired": totals.get("expired", 0),
            "stale commits": names["commit_refused"],
            "Redis lost": names["redis_lost"],
            "lost": sum("is lost" in line for line in found.violations),
        }
    )
