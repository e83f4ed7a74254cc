"""The master over children that merely sleep: births, deaths, status."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from tests.support.household import HELD, SETTINGS, TASK, Switches, household
from tests.support.until import until

ROLES = ("keeper", "template", "worker 0", "worker 1")

pytestmark = pytest.mark.usefixtures("single_threaded")


def test_importing_the_master_brings_neither_redis_nor_a_web_framework() -> None:
    script = (
        "import sys, prefork_q.master.master\n"
        "print([m for m in ('redis', 'hiredis', 'bottle', 'waitress', 'pydantic') if m in sys.modules])"
    )
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"


def test_all_processes_are_started_and_shown(tmp_path: Path) -> None:
    with household(tmp_path, has_store=True) as home:
        status = home.until_running()

        assert status["pid"] == home.pid
        assert status["version"] == "1.2.3"
        assert status["state"] == "running"
        assert status["degraded"] == []
        assert status["redis"] == {"reachable": True, "version": "7.0.15", "warning": None}
        assert [worker["slot"] for worker in status["workers"]] == [0, 1]
        pids = [worker["pid"] for worker in status["workers"]]
        pids += [status["roles"][role]["pid"] for role in ("template", "keeper", "store")]
        pids += [api["pid"] for api in status["roles"]["api"]]
        assert len(set(pids)) == 6
        # All are the master's own children to wait for, workers too, though the template forked them.
        assert {child.pid for child in psutil.Process(home.pid).children()} == set(pids)
        for worker in status["workers"]:
            assert (worker["state"], worker["generation"], worker["restarts"]) == ("ready", 1, 0)
            assert (worker["threads"], worker["running"], worker["held"]) == (2, [], 0)
        assert home.stop() < 1.5
        assert home.exit_code == 0
        assert home.left() == []


def test_processes_are_told_apart_by_their_titles(tmp_path: Path) -> None:
    with household(tmp_path) as home:
        home.until_running()
        titles = {
            role: psutil.Process(pid).cmdline()[0]
            for role, pid in [("master", home.pid), *((role, home.pid_of(role)) for role in ROLES)]
        }
        assert titles == {
            "master": "prefork-q: master",
            "keeper": "prefork-q: keeper",
            "template": "prefork-q: template gen 1",
            "worker 0": "prefork-q: worker 0",
            "worker 1": "prefork-q: worker 1",
        }


def test_the_master_holds_no_socket_but_its_channels(tmp_path: Path) -> None:
    with household(tmp_path) as home:
        home.until_running()
        assert psutil.Process(home.pid).net_connections(kind="inet") == []


@pytest.mark.parametrize("role", ["worker 0", "keeper", "template"])
def test_a_killed_process_is_replaced_at_once(tmp_path: Path, role: str) -> None:
    with household(tmp_path) as home:
        home.until_running()
        # A keeper or template that dies in its first two seconds waits longer.
        until(lambda: home.status()["uptime_s"] > 2.5)
        pid = home.pid_of(role)
        others = {
            name: home.pid_of(name) for name in ("worker 0", "worker 1", "keeper", "template") if name != role
        }

        os.kill(pid, signal.SIGKILL)
        until(lambda: any(e["pid"] == pid for e in home.events("exited")), what="the death to be seen")
        status = home.until_running()

        assert home.pid_of(role) != pid
        assert {name: home.pid_of(name) for name in others} == others
        (death,) = home.events("exited")
        assert death["cause"] == "killed by signal 9 (SIGKILL)"
        assert death["pid"] == pid
        # It waits for nothing.
        assert death.get("next_start_s") is None
        if role == "worker 0":
            assert status["workers"][0]["restarts"] == 1
        else:
            assert status["roles"][role]["restarts"] == 1


def test_a_dead_workers_tasks_are_announced_to_the_keeper(tmp_path: Path) -> None:
    with household(tmp_path, replace(SETTINGS, workers=1), switches=("worker_holds_tasks",)) as home:
        status = home.until_running()
        (running,) = status["workers"][0]["running"]
        assert (running["id"], running["type"], running["attempt"]) == (TASK.decode(), "sleep", 1)
        assert status["workers"][0]["held"] == 2

        home.send(signal.SIGKILL, "worker 0")

        (notice,) = until(lambda: home.switches.notes("notices"), what="a death notice")
        incarnation, slot, cause, drained, crashed, held = notice
        assert incarnation.endswith(tuple("0123456789"))
        assert (slot, cause, drained) == (0, "killed by signal 9 (SIGKILL)", False)
        assert crashed == [TASK.decode()]
        assert held == [HELD.decode()]
        assert home.until_running()["totals"]["crashes"] == 1


def test_no_total_falls_when_a_worker_dies(tmp_path: Path) -> None:
    with household(tmp_path) as home:
        until(lambda: home.until_running()["totals"]["completed"] == 10, what="both workers to have counted")
        home.send(signal.SIGKILL, "worker 0")
        totals = until(
            lambda: (status := home.status())["workers"][0]["restarts"] == 1 and status["totals"],
            what="the worker to be replaced",
        )
        assert totals["completed"] >= 10
        until(lambda: home.status()["totals"]["completed"] == 15, what="the new worker to have counted")
        assert home.status()["totals"]["completed_per_minute"] == 15


def test_a_worker_that_gets_term_drains_alone_and_is_replaced(tmp_path: Path) -> None:
    with household(tmp_path) as home:
        home.until_running()
        pid = home.pid_of("worker 1")
        home.send(signal.SIGTERM, "worker 1")
        status = until(
            lambda: (s := home.status())["workers"][1]["pid"] not in (pid, None) and s, what="a replacement"
        )
        assert status["totals"]["crashes"] == 0
        (death,) = home.events("exited")
        assert (death["cause"], death["level"]) == ("exited 0", "info")
        assert home.has_exited() is False


def test_deaths_at_birth_are_followed_by_growing_delays_and_shown(tmp_path: Path) -> None:
    settings = replace(SETTINGS, workers=1)
    with household(tmp_path, settings, switches=("worker_dies_at_birth",)) as home:
        deaths = until(lambda: len(home.events("exited")) >= 3 and home.events("exited"), timeout=10.0)
        assert [death["next_start_s"] for death in deaths[:3]] == [0.5, 1.0, 2.0]
        assert {death["cause"] for death in deaths} == {"exited 3"}

        status = home.status()
        assert status["workers"][0]["state"] == "backoff"
        assert status["workers"][0]["pid"] is None
        assert "workers: 0 of 1 ready" in status["degraded"]
        assert any(
            "worker 0: died 3 times in a row" in reason and "exited 3" in reason
            for reason in status["degraded"]
        )

        home.switches.drop("worker_dies_at_birth")
        assert home.until_running()["workers"][0]["state"] == "ready"
        assert home.stop() < 1.5


def test_a_newborn_that_does_not_get_ready_is_killed(tmp_path: Path) -> None:
    settings = replace(SETTINGS, workers=1, boot_timeout=0.5)
    with household(tmp_path, settings, switches=("worker_hangs_at_birth",)) as home:
        (death, *_) = until(lambda: home.events("exited"), timeout=10.0, what="the newborn to be killed")
        assert death["cause"].startswith("killed by signal 9 (SIGKILL): not ready within")
        home.switches.drop("worker_hangs_at_birth")
        home.until_running()


def test_a_start_hook_may_take_as_long_as_an_import(tmp_path: Path) -> None:
    settings = replace(SETTINGS, workers=1, boot_timeout=3.0, import_timeout=30.0)
    with household(tmp_path, settings, switches=("start_hook_takes_long",)) as home:
        home.until_running()
        assert [entry for entry in home.events("exited") if "worker" in entry] == []


def test_but_not_longer(tmp_path: Path) -> None:
    settings = replace(SETTINGS, workers=1, boot_timeout=3.0, import_timeout=3.5)
    with household(tmp_path, settings, switches=("start_hook_takes_long",)) as home:

        def deaths() -> list[str]:
            return [entry["cause"] for entry in home.events("exited") if "worker" in entry]

        until(deaths, timeout=20.0, what="the newborn to be killed")
        assert ": a hook on_worker_start has not returned" in deaths()[0]


def test_a_silent_keeper_is_replaced(tmp_path: Path) -> None:
    with household(tmp_path, replace(SETTINGS, keeper_silence=1.0)) as home:
        home.until_running()
        home.switches.set("keeper_is_silent")
        (death, *_) = until(lambda: home.events("exited"), timeout=10.0, what="the keeper to be killed")
        assert death["role"] == "keeper"
        assert "silent for more than 1 s" in death["cause"]
        home.switches.drop("keeper_is_silent")
        home.until_running()


@pytest.mark.parametrize("when", ["asleep", "in a turn"])
def test_a_node_that_was_stopped_and_continued_holds_it_against_nobody(tmp_path: Path, when: str) -> None:
    with household(tmp_path, replace(SETTINGS, keeper_silence=1.0)) as home:
        home.until_running()
        family = psutil.Process(home.pid).children(recursive=True)
        before = {process.pid for process in family}

        if when == "asleep":
            os.kill(home.pid, signal.SIGSTOP)
        else:
            home.switches.set("master_stops_in_a_turn")
        until(lambda: psutil.Process(home.pid).status() == psutil.STATUS_STOPPED, what="the stop")
        for process in family:
            process.suspend()
        time.sleep(4.0)
        os.kill(home.pid, signal.SIGCONT)
        until(lambda: home.events("stood_still"), what="the pause to be noticed")
        for process in family:
            process.resume()
        time.sleep(1.5)

        assert {process.pid for process in psutil.Process(home.pid).children(recursive=True)} == before
        assert home.events("exited") == []


def test_notices_reach_the_next_keeper_until_one_acknowledges(tmp_path: Path) -> None:
    switches = ("worker_holds_tasks", "keeper_does_not_acknowledge")
    with household(tmp_path, replace(SETTINGS, workers=1), switches=switches) as home:
        home.until_running()
        home.switches.drop("worker_holds_tasks")
        home.send(signal.SIGKILL, "worker 0")
        until(lambda: len(home.switches.notes("notices")) == 1, what="the first keeper to be told")
        home.switches.drop("keeper_does_not_acknowledge")
        home.send(signal.SIGKILL, "keeper")
        first, second = until(
            lambda: len(notices := home.switches.notes("notices")) == 2 and notices,
            what="the next one to be told",
        )
        assert first == second
        home.until_running()
        home.stop()
        assert home.exit_code == 0


def test_orphans_of_handlers_are_adopted_and_waited_for(tmp_path: Path) -> None:
    with household(tmp_path, replace(SETTINGS, workers=1), switches=("worker_has_subprocess",)) as home:
        home.until_running()
        known = {home.pid, *(home.pid_of(role) for role in ("worker 0", "keeper", "template"))}
        known |= {api["pid"] for api in home.status()["roles"]["api"]}
        (orphan,) = until(
            lambda: {child.pid for child in psutil.Process(home.pid).children()} - known,
            what="an adopted orphan",
        )
        os.kill(orphan, signal.SIGKILL)
        until(lambda: not psutil.pid_exists(orphan), what="the orphan to be reaped")
        assert home.until_running()["workers"][0]["restarts"] == 0


@pytest.mark.parametrize(
    "number",
    [signal.SIGHUP, signal.SIGTSTP, signal.SIGCONT, signal.SIGTTIN, signal.SIGTTOU, signal.SIGUSR1,
     signal.SIGUSR2, signal.SIGWINCH],
    ids=lambda number: number.name,
)  # fmt: skip
def test_other_signals_end_nobody(tmp_path: Path, number: signal.Signals) -> None:
    with household(tmp_path) as home:
        before = home.until_running()
        for pid in {home.pid, *(process.pid for process in psutil.Process(home.pid).children())}:
            with suppress(ProcessLookupError):  # one less is wanted after SIGTTOU
                os.kill(pid, number)
        home.stop()
        assert home.exit_code == 0
        # One that is only just born is ended by a signal, and not waited for.
        causes = {e["cause"] for e in home.events("exited") if e.get("worker") is not None}
        assert causes <= {"exited 0", "killed by signal 15 (SIGTERM)"}
        assert before["degraded"] == []


def test_a_store_that_fails_at_birth_is_retried_before_anybody_else_begins(tmp_path: Path) -> None:
    with household(tmp_path, has_store=True, switches=("store_fails",)) as home:
        until(lambda: len(home.events("exited")) >= 2, timeout=10.0, what="the store to fail twice")
        assert {death["role"] for death in home.events("exited")} == {"store"}
        assert any("store: died" in reason and "no room" in reason for reason in home.status()["degraded"])
        home.switches.drop("store_fails")
        home.until_running()


def test_a_password_in_why_the_node_gave_up_is_not_printed(tmp_path: Path) -> None:
    Switches(tmp_path).set("import_fails", "no answer from redis://app:geheim@db/0\nTraceback: line 1")
    with household(tmp_path) as home:
        assert home.wait(10.0) == 78
        assert "prefork-q: no answer from redis://app:***@db/0" in home.stderr()
        assert "Traceback: line 1" in home.stderr()
        assert "geheim" not in home.stderr()
