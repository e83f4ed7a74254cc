"""Why a task is not running: what can be told from Redis, and nothing that is guessed."""

from __future__ import annotations

from typing import NamedTuple

from prefork_q.inspector import Inspector, NodeInfo
from prefork_q.ipc.stats import MAX_QUEUES, MAX_TYPES
from prefork_q.states import Status
from prefork_q.task import TaskRecord
from prefork_q.units import timestamp

SEARCHED = 10_000
"""Entries of a pending list that are searched for the task, from the end that is claimed first."""


class Reason(NamedTuple):
    """A word for programs, and a sentence for people."""

    reason: str
    detail: str


def explain(task: TaskRecord, inspector: Inspector) -> list[Reason]:
    """Return the reasons, the decisive ones first.

    Raises:
        Unavailable: Redis cannot answer now.
    """
    match task.status:
        case Status.PROCESSING:
            return [
                Reason("processing", f"a worker holds it for attempt {task.attempts} of {task.max_attempts}")
            ]
        case Status.PENDING:
            return _of_pending(task, inspector)
        case Status.DELAYED:
            return [_of_delayed(task, inspector.counts().at), *_of_nodes(task, inspector.nodes())]
        case Status.DEAD:
            return [Reason("dead", f"it is dead after {_history(task)}; the last error: {_error(task)}")]
        case _:
            ended = f" at {timestamp(task.finished_at)}" if task.finished_at else ""
            return [Reason(task.status.value, f"it has ended{ended}")]


def is_unknown(type: str, nodes: list[NodeInfo]) -> bool:
    """Whether there are live workers, and none of them knows the type."""
    live = [node for node in nodes if node.ready]
    return bool(live) and not any(_may_have(type, node.types, MAX_TYPES) for node in live)


def _of_pending(task: TaskRecord, inspector: Inspector) -> list[Reason]:
    reasons = []
    if any(queue.name == task.queue and queue.is_paused for queue in inspector.counts().queues):
        reasons.append(Reason("paused", f"queue {task.queue} is paused"))
    reasons += _of_nodes(task, inspector.nodes())
    ahead = inspector.ahead(task.id, task.queue, SEARCHED)
    if ahead is None:
        reasons.append(Reason("behind", f"at least {SEARCHED:,} tasks are before it in queue {task.queue}"))
    elif ahead:
        are = "task is" if ahead == 1 else "tasks are"
        reasons.append(Reason("behind", f"{ahead:,} {are} before it in queue {task.queue}"))
    elif not reasons:
        reasons.append(Reason("next", f"it is the next of queue {task.queue}, as soon as a worker has room"))
    return reasons


def _history(task: TaskRecord) -> str:
    return f"{task.attempts} of {task.max_attempts} attempts and {task.crashes} crashes"


def _error(task: TaskRecord) -> str:
    return f"{task.error.get('type')}: {task.error.get('message')}" if task.error else "not known"


def _of_delayed(task: TaskRecord, now: float) -> Reason:
    if task.run_at is None:
        return Reason("delayed", "it is delayed")
    due = timestamp(task.run_at)
    left = task.run_at - now
    text = f"delayed until {due}, {left:.1f} s from now" if left > 0 else f"due since {due}"
    if task.attempts:
        text += f", after attempt {task.attempts} of {task.max_attempts} failed"
    return Reason("delayed", text)


def _of_nodes(task: TaskRecord, nodes: list[NodeInfo]) -> list[Reason]:
    live = [node for node in nodes if node.ready]
    if not live:
        return [Reason("no_worker", "no node has told of a ready worker")]
    reasons = []
    if not any(_may_have(task.queue, node.queues, MAX_QUEUES) for node in live):
        reasons.append(Reason("no_worker_for_queue", f"no live worker works on queue {task.queue}"))
    if is_unknown(task.type, live):
        reasons.append(Reason("unknown_type", f"no live worker knows the type {task.type}"))
    if reasons:
        return reasons
    able = [node for node in live if _may_run(task, node)]
    if not able:
        detail = f"no live worker that knows the type {task.type} works on queue {task.queue}"
        return [Reason("no_worker_for_queue", detail)]
    if all(node.is_quiet for node in able):
        names = ", ".join(node.name for node in able)
        return [Reason("quiet", f"every node that could run it is quiet, until `ctl resume` there: {names}")]
    return []


def _may_run(task: TaskRecord, node: NodeInfo) -> bool:
    return _may_have(task.queue, node.queues, MAX_QUEUES) and _may_have(task.type, node.types, MAX_TYPES)


def _may_have(name: str, told: tuple[str, ...], most: int) -> bool:
    """Whether a node has this name among those that it told, or more than it could tell."""
    return name in told or len(told) >= most - 1
