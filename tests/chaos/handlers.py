"""What the fault suite lets workers do. Each run notes its start and its end in the ledger; what a run
returns or raises names its token, so that it can be checked whose outcome was stored.

The nodes find `tests` through PYTHONPATH. Seconds everywhere.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from prefork_q import App, Reject, Retry, TaskContext

app = App()

LEDGER = "TEST_OF_PREFORK_Q_LEDGER"
NODE = "TEST_OF_PREFORK_Q_NODE"
SOON = Retry(base=0.1, factor=2, cap=1, jitter=0.2)


class Told(Exception):
    """Raised by a handler that was told to fail."""


@contextmanager
def noted(ctx: TaskContext, label: int) -> Iterator[None]:
    entry: dict[str, Any] = {
        "id": ctx.id, "type": ctx.type, "label": label, "token": ctx.token, "attempt": ctx.attempt,
        "pid": os.getpid(), "node": os.environ.get(NODE, ""),
    }  # fmt: skip
    write(entry | {"event": "start", "at": time.time()})
    outcome = "returned"
    try:
        yield
    except BaseException as error:
        outcome = type(error).__name__
        raise
    finally:
        # Asked after the clock: who held the lease when asked held it at `at`.
        at = time.time()
        write(entry | {"event": "end", "at": at, "outcome": outcome, "held": ctx.lease_valid()})


def write(entry: dict[str, Any]) -> None:
    """One line, one write, so that lines of several processes stay whole."""
    ledger = os.open(os.environ[LEDGER], os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.write(ledger, json.dumps(entry).encode() + b"\n")
    finally:
        os.close(ledger)


def starts_so_far(id: str) -> int:
    """How often the task was started, this time included."""
    with open(os.environ[LEDGER], encoding="utf-8") as ledger:
        return sum(f'"id": "{id}"' in line and '"event": "start"' in line for line in ledger)


@app.task("echo", max_attempts=3, retry=SOON)
def echo(ctx: TaskContext, label: int) -> dict[str, int]:
    with noted(ctx, label):
        return {"token": ctx.token}


@app.task("sleep", max_attempts=3, retry=SOON)
def sleep(ctx: TaskContext, label: int, seconds: float) -> dict[str, int]:
    with noted(ctx, label):
        time.sleep(seconds)
        return {"token": ctx.token}


@app.task("spin", max_attempts=3, retry=SOON)
def spin(ctx: TaskContext, label: int, seconds: float) -> dict[str, int]:
    with noted(ctx, label):
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            pass
        return {"token": ctx.token}


@app.task("hold_gil", max_attempts=3, retry=SOON)
def hold_gil(ctx: TaskContext, label: int, seconds: float) -> dict[str, int]:
    with noted(ctx, label):
        ctypes.PyDLL(None).usleep(int(seconds * 1e6))
        return {"token": ctx.token}


@app.task("progress", max_attempts=3, retry=SOON)
def progress(ctx: TaskContext, label: int, seconds: float) -> dict[str, int]:
    with noted(ctx, label):
        for step in range(5):
            time.sleep(seconds / 5)
            ctx.progress((step + 1) / 5, "on its way")
        return {"token": ctx.token}


@app.task("flaky", max_attempts=5, retry=SOON)
def flaky(ctx: TaskContext, label: int, failures: int) -> dict[str, int]:
    with noted(ctx, label):
        if ctx.attempt <= failures:
            raise Told(f"token={ctx.token} attempt {ctx.attempt}")
        return {"token": ctx.token}


@app.task("doomed", max_attempts=2, retry=SOON)
def doomed(ctx: TaskContext, label: int) -> None:
    with noted(ctx, label):
        raise Told(f"token={ctx.token}")


@app.task("reject", max_attempts=3, retry=SOON)
def reject(ctx: TaskContext, label: int) -> None:
    with noted(ctx, label):
        raise Reject(f"token={ctx.token}")


@app.task("unstorable", max_attempts=3, retry=SOON)
def unstorable(ctx: TaskContext, label: int) -> Any:
    with noted(ctx, label):
        return float("nan")


@app.task("late", max_attempts=2, retry=SOON)
def late(ctx: TaskContext, label: int, seconds: float) -> dict[str, int]:
    """Run over its time limit, which comes with the submission."""
    with noted(ctx, label):
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            time.sleep(0.01)
        return {"token": ctx.token}


@app.task("crash_once", max_attempts=3, retry=SOON)
def crash_once(ctx: TaskContext, label: int) -> dict[str, int]:
    with noted(ctx, label):
        if starts_so_far(ctx.id) == 1:
            os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(30)
        return {"token": ctx.token}


@app.task("poison", max_attempts=3, retry=SOON)
def poison(ctx: TaskContext, label: int, number: int) -> None:
    with noted(ctx, label):
        if number:
            os.kill(os.getpid(), number)
            time.sleep(30)
        os._exit(3)
