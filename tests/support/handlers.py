"""Handlers that do what their payload says. Each notes its start and its end in the ledger.

Used as a target: `prefork-q run tests/support/handlers.py:app`. Seconds everywhere.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from prefork_q import App, Reject, Retry, RetryAfter, TaskContext

app = App()

LEDGER = "TEST_OF_PREFORK_Q_LEDGER"
"""The variable with the path of the ledger, see `tests.support.ledger`."""

SOON = Retry(base=0.05, factor=2, cap=1, jitter=0)
"""For handlers whose tests are not about delays."""

NO_CONTEXT = TaskContext()
"""A default for those that are submitted by other handlers: who submits does not give the context."""

KINDS: dict[str, type[BaseException]] = {
    kind.__name__: kind
    for kind in (
        ValueError,
        RuntimeError,
        KeyError,
        OSError,
        MemoryError,
        RecursionError,
        ZeroDivisionError,
        SystemExit,
        KeyboardInterrupt,
        GeneratorExit,
        TimeoutError,
    )
}


class Unprintable(Exception):
    """An exception whose own text cannot be made."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


KINDS["Unprintable"] = Unprintable


@contextmanager
def noted(ctx: TaskContext) -> Iterator[None]:
    """Note a run's start and end, however it ends."""
    entry = {
        "run": uuid.uuid4().hex,
        "id": ctx.id,
        "type": ctx.type,
        "attempt": ctx.attempt,
        "token": ctx.token,
        "pid": os.getpid(),
        "thread": threading.get_native_id(),
    }
    _write(entry | {"event": "start"})
    outcome = "returned"
    try:
        yield
    except BaseException as error:
        outcome = type(error).__name__
        raise
    finally:
        _write(entry | {"event": "end", "outcome": outcome})


def _write(entry: dict[str, Any]) -> None:
    path = os.environ.get(LEDGER)
    if not path:
        return
    line = json.dumps(entry | {"at": time.time()}).encode() + b"\n"
    # Opened each time, so that forks and the closing of descriptors do not matter; one write, so that lines
    # stay whole.
    ledger = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.write(ledger, line)
    finally:
        os.close(ledger)


@app.task("return", retry=SOON)
def return_(value: Any = None, ctx: TaskContext = NO_CONTEXT) -> Any:
    """Return `value`."""
    with noted(ctx):
        return value


@app.task("plain")
def plain(value: int = 0) -> int:
    """Return `value`, with no note in the ledger: as cheap as a handler can be."""
    return value


@app.task("return_unjsonable", retry=SOON)
def return_unjsonable(ctx: TaskContext) -> Any:
    """Return what JSON cannot say."""
    with noted(ctx):
        return object()


@app.task("return_large", retry=SOON)
def return_large(ctx: TaskContext, size: int) -> str:
    """Return a text of `size` bytes."""
    with noted(ctx):
        return "x" * size


@app.task("raise", retry=SOON)
def raise_(ctx: TaskContext, error: str = "ValueError", message: str = "as told", after: float = 0.0) -> None:
    """Raise the exception of that name, each time."""
    with noted(ctx):
        time.sleep(after)
        raise KINDS[error](message)


@app.task("raise_slowly", retry=Retry(base=0.4, factor=2, cap=60, jitter=0.2))
def raise_slowly(ctx: TaskContext, message: str = "as told") -> None:
    """Raise each time, with delays between the attempts that can be measured: 0.4, 0.8, 1.6 s ..."""
    with noted(ctx):
        raise RuntimeError(message)


@app.task("raise_never_retried", retry=Retry(base=0.05, never=(ZeroDivisionError,)))
def raise_never_retried(ctx: TaskContext) -> float:
    """Raise what its policy does not retry."""
    with noted(ctx):
        return 1 / 0


@app.task("flaky", max_attempts=10, retry=SOON)
def flaky(ctx: TaskContext, failures: int = 1, value: Any = None) -> Any:
    """Raise in the first `failures` attempts, then return `value`."""
    with noted(ctx):
        if ctx.attempt <= failures:
            raise RuntimeError(f"attempt {ctx.attempt} of {failures} that fail")
        return value


@app.task("retry_after", retry=SOON)
def retry_after(ctx: TaskContext, seconds: float, times: int = 1) -> int:
    """Ask to be run again after `seconds`, in the first `times` attempts; return the attempt."""
    with noted(ctx):
        if ctx.attempt <= times:
            raise RetryAfter(seconds)
        return ctx.attempt


