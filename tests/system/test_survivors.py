"""Who goes on when others die: the other workers, the master, and the node once what ails it is mended."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.support.ledger import Ledger
from tests.support.node import Node
from tests.support.until import until

StartNode = Callable[..., Node]

SLACK = 1.0
"""Seconds for a busy machine."""

CODE = """
import os
from prefork_q import App
app = App()
@app.task("pid")
def pid() -> int:
    return os.getpid()
"""


def test_when_one_worker_of_four_is_killed_the_others_work_on(
    start_embedded: StartNode, ledger: Ledger
) -> None:
    node = start_embedded(workers=4)
    before = node.pids()
    ids = node.submit_many("sleep", [{"seconds": 3.0}] * 4, max_attempts=1)
    until(lambda: len(ledger.running()) == 4, 10, "work in all of them")

    (killed,) = before["worker:2"]
    os.kill(killed, signal.SIGKILL)
    dead = node.wait_event("exited", worker=2)
    node.wait_event("ready", worker=2, count=2, timeout=1 + SLACK)

    assert dead["pid"] == killed
    tasks = [node.ended(id) for id in ids]
    assert {(task["status"], task["attempts"]) for task in tasks} == {("succeeded", 1)}
    assert sorted(task["crashes"] for task in tasks) == [0, 0, 0, 1]
    assert len(ledger.runs()) == 5
    after = node.pids()
    assert [after[f"worker:{n}"] for n in (0, 1, 3)] == [before[f"worker:{n}"] for n in (0, 1, 3)]
    assert node.exit_code is None
    assert node.stop() == 0


def test_code_that_cannot_be_imported_any_more_is_tried_ever_more_slowly_and_found_when_mended(
    start_embedded: StartNode, tmp_path: Path
) -> None:
    target = tmp_path / "own.py"
    target.write_text(CODE)
    node = start_embedded(workers=2, target=f"{target}:app", preload="off")
    size = node.log_path.stat().st_size
    target.write_text(CODE + "raise RuntimeError('a line too many')\n")
    began = time.monotonic()

    node.kill("worker")

    def deaths() -> int:
        return len([event for event in node.events("exited") if "worker" in event])

    until(lambda: deaths() >= 2 + 2 * 2, 30, "two trials of each")
    time.sleep(max(0.0, began + 5 - time.monotonic()))
    # At once, after half a second, one, two, four: in 30 s a worker is tried seven times.
    seconds, tried = time.monotonic() - began, deaths()
    assert tried <= 2 + 2 * sum(at <= seconds for at in (0.0, 0.5, 1.5, 3.5, 7.5, 15.5)), (seconds, tried)
    assert node.log_path.stat().st_size - size < 20_000
    assert node.log().count("raise RuntimeError") == 1
    check = node.cli("ctl", "status", "--check")
    assert check.returncode == 1
    assert "0 of 2 ready" in check.stdout
    assert "a line too many" in check.stdout
    assert node.http("GET", "/readyz").status == 503

    target.write_text(CODE)
    until(lambda: not node.status()["degraded"], 15, "a node that is well")
    assert node.ended(node.submit("pid"))["result"] in node.pids()["worker"]
    assert time.monotonic() - began < 30
    assert node.stop() == 0


ORPHANS = """
import os, time
from prefork_q import App
app = App()
@app.task("leave", max_attempts=1)
def leave() -> int:
    # A daemon as it is made since ever: the middle one ends, the inner one is nobody's.
    middle = os.fork()
    if middle == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(1)
        os._exit(0)
    os.waitpid(middle, 0)
    return os.getpid()
"""


@pytest.fixture
def namespaced(tmp_path: Path, start_embedded: StartNode) -> Iterator[tuple[Node, psutil.Process]]:
    """A node whose master is process 1, as in a container, and that master as it is seen from here."""
    target = tmp_path / "own.py"
    target.write_text(ORPHANS)
    words = ["unshare", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"])]
    words += ["--pid", "--fork", "--mount-proc", "--kill-child"]
    if os.system(" ".join([*words, "true"])) != 0:
        pytest.skip("no namespace of processes can be made here")
    node = start_embedded(workers=3, target=f"{target}:app", prefix=words)
    (master,) = psutil.Process(node.pid).children()
    yield node, master
    if master.is_running():
        master.kill()


def test_as_process_one_the_master_buries_everybody(namespaced: tuple[Node, psutil.Process]) -> None:
    node, master = namespaced

    def is_worker(process: psutil.Process) -> bool:
        try:
            return "prefork-q: worker" in " ".join(process.cmdline())
        except psutil.NoSuchProcess:  # or just dead
            return False

    def is_zombie(process: psutil.Process) -> bool:
        try:
            return process.status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:  # buried meanwhile
            return False

    def workers() -> list[psutil.Process]:
        return [one for one in master.children() if is_worker(one)]

    def zombies() -> list[int]:
        return [one.pid for one in master.children(recursive=True) if is_zombie(one)]

    assert node.status()["pid"] == 1
    ids = node.submit_many("leave", [{}] * 6)
    for turn in range(8):
        found = until(lambda: len(workers()) == 3 and workers(), 20, "three workers")
        for one in found or []:
            one.kill()
        until(lambda gone=found: not any(one.is_running() for one in gone), 5, "their burial")  # type: ignore[misc]
        # The back-off is for those that die before they are ready.
        until(lambda: node.status()["workers"][0]["state"] == "ready", 20, f"heirs, the {turn}. time")
    assert all(node.ended(id)["status"] in ("succeeded", "dead") for id in ids)
    ids = node.submit_many("leave", [{}] * 6)
    assert all(node.ended(id)["status"] == "succeeded" for id in ids)

    # Whoever has just ended is a zombie until the master's next turn.
    until(lambda: (len(master.children(recursive=True)), zombies()) == (7, []), 5, "a burial of all orphans")
    assert node.status()["degraded"] == []
    master.send_signal(signal.SIGTERM)
    assert node.wait(10) == 0


def test_as_process_one_the_master_dies_of_its_watchdog_too(namespaced: tuple[Node, psutil.Process]) -> None:
    node, master = namespaced

    master.send_signal(signal.SIGABRT)

    until(lambda: not master.is_running() or master.status() == psutil.STATUS_ZOMBIE, 10, "its end")
    assert len(node.events("aborted")) == 1
