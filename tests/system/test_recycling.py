"""Workers that have had their day are replaced, and no task is lost, charged or kept waiting for it."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.ledger import Ledger
from tests.support.node import Node
from tests.support.until import until

pytestmark = pytest.mark.either_server

StartNode = Callable[..., Node]


def recycled(node: Node) -> list[str]:
    return [event["cause"] for event in node.events("exited") if event["cause"].startswith("recycled")]


def test_after_max_tasks_a_worker_is_recycled(start_node: StartNode, ledger: Ledger) -> None:
    node = start_node(workers=2, threads=2, max_tasks=10)
    ids = node.submit_many("return", [{"value": n} for n in range(60)], max_attempts=1)

    tasks = [node.ended(id) for id in ids]

    assert {(task["status"], task["attempts"], task["crashes"]) for task in tasks} == {("succeeded", 1, 0)}
    runs = [run.pid for run in ledger.runs()]
    assert len(runs) == 60
    assert max(runs.count(pid) for pid in set(runs)) == 10
    until(lambda: len(recycled(node)) >= 5, 10, "the ends of five workers")
    assert set(recycled(node)) == {"recycled: 10 tasks"}
    until(lambda: not node.status()["degraded"], 10, "a node that is well")
    assert node.status()["totals"]["crashes"] == 0
    metrics = node.http("GET", "/metrics").body.decode()
    assert 'prefork_q_worker_restarts_total{cause="recycled"}' in metrics


def test_a_worker_that_grows_is_replaced_after_a_task_and_not_in_a_loop(
    start_node: StartNode, ledger: Ledger
) -> None:
    node = start_node(workers=1, max_rss="50MiB")

    # 6 tasks of 30 MiB that are never given back: after every second one it has grown by more.
    for _ in range(6):
        task = node.ended(node.submit("eat", {"mebibytes": 30, "seconds": 1.2, "keep": True}, max_attempts=1))
        assert (task["status"], task["attempts"], task["crashes"]) == ("succeeded", 1, 0)

    until(lambda: len(recycled(node)) >= 2, 15, "two recycled workers")
    assert set(recycled(node)) == {"recycled: 50 MiB"}
    assert 3 <= len(ledger.pids()) <= 4
    assert len(node.events("exited", worker=0)) <= 4


def test_what_the_import_takes_is_no_growth(start_node: StartNode, tmp_path: Path) -> None:
    target = tmp_path / "large.py"
    target.write_text(
        "import os\n"
        "from prefork_q import App\n"
        "app = App()\n"
        "large = bytearray(os.urandom(1 << 20) * 150)\n"
        "@app.task('look')\n"
        "def look() -> int:\n"
        "    return sum(large[n] for n in range(0, len(large), 4096)) and os.getpid()\n"
    )
    for preload in ("on", "off"):
        node = start_node(workers=1, target=f"{target}:app", max_rss="50MiB", preload=preload)
        (worker,) = node.pids()["worker"]
        ids = node.submit_many("look", [{}] * 100)
        assert {node.ended(id)["result"] for id in ids} == {worker}
        # The keeper takes a sample each second.
        until(lambda at=node: at.status()["workers"][0]["rss_bytes"] > 150 << 20, 10, "a sample")  # type: ignore[misc]
        assert {node.ended(node.submit("look"))["result"] for _ in range(20)} == {worker}
        assert recycled(node) == []
        assert node.stop() == 0


def test_a_worker_that_grows_far_too_much_is_killed_and_what_ran_is_charged(
    start_node: StartNode, ledger: Ledger
) -> None:
    node = start_node(workers=1, max_rss="50MiB", max_crashes=1)
    id = node.submit("eat", {"mebibytes": 200, "seconds": 20}, max_attempts=1)

    task = node.ended(id, 40)

    assert (task["status"], task["crashes"], len(ledger.runs(id))) == ("dead", 2, 2)
    cause = task["error"]["cause"]
    assert (cause["signal"], cause["timed_out"]) == (9, False)
    assert cause["peak_rss_bytes"] > 200 << 20
    assert "in eat" in cause["stack"]
    assert "max_rss is 50 MiB" in task["error"]["message"]


def test_a_worker_that_leaks_descriptors_is_replaced_before_it_runs_out(
    start_node: StartNode, tmp_path: Path
) -> None:
    target = tmp_path / "leaky.py"
    target.write_text(
        "import os, resource, socket, time\n"
        "from prefork_q import App\n"
        "app = App()\n"
        "kept = []\n"
        "@app.on_template_start\n"
        "def limit():\n"
        "    resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))\n"
        "@app.task('leak', max_attempts=1)\n"
        "def leak() -> int:\n"
        "    kept.append(socket.socket())\n"
        "    time.sleep(0.002)\n"
        "    return os.getpid()\n"
    )
    node = start_node(workers=1, target=f"{target}:app")
    ids = node.submit_many("leak", [{}] * 300)

    tasks = [node.ended(id) for id in ids]

    assert {task["status"] for task in tasks} == {"succeeded"}
    assert len({task["result"] for task in tasks}) >= 3
    assert any("of 128 descriptors" in cause for cause in recycled(node))
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 128
    assert os.path.exists(f"/proc/{node.pid}")


def test_a_worker_with_no_descriptor_left_commits_and_is_replaced(
    start_node: StartNode, tmp_path: Path
) -> None:
    target = tmp_path / "greedy.py"
    target.write_text(
        "import os, resource, socket\n"
        "from prefork_q import App\n"
        "app = App()\n"
        "kept = []\n"
        "@app.on_template_start\n"
        "def limit():\n"
        "    resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))\n"
        "@app.task('take', max_attempts=1)\n"
        "def take() -> int:\n"
        "    try:\n"
        "        while True:\n"
        "            kept.append(socket.socket())\n"
        "    except OSError:\n"
        "        return os.getpid()\n"
    )
    node = start_node(workers=2, target=f"{target}:app")

    tasks = [node.ended(id) for id in node.submit_many("take", [{}] * 8)]

    assert {(task["status"], task["crashes"]) for task in tasks} == {("succeeded", 0)}
    until(lambda: len(recycled(node)) >= 4, 10, "the ends of those that have none left")
    assert set(recycled(node)) == {"recycled: 128 of 128 descriptors"}
    until(lambda: not node.status()["degraded"], 10, "a node that is well")
    assert node.stop() == 0


HOOKS = """
import os, pathlib, signal, sys, time
from prefork_q import App
app = App()
folder = pathlib.Path({folder!r})
def note(name):
    with open(folder / name, "a") as file:
        file.write(f"{{os.getpid()}}\\n")
