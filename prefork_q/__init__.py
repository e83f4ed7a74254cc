"""prefork-q: a task queue on Redis with prefork workers.

Write handlers with `App`, submit tasks with them or with `Client`; README.md begins with an example.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prefork_q.app import App
    from prefork_q.client import Client, Task
    from prefork_q.config import Config
    from prefork_q.context import TaskContext
    from prefork_q.errors import (
        ConfigurationError,
        Conflict,
        IdempotencyConflict,
        Invalid,
        InvalidPayload,
        NotFound,
        PreforkQError,
        Reject,
        RetryAfter,
        TaskFailed,
        TaskTimeout,
        TooLarge,
        Unavailable,
    )
    from prefork_q.retry import Retry
    from prefork_q.submission import NewTask
    from prefork_q.task import TaskRecord

__all__ = [
    "App",
    "Client",
    "Config",
    "ConfigurationError",
    "Conflict",
    "IdempotencyConflict",
    "Invalid",
    "InvalidPayload",
    "NewTask",
    "NotFound",
    "PreforkQError",
    "Reject",
    "Retry",
    "RetryAfter",
    "Task",
    "TaskContext",
    "TaskFailed",
    "TaskRecord",
    "TaskTimeout",
    "TooLarge",
    "Unavailable",
]

_ELSEWHERE = {
    "App": "app",
    "Client": "client",
    "Config": "config",
    "NewTask": "submission",
    "Retry": "retry",
    "Task": "client",
    "TaskContext": "context",
    "TaskRecord": "task",
}
"""The modules of the public names that do not stand in `errors`."""


def __getattr__(name: str) -> object:
    # On first use: importing one part of the package must not bring along another's libraries.
    # The master runs without a Redis client because of this.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(import_module(f"{__name__}.{_ELSEWHERE.get(name, 'errors')}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
