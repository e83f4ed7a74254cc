"""Finding the processes that tests started and left.

A process is a test's if it carries the run's mark in its environment, or belongs to a session that a test
opened (prefork-q's processes write their titles over their environment, and stay in their master's
session), or descends from the test process.
"""

from __future__ import annotations

import contextlib
import os
import signal
import uuid
from pathlib import Path

import psutil

VARIABLE = "TEST_OF_PREFORK_Q_RUN"
"""Not PREFORK_Q_..., which a node would take for a misspelt option."""

_sessions: set[int] = set()


def mark(name: str) -> str:
    """Mark all processes that this one starts from now on; return the mark."""
    value = f"{uuid.uuid4()}-{name}"
    os.environ[VARIABLE] = value
    return value


def watch_session(leader: int) -> None:
    """Count every process of the session that `leader` leads as a test's."""
    _sessions.add(leader)


def left_behind(value: str) -> list[psutil.Process]:
    """Return the tests' processes that still run; zombies do not."""
    wanted = f"{VARIABLE}={value}".encode()
    found = set(psutil.Process().children(recursive=True))
    for process in psutil.process_iter():
        if process.pid != os.getpid() and _is_ours(process.pid, wanted):
            found.add(process)
    return sorted((process for process in found if _runs(process)), key=lambda process: process.pid)


def session(leader: int) -> list[psutil.Process]:
    """Return the processes of a session that still run; zombies do not."""
    return [
        process for process in psutil.process_iter() if _session(process.pid) == leader and _runs(process)
    ]


def end(processes: list[psutil.Process]) -> None:
    """Kill them."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGKILL)
    psutil.wait_procs(processes, timeout=5)


def describe(process: psutil.Process) -> str:
    """A line on one process, for a message."""
    try:
        with process.oneshot():
            command = " ".join(process.cmdline())[:200]
            return f"pid {process.pid}, parent {process.ppid()}, {process.status()}: {command}"
    except psutil.NoSuchProcess:
        return f"pid {process.pid}: gone by now"


def _is_ours(pid: int, wanted: bytes) -> bool:
    if _session(pid) in _sessions:
        return True
    try:
        return wanted in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:  # it ended, or is another user's
        return False


def _session(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return None


def _runs(process: psutil.Process) -> bool:
    try:
        return process.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return False