@app.task("reject", retry=SOON)
def reject(ctx: TaskContext, reason: str = "as told") -> None:
    """Say that it can never succeed."""
    with noted(ctx):
        raise Reject(reason)


@app.task("sleep", retry=SOON)
def sleep(ctx: TaskContext, seconds: float) -> float:
    """Sleep and return `seconds`."""
    with noted(ctx):
        time.sleep(seconds)
        return seconds


@app.task("spin", retry=SOON)
def spin(ctx: TaskContext, seconds: float) -> int:
    """Burn CPU in Python."""
    with noted(ctx):
        turns, until = 0, time.monotonic() + seconds
        while time.monotonic() < until:
            turns += 1
        return turns


@app.task("hold_gil", retry=SOON)
def hold_gil(ctx: TaskContext, seconds: float) -> float:
    """Hold the GIL in C for the whole time: no other thread of the process runs Python meanwhile."""
    with noted(ctx):
        libc = ctypes.PyDLL(None)  # PyDLL, unlike CDLL, keeps the GIL over the call
        until = time.monotonic() + seconds
        while (rest := until - time.monotonic()) > 0:
            libc.usleep(min(int(rest * 1e6) + 1, 2_000_000_000))
        return seconds


@app.task("exit", retry=SOON)
def exit_(ctx: TaskContext, code: int = 1, after: float = 0.0) -> None:
    """End the process at once with that exit code, as os._exit does."""
    with noted(ctx):
        time.sleep(after)
        os._exit(code)


@app.task("die", retry=SOON)
def die(ctx: TaskContext, number: int = signal.SIGKILL, after: float = 0.0, times: int = 1_000_000) -> str:
    """Send the own process a signal, in the first `times` runs of the task."""
    with noted(ctx):
        if crashes_so_far(ctx.id) > times:
            return "survived"
        time.sleep(after)
        if number == signal.SIGABRT:
            os.abort()  # as C code does: the signal alone is ignored, see ipc/fork.py
        os.kill(os.getpid(), number)
        time.sleep(30)  # a signal that is handled or ignored does not end it
        return "ignored"


@app.task("segfault", retry=SOON)
def segfault(ctx: TaskContext) -> None:
    """Read address 0."""
    with noted(ctx):
        ctypes.string_at(0)


@app.task("leave_a_fault", retry=SOON)
def leave_a_fault(ctx: TaskContext) -> None:
    """Have another thread of the process hit by a fault, and return before that ends it."""
    with noted(ctx):
        os.kill(os.getpid(), signal.SIGSEGV)


@app.task("close_descriptors", retry=SOON)
def close_descriptors(ctx: TaskContext, first: int, last: int) -> None:
    """Close what is not ours, as a double close in native code may."""
    with noted(ctx):
        pass
    os.closerange(first, last + 1)


@app.task("eat", retry=SOON)
def eat(ctx: TaskContext, mebibytes: int, seconds: float = 0.0, keep: bool = False) -> int:
    """Take memory and touch it; with `keep` the process keeps it after the task."""
    with noted(ctx):
        eaten = bytearray(mebibytes << 20)
        eaten[::4096] = b"x" * len(eaten[::4096])
        if keep:
            KEPT.append(eaten)
        time.sleep(seconds)
        return len(eaten)


KEPT: list[bytearray] = []


@app.task("stubborn", retry=SOON)
def stubborn(ctx: TaskContext, seconds: float) -> int:
    """Go on for `seconds` whatever is raised in it, and return how often that was."""
    with noted(ctx):
        ignored, until = 0, time.monotonic() + seconds
        while time.monotonic() < until:
            try:
                time.sleep(0.01)
            except BaseException:  # on purpose: this is the handler that swallows everything
                ignored += 1
        return ignored


@app.task("watch_cancel", retry=SOON)
def watch_cancel(ctx: TaskContext, seconds: float) -> bool:
    """Work for `seconds`, or until it is cancelled, and return whether it was."""
    with noted(ctx):
        until = time.monotonic() + seconds
        while time.monotonic() < until and not ctx.cancelled:
            time.sleep(0.01)
        return ctx.cancelled


@app.task("watch_lease", retry=SOON)
def watch_lease(ctx: TaskContext, seconds: float) -> bool:
    """Work for `seconds`, or until its lease is lost, and return whether it still holds it."""
    with noted(ctx):
        until = time.monotonic() + seconds
        while time.monotonic() < until and ctx.lease_valid():
            time.sleep(0.01)
        return ctx.lease_valid()