@app.on_template_start
def template():
    note("template")
@app.on_worker_start
def start():
    note("start")
@app.on_worker_stop
def stop():
    note("stop")
    if (folder / "slow").exists():
        time.sleep(60)
@app.task("pid")
def pid(seconds: float = 0.0) -> int:
    time.sleep(seconds)
    return os.getpid()
"""


class Hooks:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.target = folder / "hooks.py"
        self.target.write_text(HOOKS.format(folder=str(folder)))

    def ran(self, name: str) -> list[int]:
        path = self.folder / name
        return [int(line) for line in path.read_text().split()] if path.exists() else []


def test_the_stop_hook_runs_at_every_end_but_a_kill(start_node: StartNode, tmp_path: Path) -> None:
    hooks = Hooks(tmp_path)
    node = start_node(workers=1, target=f"{hooks.target}:app", max_tasks=3)
    ended: list[int] = []

    def next_end() -> None:
        (pid,) = node.pids()["worker:0"]
        ended.append(pid)

    # Recycled.
    next_end()
    for id in node.submit_many("pid", [{}] * 3):
        node.ended(id)
    until(lambda: ended[-1] in hooks.ran("stop"), 10, "the hook of a recycled worker")
    # Told to end alone.
    until(lambda: node.pids()["worker:0"] not in ([], [ended[-1]]), 10, "another worker")
    node.wait_ready()
    next_end()
    os.kill(ended[-1], 15)
    until(lambda: ended[-1] in hooks.ran("stop"), 10, "the hook of a worker that was ended")
    # Reloaded.
    until(lambda: node.pids()["worker:0"] not in ([], [ended[-1]]), 10, "another worker")
    node.wait_ready()
    next_end()
    node.cli("ctl", "reload", "--wait")
    until(lambda: ended[-1] in hooks.ran("stop"), 10, "the hook of a worker that was replaced")
    # Killed: it cannot.
    until(lambda: node.pids()["worker:0"] not in ([], [ended[-1]]), 10, "another worker")
    node.wait_ready()
    (killed,) = node.kill("worker:0")
    until(lambda: node.pids()["worker:0"] not in ([], [killed]), 10, "another worker")
    node.wait_ready()
    # The node's end.
    next_end()
    assert node.stop() == 0
    assert hooks.ran("stop") == ended
    assert set(hooks.ran("start")) == {*ended, killed}
    assert len(hooks.ran("template")) == 2


def test_a_stop_hook_that_hangs_is_abandoned(start_node: StartNode, tmp_path: Path) -> None:
    hooks = Hooks(tmp_path)
    (tmp_path / "slow").touch()
    node = start_node(workers=1, target=f"{hooks.target}:app", drain_timeout="4s")

    assert node.stop(timeout=10) == 0

    assert node.events("hook_abandoned", hook="on_worker_stop")
    assert len(hooks.ran("stop")) == 1


def test_recycling_leaves_long_tasks_their_time_and_makes_no_crowd(
    start_node: StartNode, ledger: Ledger
) -> None:
    node = start_node(workers=2, max_tasks=1, drain_timeout="300ms")
    ids = node.submit_many("sleep", [{"seconds": 1.5}] * 6, max_attempts=1)

    tasks = [node.ended(id, 30) for id in ids]

    assert {(task["status"], task["attempts"]) for task in tasks} == {("succeeded", 1)}
    assert ledger.times_run() == dict.fromkeys(ids, 1)
    runs = ledger.runs()
    assert len({run.pid for run in runs}) == 6
    for run in runs:
        beside = [other for other in runs if other.started_at <= run.started_at < (other.ended_at or 0)]
        assert len(beside) <= 2, "more at once than there are workers"


def test_a_long_task_keeps_no_thread_of_its_place_idle(start_node: StartNode, ledger: Ledger) -> None:
    node = start_node(workers=1, threads=4, max_tasks=4, drain_timeout="300ms")
    long = node.submit("sleep", {"seconds": 30}, max_attempts=1)
    until(lambda: ledger.starts(long), 10, "its start")

    short = node.submit_many("sleep", [{"seconds": 0.05}] * 40, max_attempts=1)
    assert {node.ended(id)["status"] for id in short} == {"succeeded"}

    assert not ledger.ends(long)
    assert len({run.pid for run in ledger.runs()}) >= 10
    assert node.stop() == 0


@pytest.mark.parametrize("way", ["restart", "signal"])
def test_a_worker_that_takes_its_time_to_leave_can_be_hurried(
    start_node: StartNode, ledger: Ledger, way: str
) -> None:
    node = start_node(workers=1, max_tasks=1, drain_timeout="500ms")
    long = node.submit("sleep", {"seconds": 60}, max_attempts=1)
    until(lambda: ledger.starts(long), 10, "its start")
    (worker,) = node.pids()["worker"]
    node.wait_event("retiring", worker=0)

    if way == "restart":
        assert node.cli("ctl", "restart", "0").returncode == 0
    else:
        os.kill(worker, signal.SIGTERM)

    until(lambda: len(ledger.starts(long)) == 2, 10, "its second run, by an heir")
    assert (node.task(long)["attempts"], node.task(long)["crashes"]) == (1, 0)
    assert not os.path.exists(f"/proc/{worker}")


def test_what_kills_a_worker_that_is_about_to_be_recycled_is_charged(
    start_node: StartNode, ledger: Ledger
) -> None:
    node = start_node(workers=1, threads=2, max_tasks=1, max_crashes=1)
    id = node.submit("die", {"number": 11, "after": 1.5}, max_attempts=1)

    task = node.ended(id, 30)

    assert (task["status"], task["crashes"], len(ledger.runs(id))) == ("dead", 2, 2)
    assert task["error"]["cause"]["signal"] == 11


def test_a_reload_does_not_wait_for_the_long_tasks_of_the_recycled(
    start_node: StartNode, ledger: Ledger
) -> None:
    node = start_node(workers=2, max_tasks=1, drain_timeout="300ms")
    node.submit_many("sleep", [{"seconds": 60}] * 8)
    until(lambda: len(ledger.running()) == 2, 10, "work in both")

    done = node.cli("ctl", "reload", "--wait", "--timeout", "30s", timeout=40)

    assert done.returncode == 0, done.stderr
    assert {worker["generation"] for worker in node.status()["workers"]} == {2}
    assert node.stop() == 0
