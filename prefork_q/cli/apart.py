"""Imports handlers in a process of its own, for commands that print what they find: an import may print too,
leave threads and children, or end its process."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from prefork_q.errors import ConfigurationError
from prefork_q.ipc.fork import fork, set_parent_death_signal
from prefork_q.master.deaths import Exit


def apart(work: Callable[[], object]) -> Any:
    """Return what `work`, which imports the handlers, returned in a forked process, as JSON carries it.

    What is printed there goes to stderr, and nothing of it outlives the call but its children.

    Raises:
        ConfigurationError: it raised one, or the process ended meanwhile.
    """
    # A file, not a pipe: a child that the import leaves may hold it, and nobody waits for that.
    answer = os.memfd_create("answer")
    parent = os.getpid()

    def run() -> int:
        set_parent_death_signal(signal.SIGKILL)
        if os.getppid() != parent:
            return 0
        os.dup2(2, 1)
        try:
            said = {"done": work()}
        except ConfigurationError as error:
            said = {"wrong": str(error)}
        with open(answer, "w", encoding="utf-8", closefd=False) as file:
            json.dump(said, file)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        return 0

    with open(answer, encoding="utf-8") as file:
        # The program has one thread here; whoever calls it as a function may have more.
        pid = fork(run, keep_fds=(answer,), is_forced=True)
        try:
            status = os.waitpid(pid, 0)[1]
        except BaseException:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise
        file.seek(0)
        text = file.read()
    if status != 0 or not text:
        raise ConfigurationError(f"importing the handlers ended the process: {Exit.of(status)}")
    said = json.loads(text)
    if "wrong" in said:
        raise ConfigurationError(said["wrong"])
    return said["done"]
