"""The master is killed: its keeper outlives the workers and gives back what they leave."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from prefork_q.keys import Keys
from tests.support import leaks
from tests.support.server import Server
from tests.support.stage import Stage
from tests.support.until import until

LEASE, DRAIN = 1.5, 3.0


@dataclass
class Orphans:
    """What a stand-in for the master made."""

    master: subprocess.Popen[str]
    keeper: int
    leaver: int
    stayer: int
    leavers_task: str
    stayers_task: str
    pidfds: dict[int, int]

    def has_ended(self, pid: int, timeout: float = 0.0) -> bool:
        poller = select.poll()
        poller.register(self.pidfds[pid], select.POLLIN)
        return bool(poller.poll(timeout * 1000))


@pytest.fixture
def stage(server: Server, keys: Keys, tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(server.url, keys, tmp_path, lease=LEASE)
    yield stage
    stage.close()


@pytest.fixture
def orphans(stage: Stage, tmp_path: Path) -> Iterator[Orphans]:
    command = ["keeper", stage.url, stage.keys.namespace, str(LEASE), str(DRAIN), str(tmp_path)]
    master = subprocess.Popen(
        [sys.executable, "-m", "tests.support.standin", *command],
        stdout=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    leaks.watch_session(master.pid)
    assert master.stdout
    facts: dict[str, Any] = json.loads(master.stdout.readline())
    pids = [facts["keeper"], *facts["workers"]]
    pidfds = {pid: os.pidfd_open(pid) for pid in pids}
    yield Orphans(master, *pids, *facts["ids"], pidfds)
    for pidfd in pidfds.values():
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        os.close(pidfd)
    master.kill()
    master.communicate(timeout=10)


def test_the_keeper_renews_kills_in_time_hands_back_and_exits_last(stage: Stage, orphans: Orphans) -> None:
    assert stage.status(orphans.stayers_task) == "processing"
    began = time.monotonic()
    orphans.master.kill()

    # Who leaves is handed back at once; who stays keeps its lease, which is shorter than the drain.
    until(lambda: stage.status(orphans.leavers_task) == "pending", timeout=1.5)
    assert not orphans.has_ended(orphans.stayer)
    until(lambda: time.monotonic() - began > LEASE + 0.5)
    assert stage.status(orphans.stayers_task) == "processing"
    assert stage.lease_left(orphans.stayers_task.encode()) > 0

    assert orphans.has_ended(orphans.stayer, timeout=DRAIN)
    assert not orphans.has_ended(orphans.keeper) or stage.status(orphans.stayers_task) == "pending"
    assert orphans.has_ended(orphans.keeper, timeout=2.0)
    assert DRAIN < time.monotonic() - began < DRAIN + 1.5
    assert stage.status(orphans.stayers_task) == "pending"
    assert stage.task(orphans.stayers_task).attempts == 0
    assert stage.task(orphans.stayers_task).crashes == 0
    assert [line["worker"] for line in stage.said("worker_killed")] == [1]


def test_signals_to_the_group_do_not_end_the_keeper(stage: Stage, orphans: Orphans) -> None:
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGTSTP):
        os.kill(orphans.keeper, number)

    assert not orphans.has_ended(orphans.keeper, timeout=0.5)
    stage.submit(delay=0.1)
    until(lambda: stage.inspector.counts().pending == 1)
