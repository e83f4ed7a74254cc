"""How a node ends: bounded, in order, and with nobody left."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from tests.support.household import HELD, SETTINGS, TASK, household
from tests.support.until import until

pytestmark = pytest.mark.usefixtures("single_threaded")

ONE = replace(SETTINGS, workers=1)
PATIENT = replace(SETTINGS, drain_timeout=10.0)
"""So that an end at once is not one at the end of the drain."""
BUSY = ("worker_holds_tasks", "worker_ignores_drain")


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, signal.SIGINT, signal.SIGQUIT], ids=lambda number: number.name
)
def test_an_idle_node_ends_at_once(tmp_path: Path, number: signal.Signals) -> None:
    with household(tmp_path, PATIENT, has_store=True) as home:
        home.until_running()
        assert home.stop(number) < 4.0
        assert home.exit_code == 0
        assert home.left() == []
        assert not home.socket.exists()
        assert home.events("stopped")[0]["exit_code"] == 0


def test_a_node_ends_while_it_is_starting(tmp_path: Path) -> None:
    with household(tmp_path, PATIENT, switches=("worker_hangs_at_birth",)) as home:
        until(lambda: [e for e in home.events("ready") if e.get("role") == "template"], what="the template")
        assert home.stop() < 4.5
        assert home.exit_code == 0


def test_workers_that_do_not_end_are_killed_and_their_tasks_given_back(tmp_path: Path) -> None:
    with household(tmp_path, replace(ONE, drain_timeout=1.0), switches=BUSY) as home:
        home.until_running()
        seconds = home.stop()

        assert 1.0 <= seconds < 4.0
        assert home.exit_code == 0
        assert home.left() == []
        ((_, _, cause, drained, running, held),) = home.switches.notes("notices")
        assert cause == "killed by signal 9 (SIGKILL): the time to stop is over"
        assert drained
        assert (running, held) == ([TASK.decode()], [HELD.decode()])
        assert len(home.switches.notes("keeper_drained")) == 1


def test_a_stop_is_bounded_whatever_anybody_does(tmp_path: Path) -> None:
    switches = (*BUSY, "keeper_ignores_drain", "keeper_does_not_acknowledge", "worker_has_subprocess")
    with household(tmp_path, replace(ONE, drain_timeout=1.0), has_store=True, switches=switches) as home:
        home.until_running()
        assert home.stop() < 4.0
        assert home.left() == []
        # Nobody knows that the tasks were given back, and that is said.
        assert home.exit_code == 1
        (left,) = home.events("tasks_left")
        assert left["tasks"] == 2


def test_a_stopped_worker_does_not_keep_the_node(tmp_path: Path) -> None:
    with household(tmp_path, replace(ONE, drain_timeout=0.5)) as home:
        home.until_running()
        home.send(signal.SIGSTOP, "worker 0")
        assert home.stop() < 3.5
        assert home.exit_code == 0
        assert home.left() == []


def test_a_second_signal_shortens_the_drain_to_nothing(tmp_path: Path) -> None:
    with household(tmp_path, replace(ONE, drain_timeout=30.0), switches=BUSY) as home:
        home.until_running()
        home.send(signal.SIGTERM)
        until(lambda: home.status()["state"] == "draining", what="the drain")
        assert home.stop() < 4.0
        assert home.exit_code == 0
        assert home.left() == []
        ((*_, drained, running, _),) = home.switches.notes("notices")
        assert drained
        assert running == [TASK.decode()]


def test_quit_gives_back_and_ends_at_once(tmp_path: Path) -> None:
    with household(tmp_path, replace(ONE, drain_timeout=30.0), switches=BUSY) as home:
        home.until_running()
        assert home.stop(signal.SIGQUIT) < 4.0
        assert home.exit_code == 0
        assert home.left() == []
        assert len(home.switches.notes("notices")) == 1


def test_term_to_the_whole_group_is_one_drain(tmp_path: Path) -> None:
    with household(tmp_path, PATIENT, has_store=True) as home:
        home.until_running()
        family = psutil.Process(home.pid).children(recursive=True)
        began = time.monotonic()
        for process in [*family, psutil.Process(home.pid)]:
            with suppress(psutil.NoSuchProcess):
                process.terminate()
        home.wait()
        assert time.monotonic() - began < 5.0
        assert home.exit_code == 0
        assert home.left() == []


def test_a_keeper_that_dies_during_the_drain_is_replaced(tmp_path: Path) -> None:
    with household(tmp_path, replace(ONE, drain_timeout=3.0), switches=BUSY) as home:
        home.until_running()
        home.send(signal.SIGTERM)
        until(lambda: home.status()["state"] == "draining", what="the drain")
        pid = home.pid_of("keeper")
        os.kill(pid, signal.SIGKILL)
        until(lambda: home.status()["roles"]["keeper"]["pid"] not in (pid, None), what="another keeper")
        home.wait()
        assert home.exit_code == 0
        assert len(home.switches.notes("notices")) == 1


def test_workers_are_not_replaced_during_the_drain(tmp_path: Path) -> None:
    with household(tmp_path, replace(SETTINGS, drain_timeout=2.0), switches=BUSY) as home:
        home.until_running()
        home.send(signal.SIGTERM)
        until(lambda: home.status()["state"] == "draining", what="the drain")
        home.send(signal.SIGKILL, "worker 0")
        until(lambda: home.status()["workers"][0]["pid"] is None, what="the death to be seen")
        assert home.status()["workers"][0]["state"] == "draining"
        home.wait()
        assert home.exit_code == 0
        assert len([e for e in home.events("born") if e.get("worker") is not None]) == 2


def test_what_handlers_left_running_is_ended_too(tmp_path: Path) -> None:
    with household(tmp_path, ONE, switches=("worker_has_subprocess",)) as home:
        home.until_running()
        orphans = until(
            lambda: [
                p for p in psutil.Process(home.pid).children() if p.cmdline()[0] == "prefork-q: worker 0"
            ][1:],
            what="the orphan to be adopted",
        )
        home.stop()
        assert not any(psutil.pid_exists(orphan.pid) for orphan in orphans)
        assert home.exit_code == 0


@pytest.mark.parametrize("has_pause", [False, True], ids=["ready", "in the middle of births"])
def test_children_end_when_the_master_is_killed(tmp_path: Path, has_pause: bool) -> None:
    with household(tmp_path, has_store=True) as home:
        home.until_running()
        family = psutil.Process(home.pid).children(recursive=True)
        if has_pause:
            home.send(signal.SIGKILL, "worker 0")
            until(lambda: home.events("exited"), every=0.001, what="a birth")
            family = psutil.Process(home.pid).children(recursive=True)
        os.kill(home.pid, signal.SIGKILL)
        home.wait()
        _, alive = psutil.wait_procs(family, timeout=5.0)
        assert alive == []


def test_status_is_answered_during_the_drain(tmp_path: Path) -> None:
    with household(tmp_path, replace(ONE, drain_timeout=5.0), switches=BUSY) as home:
        home.until_running()
        home.send(signal.SIGTERM)
        until(lambda: home.status()["state"] == "draining", what="the drain")
        until(lambda: home.status()["roles"]["api"][0]["pid"] is None, what="the end of the api")
        until(lambda: home.status()["roles"]["template"]["pid"] is None, what="the end of the template")
        status = home.status()
        assert status["workers"][0]["state"] == "draining"
        assert {name: status["roles"][name]["state"] for name in ("template", "keeper")} == {
            "template": "stopped", "keeper": "ready",
        }  # fmt: skip
        assert status["roles"]["api"][0]["state"] == "stopped"
        assert status["degraded"] == []
        home.wait()
