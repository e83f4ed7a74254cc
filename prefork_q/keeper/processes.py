"""What the kernel says of other processes, through psutil."""

from __future__ import annotations

import psutil

STILL = frozenset({psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD})
"""States in which a process does nothing for its tasks. One that a debugger holds is not among them:
somebody is looking at that task, and it should not run elsewhere meanwhile."""


def does_run(pid: int) -> bool:
    """Whether there is such a process, neither stopped nor dead."""
    try:
        return psutil.Process(pid).status() not in STILL
    except psutil.NoSuchProcess:
        return False


def is_stopped(pid: int) -> bool:
    """Whether somebody stopped it with a signal (state T)."""
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_STOPPED)
    except psutil.Error:
        return False


def find(pid: int) -> psutil.Process | None:
    """Return the process, None if there is none. psutil remembers when it started, so what is done with
    the answer later never meets another process that was given the same id."""
    try:
        return psutil.Process(pid)
    except psutil.NoSuchProcess:
        return None


def has_ended(process: psutil.Process) -> bool:
    """Whether it is gone, or waits for its parent to notice."""
    try:
        return not process.is_running() or process.status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return True


def kill(process: psutil.Process) -> None:
    """End it with SIGKILL, if it still is the same."""
    try:
        process.kill()
    except psutil.NoSuchProcess:
        return


def resident_bytes(pid: int) -> int | None:
    """Return the resident memory, None if the process is gone."""
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return None


def proportional_bytes(pid: int) -> int | None:
    """Return the proportional share of memory; None if the process is gone or will not be looked into.

    The kernel walks all of its pages for this and holds the lock of its address space meanwhile.
    """
    try:
        return int(psutil.Process(pid).memory_full_info().pss)
    except psutil.Error:
        return None
