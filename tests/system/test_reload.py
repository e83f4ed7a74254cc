"""A running node is changed: reloaded, scaled, made quiet, restarted, drained. Nothing is lost over it."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.ledger import Ledger
from tests.support.load import load
from tests.support.node import PROGRAM, Node
from tests.support.server import Server
from tests.support.until import until
from tests.system.test_running import all_ended

pytestmark = pytest.mark.either_server

StartNode = Callable[..., Node]

CODE = """
from prefork_q import App
app = App()
@app.task("version")
def version() -> int:
    return {version}
"""
BROKEN = CODE.format(version="1 +")
GAP = 3.0
"""Seconds without an end of any task. The promise is one; the rest is for a busy machine."""


def version_of(node: Node) -> int:
    result: int = node.ended(node.submit("version"))["result"]
    return result


def test_reloads_under_load_lose_nothing_and_leave_no_gap(start_node: StartNode, ledger: Ledger) -> None:
    node = start_node(workers=2, threads=2)
    with load(node, "sleep", {"seconds": 0.01}, rate=60) as submitted:
        until(lambda: len(ledger.ends()) > 20, 20, "work")
        began = time.time()
        for _ in range(10):
            node.send(signal.SIGHUP)
            time.sleep(0.5)
        until(lambda: node.events("reloaded")[1:] and node.status()["state"] == "running", 40, "two reloads")
        ended = time.time()

    assert submitted.errors == []
    until(all_ended(node, len(submitted.ids)), 30, "the end of all tasks")
    assert ledger.times_run() == dict.fromkeys(submitted.ids, 1)
    ends = sorted(end for end in ledger.ends() if began <= end <= ended)
    assert max(b - a for a, b in zip([began, *ends], [*ends, ended], strict=True)) < GAP
    numbers = node.metrics()
    assert (numbers["completed_total"], numbers["crashes_total"]) == (len(submitted.ids), 0)
    status = node.status()
    assert status["generation"] == 1 + len(node.events("reloaded"))
    assert {worker["generation"] for worker in status["workers"]} == {status["generation"]}
    assert status["totals"]["completed"] == len(submitted.ids)
    assert len(ledger.pids()) >= 4


def test_new_code_runs_after_a_reload_and_broken_code_never(start_node: StartNode, tmp_path: Path) -> None:
    target = tmp_path / "handlers.py"
    target.write_text(CODE.format(version=1))
    node = start_node(workers=2, target=f"{target}:app")
    assert version_of(node) == 1

    # Twice within a second, and of the same length: cached bytecode must not be taken for it.
    for version in (2, 3):
        target.write_text(CODE.format(version=version))
        done = node.cli("ctl", "reload", "--wait")
        assert done.returncode == 0, done.stderr
        assert version_of(node) == version

    target.write_text(BROKEN)
    done = node.cli("ctl", "reload", "--wait")
    assert done.returncode == 1
    assert "SyntaxError" in done.stderr
    assert version_of(node) == 3
    checked = node.cli("ctl", "status", "--check")
    assert checked.returncode == 1
    assert "the last reload failed" in checked.stdout
    assert len(node.events("reload_failed")) == 1
    # Nor does a worker that dies get it.
    node.kill("worker:0")
    until(lambda: node.status()["workers"][0]["state"] == "ready", 10, "a new worker")
    assert version_of(node) == 3

    target.write_text(CODE.format(version=4))
    assert node.cli("ctl", "reload", "--wait").returncode == 0
    assert version_of(node) == 4
    assert node.cli("ctl", "status", "--check").returncode == 0


def test_a_reload_is_not_waited_for_without_end_while_redis_is_away(
    start_node: StartNode, own_server: Server
) -> None:
    node = start_node(url=own_server.url, workers=1)
    (worker,), (api,) = node.pids()["worker"], node.pids()["api"]
    own_server.kill()
    until(lambda: not node.status()["redis"]["reachable"], 20, "Redis to be missed")

    done = node.cli("ctl", "reload", "--wait", timeout=60)
    assert done.returncode == 1
    assert "worker 0 of the new generation: not ready within 30 s: Redis is unreachable" in done.stderr
    assert (node.status()["generation"], node.pids()["worker"], node.pids()["api"]) == (1, [worker], [api])

    done = node.cli("ctl", "reload", "--wait", "--timeout", "2s")
    assert (done.returncode, done.stdout) == (75, "")
    assert "not done after 2 s" in done.stderr
    own_server.start()
    until(lambda: node.status()["generation"] == 2 and node.status()["state"] == "running", 30, "its end")
    assert node.ended(node.submit("return", {"value": 1}))["result"] == 1


def test_the_configuration_file_is_read_anew(start_node: StartNode, tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text("drain_timeout = '20s'\n")
    node = start_node(workers=None, threads=None, config=file)
    file.write_text("workers = 3\nthreads = 2\nlog_level = 'debug'\n")

    assert node.cli("ctl", "reload", "--wait").returncode == 0

    status = node.status()
    assert [worker["threads"] for worker in status["workers"]] == [2, 2, 2]
    assert {worker["generation"] for worker in status["workers"]} == {2}
    file.write_text("workers = 2\nlease = '10s'\n")
    done = node.cli("ctl", "reload", "--wait")
    assert done.returncode == 1
    assert "lease cannot change while the node runs" in done.stderr
    file.write_text("worker = 2\n")
    assert "did you mean workers?" in node.cli("ctl", "reload", "--wait").stderr
    assert len(node.status()["workers"]) == 3
    file.write_text("threads = 17\n")
    assert "threads: 17 are more than the 16" in node.cli("ctl", "reload", "--wait").stderr


def test_a_file_that_says_too_little_or_nonsense_refuses_the_reload_and_nothing_else(
    start_node: StartNode, tmp_path: Path
) -> None:
    target, file = tmp_path / "handlers.py", tmp_path / "node.toml"
    target.write_text(CODE.format(version=1))
    file.write_text(f"target = '{target}:app'\n")
    node = start_node(target=None, config=file)
    before = node.pids()

    for text, reason in (
        ("", "Name the handlers"),
        (f"target = '{target}:app'\ntoken_file = '~nobody-of-that-name/t'\n", "whose folder that is"),
        ("target = [", "configuration file"),
    ):
        file.write_text(text)
        done = node.cli("ctl", "reload", "--wait")
        assert (done.returncode, reason in done.stderr) == (1, True), done.stderr

    assert node.pids() == before
    assert version_of(node) == 1
    file.write_text(f"target = '{target}:app'\n")
    assert node.cli("ctl", "reload", "--wait").returncode == 0


def test_a_new_log_level_is_everybodys(start_node: StartNode, tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text("")
    node = start_node(config=file, workers=1)
    file.write_text("log_level = 'error'\n")
    assert node.cli("ctl", "reload", "--wait").returncode == 0

    told = node.submit("return", {"value": 1})
    assert node.ended(told)["status"] == "succeeded"
    dead = node.submit("raise", {}, max_attempts=1)
    node.wait_event("finished", id=dead)

    assert node.events("finished", id=told) == []


def test_changed_code_is_reloaded_by_itself_in_development(start_node: StartNode, tmp_path: Path) -> None:
    target = tmp_path / "code" / "handlers.py"
    target.parent.mkdir()
    target.write_text(CODE.format(version=1))
    node = start_node(workers=1, target=f"{target}:app", reload=True)
    node.wait_event("watching")

    target.write_text(CODE.format(version=2))
    node.wait_event("reloaded", timeout=30)
    assert version_of(node) == 2
    target.write_text(BROKEN)
    node.wait_event("reload_failed", timeout=30)
    target.write_text(CODE.format(version=3))
    node.wait_event("reloaded", timeout=30, count=2)
    assert version_of(node) == 3
    assert node.stop() == 0
    assert node.leftovers() == []


def test_a_quiet_node_finishes_what_runs_and_begins_nothing(start_node: StartNode, ledger: Ledger) -> None:
    node = start_node(workers=2)
    running = node.submit_many("sleep", [{"seconds": 1.0}] * 2)
    until(lambda: len(ledger.running()) == 2, 10, "work")
    assert node.ctl("quiet") == {"state": "quiet"}
    time.sleep(0.2)
    waiting = node.submit_many("return", [{}] * 20)

    assert all(node.ended(id)["status"] == "succeeded" for id in running)
    # One that is born meanwhile gets ready, and claims nothing either.
    node.kill("worker:0")
    until(lambda: node.status()["workers"][0]["state"] == "ready", 10, "a new worker")
    # So do those of a new generation.
    assert node.cli("ctl", "reload", "--wait").returncode == 0
    assert node.status()["state"] == "quiet"
    assert not set(waiting) & ledger.times_run().keys()
    assert node.metrics()["pending"] == 20

    node.send(signal.SIGCONT)
    assert all(node.ended(id)["status"] == "succeeded" for id in waiting)
    assert node.status()["state"] == "running"


def test_a_node_that_was_stopped_and_continued_goes_on_as_it_was(
    start_node: StartNode, ledger: Ledger
) -> None:
    node = start_node(workers=1, lease="2s")
    id = node.submit("sleep", {"seconds": 1.5})
    until(lambda: ledger.starts(id), 10, "a start")
    before = node.pids()

    node.kill("all", signal.SIGSTOP)
    time.sleep(4)
    node.kill("all", signal.SIGCONT)

    node.wait_event("stood_still")
    assert node.ended(id)["status"] == "succeeded"
    until(lambda: node.http("GET", "/readyz").status == 200, 10, "a ready node")
    after = node.pids()
    assert [after[role] for role in ("worker", "keeper", "template", "api")] == [
        before[role] for role in ("worker", "keeper", "template", "api")
    ]
    assert ledger.overlaps() == []


def test_a_drain_by_command_waits_until_all_is_stopped(start_node: StartNode, ledger: Ledger) -> None:
    node = start_node(workers=1)
    id = node.submit("sleep", {"seconds": 1.0})
    until(lambda: ledger.starts(id), 10, "a start")

    done = node.cli("ctl", "drain")

    assert done.returncode == 0, done.stderr
    assert node.wait(10) == 0
    assert node.leftovers() == []
    assert [run.outcome for run in ledger.runs(id)] == ["returned"]
    assert node.cli("ctl", "status").returncode == 3


def test_scale_and_restart_by_command(start_node: StartNode, ledger: Ledger) -> None:
    node = start_node(workers=1)
    id = node.submit("sleep", {"seconds": 8.0})
    until(lambda: ledger.starts(id), 10, "a start")
    (old,) = node.pids()["worker"]

    assert node.ctl("scale", "+1") == {"workers": 2, "before": 1}
    assert node.ctl("restart", "0") == {"worker": 0, "pid": old}
    until(lambda: [w["pid"] for w in node.status()["leaving"]] == [old], 10, "the old one to leave")
    assert node.ended(id)["status"] == "succeeded"
    assert node.ctl("scale", "-1")["workers"] == 1
    assert node.cli("ctl", "scale", "0").returncode == 2
    assert node.cli("ctl", "restart", "9").returncode == 1
    assert len(ledger.runs(id)) == 1
    until(lambda: not node.status()["leaving"], 10, "the old one to be gone")
    shown = node.cli("ctl", "top")
    assert shown.returncode == 0
    assert "completed per minute" in shown.stdout


def test_top_is_live_on_a_terminal(node: Node) -> None:
    terminal, its = pty.openpty()
    top = subprocess.Popen(
        [PROGRAM, "ctl", "--socket", str(node.ctl_socket), "top", "--interval", "200ms"],
        stdin=its, stdout=its, stderr=its,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "140", "LINES": "30"},
    )  # fmt: skip
    shown = b""

    def has_shown(text: bytes) -> bool:
        nonlocal shown
        while select.select([terminal], [], [], 0)[0]:
            shown += os.read(terminal, 65_536)
        return text in shown

    try:
        until(lambda: has_shown(b"running"), 15, "the node")
        node.submit("sleep", {"seconds": 5})
        until(lambda: has_shown(b"sleep"), 15, "the task")
        top.send_signal(signal.SIGINT)
        # It writes while it ends, and waits for whoever reads.
        until(lambda: has_shown(b"") and top.poll() is not None, 15, "its end")
        assert top.returncode == 0
        until(lambda: has_shown(b"\x1b[?1049l"), 5, "the terminal as it was")
    finally:
        top.kill()
        top.wait()
        os.close(terminal)
        os.close(its)


def test_every_question_is_answered_in_time_whatever_hangs(start_node: StartNode, own_server: Server) -> None:
    node = start_node(url=own_server.url, workers=2)
    node.submit_many("hold_gil", [{"seconds": 60}] * 2)
    until(lambda: all(worker["running"] for worker in node.status()["workers"]), 10, "busy workers")
    pids = node.pids()
    stopped = [*pids["template"], *pids["keeper"], *pids["api"]]
    own_server.pause()
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    try:
        for words in (
            ["ping"], ["status"], ["workers"], ["metrics"], ["top"], ["quiet"], ["resume"], ["scale", "+1"],
            ["scale", "-1"], ["restart", "0"], ["reload"], ["stacks"],
        ):  # fmt: skip
            began = time.monotonic()
            done = node.cli("ctl", *words)
            took = time.monotonic() - began
            assert done.returncode in (0, 1), (words, done.stderr)
            assert done.stdout, words
            # The promise is two; the rest is for an interpreter that starts on a busy machine.
            assert took < 5.0, (words, took)
    finally:
        own_server.resume()
        for pid in stopped:
            with suppress(ProcessLookupError):  # replaced meanwhile
                os.kill(pid, signal.SIGCONT)
    assert node.stop(signal.SIGQUIT) == 0
