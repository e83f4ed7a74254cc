"""Tasks and queues as the JSON that people and programs see: the API and the command line say the same."""

from __future__ import annotations

from typing import Any

from prefork_q.inspector import QueueCounts
from prefork_q.states import Status
from prefork_q.task import TaskRecord
from prefork_q.units import timestamp


def as_json(task: TaskRecord) -> dict[str, Any]:
    """Return a task as JSON's own types. What is not known yet is left out.

    `result` is there, null too, once the task has succeeded.
    """
    shown: dict[str, Any] = {
        "id": task.id,
        "type": task.type,
        "queue": task.queue,
        "status": task.status.value,
        "payload": task.payload,
        "attempts": task.attempts,
        "crashes": task.crashes,
        "losses": task.losses,
        "max_attempts": task.max_attempts,
        "created_at": timestamp(task.created_at),
    }
    for name, seconds in (
        ("started_at", task.started_at),
        ("finished_at", task.finished_at),
        ("run_at", task.run_at),
    ):
        if seconds is not None:
            shown[name] = timestamp(seconds)
    if task.timeout is not None:
        shown["timeout_s"] = task.timeout
    if task.status is Status.SUCCEEDED:
        shown["result"] = task.result
    if task.error is not None:
        shown["error"] = task.error
    if task.progress is not None:
        shown["progress"] = task.progress
    if task.is_cancel_requested and not task.status.has_ended:
        shown["cancel_requested"] = True
    return shown


def queue_as_json(queue: QueueCounts) -> dict[str, Any]:
    """Return a queue as JSON's own types; where nothing waits the age is 0."""
    return {
        "name": queue.name,
        "pending": queue.pending,
        "paused": queue.is_paused,
        "submitted_total": queue.submitted,
        "oldest_pending_age_s": queue.oldest_pending_age or 0.0,
    }
