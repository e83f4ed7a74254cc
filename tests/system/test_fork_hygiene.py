"""What a forked process must not share with another, and what it must be from its first moment."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from itertools import combinations
from pathlib import Path

import psutil
import pytest

from tests.support.node import Node
from tests.support.until import until

pytestmark = pytest.mark.either_server

StartNode = Callable[..., Node]

HANDLERS = """
import ctypes, os, random, secrets, threading, time, uuid
from prefork_q import App, TaskContext
app = App()
libc = ctypes.CDLL(None)
death_signal = ctypes.c_int()
@app.on_worker_start
def look():
    # It is the main thread's; the kernel has one for each.
    libc.prctl(2, ctypes.byref(death_signal), 0, 0, 0)
@app.task("self")
def self_(ctx: TaskContext, seconds: float = 0.3) -> dict:
    time.sleep(seconds)
    return {
        "pid": os.getpid(), "parent": os.getppid(), "random": random.random(), "uuid": str(uuid.uuid4()),
        "secret": secrets.token_hex(8), "token": ctx.token, "death_signal": death_signal.value,
        "threads": sorted(thread.name for thread in threading.enumerate()),
    }
"""


@pytest.fixture
def target(tmp_path: Path) -> Path:
    path = tmp_path / "own.py"
    path.write_text(HANDLERS)
    return path


def descriptors(pid: int) -> dict[int, str]:
    """What each open descriptor of a process is."""
    found = {}
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            found[int(fd)] = os.readlink(f"/proc/{pid}/fd/{fd}")
        except FileNotFoundError:
            continue
    return found


def own(pid: int) -> set[str]:
    """Sockets, pipes and other things without a name that a process has open, standard streams aside."""
    return {what for fd, what in descriptors(pid).items() if fd > 2 and what.startswith(("socket:", "pipe:"))}


def threads(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/task"))


def test_workers_share_no_random_state_and_no_token(start_node: StartNode, target: Path) -> None:
    node = start_node(workers=4, target=f"{target}:app", preload="on")
    results = [node.ended(id)["result"] for id in node.submit_many("self", [{}] * 12)]

    assert len({result["pid"] for result in results}) == 4
    for name in ("random", "uuid", "secret"):
        assert len({result[name] for result in results}) == 12, name
    assert len({(result["token"], result["pid"]) for result in results}) == len(
        {result["token"] for result in results}
    )
    ids = [node.submit("self", {"seconds": 0}) for _ in range(20)]
    assert len(set(ids)) == 20


def test_workers_are_the_masters_children_and_end_with_it(start_node: StartNode, target: Path) -> None:
    node = start_node(workers=2, target=f"{target}:app")

    result = node.ended(node.submit("self"))["result"]

    assert result["parent"] == node.pid
    assert result["death_signal"] == signal.SIGTERM
    assert result["threads"] == ["MainThread", "processor-0"]


def test_processes_have_no_descriptor_of_a_sibling(start_node: StartNode, tmp_path: Path) -> None:
    node = start_node(workers=3, api_processes=2, log_file=tmp_path / "own.log")
    node.kill("worker:1")
    until(lambda: not node.status()["degraded"], 10, "a node that is well again")
    pids = node.pids()
    everybody = [*pids["worker"], *pids["keeper"], *pids["api"], *pids["template"], node.pid]
    # A connection may be opened or closed while this looks.
    shared: list[tuple[int, int, set[str]]] = []
    for one, other in combinations(everybody, 2):
        common = own(one) & own(other)
        if common:
            shared.append((one, other, common))

    listeners = own(pids["api"][0]) & own(pids["api"][1])
    assert len(listeners) == 1, "both api processes have the one listening socket"
    for one, other, common in shared:
        assert {one, other} <= {*pids["api"], node.pid}, (one, other, common)
        assert common == listeners
    for pid in pids["worker"]:
        files = [what for fd, what in descriptors(pid).items() if fd > 2 and "memfd:stacks" in what]
        assert len(files) == 1
    assert not any("memfd" in what for what in descriptors(pids["template"][0]).values())
    # The master has one for each worker that lives, and none of who is dead.
    assert sum("memfd:stacks" in what for what in descriptors(node.pid).values()) == 3


def test_the_api_shares_what_the_handlers_have_made_and_has_one_of_its_own_without_preloading(
    start_node: StartNode, target: Path
) -> None:
    target.write_text(HANDLERS + "GRAPH = [{'n': n, 'name': f'entry {n}'} for n in range(200_000)]\n")
    own_bytes = {}
    for preload in ("on", "off"):
        node = start_node(workers=1, target=f"{target}:app", preload=preload)
        assert node.http("GET", "/openapi.json").status == 200
        own_bytes[preload] = psutil.Process(node.pids()["api"][0]).memory_full_info().uss
        assert node.stop() == 0

    # About 60 MB, whose smaller part two processes have touched before they were forked apart.
    assert own_bytes["off"] - own_bytes["on"] > 40_000_000


def test_who_forks_has_one_thread(start_node: StartNode) -> None:
    node = start_node(workers=2)
    node.ended(node.submit("return"))
    assert threads(node.pid) == 1
    assert threads(node.pids()["template"][0]) == 1


def test_an_import_that_leaves_a_thread_is_told_once_by_name_and_workers_import_themselves(
    start_node: StartNode, target: Path
) -> None:
    target.write_text(
        HANDLERS + "threading.Thread(target=time.sleep, args=(1000,), name='exporter', daemon=True).start()\n"
    )
    node = start_node(workers=3, target=f"{target}:app")

    results = [node.ended(id)["result"] for id in node.submit_many("self", [{}] * 6)]

    (told,) = node.events("preload_off")
    assert told["threads"] == ["exporter"]
    assert all("exporter" in result["threads"] for result in results)
    assert threads(node.pids()["template"][0]) == 1


@pytest.mark.parametrize("preload", ["auto", "off"])
def test_a_node_lives_with_warnings_as_errors(start_node: StartNode, preload: str) -> None:
    node = start_node(workers=2, threads=2, preload=preload, environ={"PYTHONWARNINGS": "error"})
    ids = node.submit_many("return", [{"value": n} for n in range(20)])
    assert [node.ended(id)["result"] for id in ids] == list(range(20))
    (killed,) = node.kill("worker:0")
    until(lambda: node.pids()["worker:0"] not in ([], [killed]), 15, "another worker")
    assert node.cli("ctl", "reload", "--wait").returncode == 0
    assert node.ended(node.submit("return", {"value": 1}))["result"] == 1

    assert node.stop() == 0
    assert "Warning" not in node.log()
