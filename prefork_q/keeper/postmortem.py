"""The errors of tasks that ended with their worker: what is kept of its death. Pure."""

from __future__ import annotations

from typing import NamedTuple

import orjson

from prefork_q.ipc.messages import DeathNotice, TimedOut


class PostMortem(NamedTuple):
    """`text`: `{type, message, traceback, cause}` as JSON."""

    type: str
    message: str
    text: bytes


def of_crash(notice: DeathNotice) -> PostMortem:
    """Return the error of a task whose worker died under it."""
    message = f"its worker died while it ran this task: {notice.cause}"
    return _told("WorkerDied", message, notice, is_timed_out=False, stack=notice.stack)


def of_time_limit(notice: DeathNotice, entry: TimedOut) -> PostMortem:
    """Return the error of a task whose worker was killed for it."""
    message = f"its process was killed at its hard time limit, after {entry.limit:g} s (grace included)"
    return _told("TaskTimeout", message, notice, is_timed_out=True, stack=entry.stack)


def _told(type: str, message: str, notice: DeathNotice, *, is_timed_out: bool, stack: str) -> PostMortem:
    cause: dict[str, object] = {
        "signal": notice.signal,
        "exit_code": notice.exit_code,
        "timed_out": is_timed_out,
    }
    if notice.peak_rss_bytes:
        cause["peak_rss_bytes"] = notice.peak_rss_bytes
    if notice.oom_killed:
        cause["oom_killed"] = True
    if stack:
        cause["stack"] = stack
    error = {"type": type, "message": message, "traceback": "", "cause": cause}
    return PostMortem(type, message, orjson.dumps(error))
