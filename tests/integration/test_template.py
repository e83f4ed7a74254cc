"""The template: imports once, says what is unsafe, forks workers and api processes that outlive it."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from tests.support.household import SETTINGS, household
from tests.support.until import until

pytestmark = pytest.mark.usefixtures("single_threaded")


def test_handlers_are_imported_once_for_all_workers_and_the_api(tmp_path: Path) -> None:
    with household(tmp_path) as home:
        home.until_running()
        assert home.switches.notes("imports") == [home.pid_of("template")]
        assert home.switches.notes("hooks") == ["template"]


def test_without_preload_workers_and_api_import_for_themselves(tmp_path: Path) -> None:
    with household(tmp_path, preload="off") as home:
        status = home.until_running()
        pids = [process["pid"] for process in (*status["workers"], *status["roles"]["api"])]
        assert sorted(home.switches.notes("imports")) == sorted(pids)
        assert home.switches.notes("hooks") == []


def test_an_import_that_leaves_threads_turns_preloading_off_and_says_which(tmp_path: Path) -> None:
    with household(tmp_path, switches=("import_leaves_thread",)) as home:
        status = home.until_running()
        (event,) = home.events("preload_off")
        assert event["threads"] == ["poller"]
        assert status["roles"]["template"]["restarts"] == 1
        assert {worker["pid"] for worker in status["workers"]} <= set(home.switches.notes("imports"))
        home.send(signal.SIGKILL, "template")
        until(lambda: home.status()["roles"]["template"]["restarts"] == 2, what="another template")
        home.until_running()
        assert len(home.events("preload_off")) == 1


def test_preloading_can_be_forced(tmp_path: Path) -> None:
    with household(tmp_path, preload="on", switches=("import_leaves_thread",)) as home:
        home.until_running()
        assert home.events("preload_unsafe")[0]["threads"] == ["poller"]
        assert home.switches.notes("imports") == [home.pid_of("template")]


def test_a_birth_that_hangs_on_a_lock_of_a_thread_is_ended_and_told(tmp_path: Path) -> None:
    settings = replace(SETTINGS, workers=1, boot_timeout=0.5)
    with household(tmp_path, settings, preload="on", switches=("import_leaves_lock",)) as home:
        (death, *_) = until(lambda: home.events("exited"), timeout=10.0, what="the end of one that hangs")
        assert death["cause"].startswith("killed by signal 9 (SIGKILL): not ready within")
        assert home.events("preload_unsafe")[0]["threads"] == ["holder"]
        until(
            lambda: any("not ready within" in reason for reason in home.status()["degraded"]), what="a reason"
        )


def test_importing_for_itself_a_worker_has_the_thread_that_holds_its_lock(tmp_path: Path) -> None:
    with household(tmp_path, switches=("import_leaves_lock",)) as home:
        home.until_running()
        for _ in range(5):
            killed = home.pid_of("worker 0")
            os.kill(killed, signal.SIGKILL)
            until(lambda gone=killed: home.status()["workers"][0]["pid"] not in (None, gone), what="an heir")  # type: ignore[misc]
            home.until_running()
        assert home.events("preload_off")[0]["threads"] == ["holder"]
        assert {death["cause"] for death in home.events("exited")} <= {
            "killed by signal 9 (SIGKILL)",
            "exited 0",
        }


@pytest.mark.parametrize("preload", ["auto", "off"])
def test_handlers_that_cannot_be_imported_at_first_end_the_node(tmp_path: Path, preload: str) -> None:
    with household(tmp_path, preload=preload, switches=("import_fails",)) as home:
        assert home.wait(10.0) == 78
        assert home.stderr().count("ModuleNotFoundError") == 1
        assert "no module named 'handlers'" in home.stderr()
        assert home.events("gave_up")[0]["reason"] == "no module named 'handlers'"


def test_workers_and_api_outlive_the_template(tmp_path: Path) -> None:
    with household(tmp_path) as home:
        before = home.until_running()
        home.send(signal.SIGKILL, "template")
        until(lambda: home.events("exited"), what="its death to be seen")
        after = home.until_running()
        assert [worker["pid"] for worker in after["workers"]] == [w["pid"] for w in before["workers"]]
        assert after["roles"]["api"] == before["roles"]["api"]


def test_an_api_process_that_dies_comes_again_out_of_the_template(tmp_path: Path) -> None:
    with household(tmp_path) as home:
        (before,) = home.until_running()["roles"]["api"]
        os.kill(before["pid"], signal.SIGKILL)
        until(lambda: home.status()["roles"]["api"][0]["restarts"] == 1, what="another one")
        home.until_running()
        assert home.switches.notes("imports") == [home.pid_of("template")]


def test_a_later_failure_to_import_leaves_the_node_running(tmp_path: Path) -> None:
    with household(tmp_path) as home:
        pids = {worker["pid"] for worker in home.until_running()["workers"]}
        home.switches.set("import_fails")
        home.send(signal.SIGKILL, "template")
        until(lambda: home.events("failed"), what="the failing import")
        status = home.status()
        assert any(
            "template: died" in reason and "no module named" in reason for reason in status["degraded"]
        )
        assert {worker["pid"] for worker in status["workers"]} == pids
        assert len(home.events("failed")) == 1
        home.switches.drop("import_fails")
        home.until_running()


def test_a_template_that_is_stuck_is_replaced_and_then_who_is_missing(tmp_path: Path) -> None:
    settings = replace(SETTINGS, workers=2, boot_timeout=1.0)
    with household(tmp_path, settings) as home:
        before = home.until_running()
        home.send(signal.SIGSTOP, "template")
        home.send(signal.SIGKILL, "worker 0")
        os.kill(before["roles"]["api"][0]["pid"], signal.SIGKILL)
        until(lambda: home.events("unborn"), what="the birth to be given up")
        after = home.until_running()
        assert after["workers"][1] | {"completed": 0} == before["workers"][1] | {"completed": 0}
        (death,) = [event for event in home.events("exited") if event.get("role") == "template"]
        assert death["cause"].endswith("did not answer when it was asked for a process")


def test_a_template_that_was_stuck_for_a_moment_goes_on(tmp_path: Path) -> None:
    with household(tmp_path, replace(SETTINGS, workers=1)) as home:
        home.until_running()
        template = psutil.Process(home.pid_of("template"))
        template.suspend()
        home.send(signal.SIGKILL, "worker 0")
        until(lambda: home.events("exited"), what="its death to be seen")
        template.resume()
        home.until_running()
        assert home.pid_of("template") == template.pid


def test_numeric_libraries_get_one_thread_unless_told_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    with household(tmp_path) as home:
        home.until_running()
        assert home.switches.notes("threads")[0] == {"OMP_NUM_THREADS": "3", "MKL_NUM_THREADS": "1"}
        assert "OMP_NUM_THREADS=1" not in home.events("threads_limited")[0]["variables"]


def test_a_worker_has_none_of_the_templates_descriptors(tmp_path: Path) -> None:
    with household(tmp_path) as home:
        home.until_running()
        sockets = [
            fd
            for fd in os.listdir(f"/proc/{home.pid_of('worker 0')}/fd")
            if os.readlink(f"/proc/{home.pid_of('worker 0')}/fd/{fd}").startswith("socket:")
        ]
        assert len(sockets) == 1  # its own channel
