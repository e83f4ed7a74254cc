"""A worker whose fetch loop does not turn is replaced, unless it is only busy, or somebody stopped it."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from prefork_q.control.client import ask
from tests.support.household import SETTINGS, household
from tests.support.until import until

pytestmark = pytest.mark.usefixtures("single_threaded")

PATIENT = replace(SETTINGS, workers=1, deaf_after=1.0)


def test_a_deaf_worker_is_replaced_and_counted_and_charged_to_nobody(tmp_path: Path) -> None:
    with household(tmp_path, PATIENT) as home:
        home.until_running()
        deaf = home.pid_of("worker 0")
        home.switches.set("worker_is_deaf")
        until(lambda: not psutil.pid_exists(deaf) or home.pid_of("worker 0") != deaf, 15, "its end")
        home.switches.drop("worker_is_deaf")

        until(lambda: home.switches.notes("notices"), 10, "a notice")
        cause, drained = home.switches.notes("notices")[0][2:4]
        assert ("deaf: its fetch loop has not turned" in cause, drained) == (True, True)
        home.until_running()
        metrics = ask(home.socket, "metrics")
        assert metrics["restarts"]["deaf"] >= 1
        assert home.status()["totals"]["crashes"] == 0


def test_a_worker_that_is_busy_is_left_alone(tmp_path: Path) -> None:
    with household(tmp_path, PATIENT, switches=("worker_is_busy",)) as home:
        home.until_running()
        busy = home.pid_of("worker 0")
        home.switches.set("worker_is_deaf")

        until(lambda: home.status()["workers"][0]["condition"] == "busy", 15, "a worker that is busy")

        assert home.pid_of("worker 0") == busy
        assert home.status()["degraded"] == []


def test_a_deaf_worker_is_told_before_it_is_replaced(tmp_path: Path) -> None:
    with household(tmp_path, replace(PATIENT, deaf_after=60.0)) as home:
        home.until_running()
        home.switches.set("worker_is_deaf")

        reason = until(lambda: home.status()["degraded"], 15, "a reason")

        assert reason[0].startswith("worker 0: deaf, its fetch loop has not turned for ")


def test_a_node_that_was_stopped_holds_no_silence_against_its_workers(tmp_path: Path) -> None:
    with household(tmp_path, replace(PATIENT, deaf_after=2.0)) as home:
        home.until_running()
        pid = home.pid_of("worker 0")
        everybody = [home.pid, *(child.pid for child in psutil.Process(home.pid).children(recursive=True))]
        for stopped in everybody:
            os.kill(stopped, signal.SIGSTOP)
        time.sleep(4)
        for stopped in everybody:
            os.kill(stopped, signal.SIGCONT)

        until(lambda: home.events("stood_still"), 10, "a node that has noticed")
        time.sleep(1)  # whoever would be killed for it is killed in the first turns
        assert home.pid_of("worker 0") == pid