@app.task("progress", retry=SOON)
def progress(ctx: TaskContext, steps: int = 4, seconds: float = 0.4) -> int:
    """Tell its progress in `steps` steps over `seconds`."""
    with noted(ctx):
        for step in range(1, steps + 1):
            time.sleep(seconds / steps)
            ctx.progress(step / steps, f"step {step}")
        return steps


@app.task("context", retry=SOON)
def context(ctx: TaskContext) -> dict[str, Any]:
    """Return what the context says."""
    with noted(ctx):
        return {
            "id": ctx.id,
            "type": ctx.type,
            "attempt": ctx.attempt,
            "max_attempts": ctx.max_attempts,
            "deadline": ctx.deadline,
            "token": ctx.token,
            "cancelled": ctx.cancelled,
            "lease_valid": ctx.lease_valid(),
            "pid": os.getpid(),
        }


@app.task("add")
def add(a: int, b: int = 1) -> int:
    """Return a + b: for payloads that fit and payloads that do not."""
    return a + b


@app.task("subprocess", retry=SOON)
def subprocess_(ctx: TaskContext, seconds: float = 30.0, is_orphaned: bool = False) -> int:
    """Start a process that sleeps; return its exit code or, with `is_orphaned`, leave it, return its pid."""
    with noted(ctx):
        child = subprocess.Popen([sys.executable, "-c", f"import time; time.sleep({seconds!r})"])
        return child.pid if is_orphaned else child.wait()


@app.task("fork", retry=SOON)
def fork(ctx: TaskContext) -> int:
    """Fork, and let the child return from the handler too: its return must not count."""
    with noted(ctx):
        pid = os.fork()
        if pid:
            os.waitpid(pid, 0)
        return pid


@app.task("token", retry=SOON)
def token(ctx: TaskContext, seconds: float = 0.0) -> int:
    """Sleep and return the token of its lease, so that a result tells whose it is."""
    with noted(ctx):
        time.sleep(seconds)
        return ctx.token


@app.task("parent", retry=SOON)
def parent(ctx: TaskContext, seconds: float) -> str:
    """Sleep, submit a child of its own under a key made of its id, and return the child's id."""
    with noted(ctx):
        time.sleep(seconds)
        return return_.options(idempotency_key=f"child of {ctx.id}".replace(" ", "-")).submit(value=ctx.id).id


@app.task("chain", retry=SOON)
def chain(due: float, every: float, left: int, ctx: TaskContext = NO_CONTEXT) -> int:
    """Submit the next of its kind for `every` seconds after this one was due, `left` times."""
    with noted(ctx):
        if left:
            chain.options(run_at=due + every).submit(due=due + every, every=every, left=left - 1)
        return left


def crashes_so_far(id: str) -> int:
    """How often the ledger has a start of task `id`, this one included."""
    with open(os.environ[LEDGER], encoding="utf-8") as ledger:
        return sum(1 for line in ledger if f'"id": "{id}"' in line and '"event": "start"' in line)


@app.task("terminate", retry=SOON)
def terminate(ctx: TaskContext) -> int:
    """Start a process that sleeps, terminate it, and return its exit code."""
    with noted(ctx):
        child = subprocess.Popen(["sleep", "30"])
        child.terminate()
        try:
            return child.wait(10)
        finally:
            child.kill()


@app.task("strike", retry=SOON)
def strike(ctx: TaskContext, seconds: float = 0.3, error: str = "SystemExit", itself: bool = False) -> int:
    """Set an exception in the other processors' threads, or in its own, again and again."""
    strikes, until = 0, time.monotonic() + seconds
    own = threading.get_ident()
    set_exception = ctypes.pythonapi.PyThreadState_SetAsyncExc
    kind = ctypes.py_object(KINDS[error])
    with noted(ctx):
        while time.monotonic() < until:
            for thread in threading.enumerate():
                if thread.name.startswith("processor-") and (thread.ident == own) is itself:
                    ident = thread.ident or 0
                    # An ident is used again. Not is_alive(), which must not be struck itself.
                    if threading._active.get(ident) is thread:  # type: ignore[attr-defined]
                        set_exception(ctypes.c_ulong(ident), kind)
                        strikes += 1
        return strikes


@app.task("guarded", retry=SOON)
def guarded(ctx: TaskContext, seconds: float) -> str:
    """Spin within `try: ... except Exception`, and return what was caught if anything was."""
    with noted(ctx):
        try:
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                pass
        except Exception as error:
            return type(error).__name__
        return "nothing"
