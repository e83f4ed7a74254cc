"""The last duty of the master: no process of its tree is left."""

from __future__ import annotations

import os
import time

import psutil


def end_leftovers(timeout: float) -> int:
    """Kill and wait for everything below this process, such as what handlers left running.

    Takes at most `timeout` seconds (a process in uninterruptible sleep cannot be ended). Returns how
    many there were.
    """
    deadline = time.monotonic() + timeout
    ended: set[int] = set()
    while True:
        left = psutil.Process().children(recursive=True)
        for process in left:
            ended.add(process.pid)
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        _reap()
        if not left or time.monotonic() >= deadline:
            return len(ended)
        time.sleep(0.005)


def _reap() -> None:
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                return
        except ChildProcessError:
            return
