"""Stand-ins for the master, as programs of their own, to be killed by tests. They say what they made as a
line of JSON, and then wait.

    python -m tests.support.standin store STATE_DIR
    python -m tests.support.standin keeper URL NAMESPACE LEASE DRAIN_TIMEOUT FOLDER
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from prefork_q.errors import ConfigurationError
from prefork_q.events import Events, Sink
from prefork_q.folder import acquire_state_folder
from prefork_q.ipc.birth import Birth
from prefork_q.ipc.channel import Channel
from prefork_q.ipc.fork import fork
from prefork_q.ipc.messages import Go, Hello
from prefork_q.ipc.scoreboard import Scoreboard, boot_time
from prefork_q.keeper import KeeperSettings, run_keeper
from prefork_q.keys import Keys
from prefork_q.store import StoreSettings, find_server, run_store
from tests.support.stage import Stage


def born(
    role: str, board: Scoreboard, entry: Callable[[Birth], int], keep: tuple[int, ...] = ()
) -> tuple[int, Channel]:
    """Make a child as the master does; return its pid and our end of its channel."""
    ours, its = Channel.pair()
    birth = Birth(role, 0, f"standin.{role}.0", 1, os.getpid(), its, board)
    pid = fork(lambda: entry(birth), keep_fds=(its.fileno(), *keep))
    its.close()
    assert ours.wait(10) == Hello(pid)
    ours.send(Go())
    return pid, ours


def say(**facts: object) -> None:
    print(json.dumps(facts), flush=True)


def wait_for_the_end() -> None:
    while True:
        time.sleep(3600)


def store(state_dir: Path) -> None:
    folder = acquire_state_folder(state_dir)
    settings = StoreSettings(find_server(), state_dir)
    pid, channel = born("store", Scoreboard(1, 1, 1), lambda birth: run_store(birth, settings))
    say(store=pid, lock=folder.descriptor, channel=channel.fileno())
    wait_for_the_end()


def keeper(url: str, namespace: str, lease: float, drain_timeout: float, folder: Path) -> None:
    """A keeper, and two workers that hold a task each: one leaves when the master is gone, one never."""
    stage = Stage(url, Keys(namespace), folder, lease=lease)
    settings = KeeperSettings(url, "standin", namespace, lease=lease, drain_timeout=drain_timeout)
    events = Events(Sink.file(stage.log), format="json", level="debug", process={})
    keeper_pid, its_channel = born(
        "keeper", stage.board, lambda birth: run_keeper(birth, settings, events), (events.sink.fileno(),)
    )
    ids = stage.submit(2)
    workers, channels = [], [its_channel]
    for number, child in enumerate((leave_with_the_master, never_leave)):
        pid, its_channel = born("worker", stage.board, child)
        channels.append(its_channel)
        workers.append(pid)
        slot = stage.board.worker(number)
        slot.open(f"standin.worker.{number}", 1)
        slot.pid, slot.is_alive, slot.state = pid, True, "ready"
        slot.beat(boot_time())
        stage.run(slot, stage.claim(slot)[0])
    say(keeper=keeper_pid, workers=workers, ids=ids, channels=[channel.fileno() for channel in channels])
    wait_for_the_end()


def leave_with_the_master(birth: Birth) -> int:
    birth.introduce(parent_death_signal=signal.SIGKILL)
    while True:
        time.sleep(3600)


def never_leave(birth: Birth) -> int:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    birth.introduce(parent_death_signal=None)
    while True:
        time.sleep(3600)


if __name__ == "__main__":
    try:
        match sys.argv[1:]:
            case ["store", state_dir]:
                store(Path(state_dir))
            case ["keeper", url, namespace, lease, drain_timeout, folder]:
                keeper(url, namespace, float(lease), float(drain_timeout), Path(folder))
    except ConfigurationError as error:
        sys.exit(f"refused: {error}")
