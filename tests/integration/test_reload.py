"""Reloads, restarts, scale and quiet, by a real master over children that merely sleep."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from prefork_q.control.client import CommandFailed, ask
from tests.support.household import SETTINGS, Household, household
from tests.support.until import until

pytestmark = pytest.mark.usefixtures("single_threaded")


def pids(status: dict[str, Any]) -> list[int]:
    return [worker["pid"] for worker in status["workers"]]


def reload(home: Household) -> dict[str, Any]:
    """Ask for a reload, wait for its end and return what is known of it."""
    number = ask(home.socket, "reload")["number"]

    def end() -> dict[str, Any] | None:
        known: dict[str, Any] | None = home.status()["reload"]
        return known if known and known["number"] >= number and known["outcome"] != "running" else None

    return until(end, 30, "the end of the reload") or {}


@contextmanager
def watched(home: Household) -> Iterator[list[dict[str, Any]]]:
    """Look at the status all the time meanwhile."""
    seen: list[dict[str, Any]] = []
    is_over = threading.Event()

    def look() -> None:
        while not is_over.wait(0.01):
            seen.append(home.status())

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield seen
    finally:
        is_over.set()
        thread.join()


def test_a_reload_replaces_template_workers_and_api_and_leaves_no_gap(tmp_path: Path) -> None:
    with household(tmp_path) as home:
        before = home.until_running()

        with watched(home) as seen:
            home.send(signal.SIGHUP)
            until(lambda: home.status()["generation"] == 2, 20, "the new generation")
            after = home.until_running()

        assert {status["state"] for status in seen} <= {"running", "reloading"}
        assert all(worker["state"] == "ready" for status in seen for worker in status["workers"])
        assert all(status["roles"]["api"][0]["state"] == "ready" for status in seen)
        assert [worker["generation"] for worker in after["workers"]] == [2, 2]
        assert [worker["slot"] for worker in after["workers"]] == [0, 1]
        assert not set(pids(before)) & set(pids(after))
        assert before["roles"]["template"]["pid"] != after["roles"]["template"]["pid"]
        assert before["roles"]["api"][0]["pid"] != after["roles"]["api"][0]["pid"]
        assert before["roles"]["keeper"]["pid"] == after["roles"]["keeper"]["pid"]
        assert (after["reload"]["outcome"], after["reload"]["number"]) == ("done", 1)
        until(lambda: len(psutil.Process(home.pid).children()) == 5, 5, "an end of the old ones")
        for slot in (0, 1):
            lines = [e for e in home.events() if e.get("worker") == slot]
            (is_up,) = [i for i, e in enumerate(lines) if e["event"] == "ready" and e["gen"] == 2]
            (is_gone,) = [i for i, e in enumerate(lines) if e["event"] == "exited"]
            assert is_up < is_gone
        # What the dead ones counted stays.
        assert home.status()["totals"]["completed"] == 20
        assert home.stop() < 2
        assert home.exit_code == 0


def test_code_that_cannot_be_imported_leaves_everything_as_it_was(tmp_path: Path) -> None:
    with household(tmp_path) as home:
        before = home.until_running()
        home.switches.set("import_fails")

        outcome = reload(home)

        assert outcome["outcome"] == "failed"
        assert outcome["reason"] == "no module named 'handlers'"
        assert "Traceback: line 1" in outcome["traceback"]
        after = home.status()
        assert (after["generation"], after["state"]) == (1, "running")
        assert after["degraded"] == ["the last reload failed: no module named 'handlers'"]
        assert pids(after) == pids(before)
        (line,) = home.events("reload_failed")
        assert "Traceback: line 1" in line["traceback"]
        assert [e for e in home.events() if "traceback" in e] == [line]

        home.switches.drop("import_fails")
        assert reload(home)["outcome"] == "done"
        after = home.until_running()
        assert (after["generation"], after["degraded"]) == (2, [])


@pytest.mark.parametrize("switch", ["worker_dies_at_birth", "worker_hangs_at_birth"])
def test_workers_of_a_generation_that_do_not_get_ready_take_nobodys_place(
    tmp_path: Path, switch: str
) -> None:
    with household(tmp_path, replace(SETTINGS, boot_timeout=1.0)) as home:
        before = home.until_running()
        home.switches.set(switch)

        outcome = reload(home)

        assert outcome["outcome"] == "failed"
        assert outcome["reason"].startswith("worker 0 of the new generation: ")
        assert pids(home.status()) == pids(before)
        assert home.status()["roles"]["template"]["pid"] == before["roles"]["template"]["pid"]
        until(lambda: len(psutil.Process(home.pid).children()) == 5, 5, "an end of the new ones")


def test_a_reload_that_waits_for_redis_fails_in_time_and_names_it(tmp_path: Path) -> None:
    with household(tmp_path, replace(SETTINGS, boot_timeout=1.0)) as home:
        before = home.until_running()
        home.switches.set("redis_is_away")
        until(lambda: not home.status()["redis"]["reachable"], 5, "Redis to be away")
        # As a worker does that has no answer to its first claim.
        home.switches.set("worker_hangs_at_birth")

        outcome = reload(home)

        assert outcome["outcome"] == "failed"
        assert "not ready within 1 s: Redis is unreachable" in outcome["reason"]
        assert pids(home.status()) == pids(before)
        # One of the present generation waits as long as it takes.
        home.send(signal.SIGKILL, "worker 0")
        until(lambda: pids(home.status())[0] not in (None, pids(before)[0]), 5, "another worker")
        (waiting, _) = pids(home.status())
        time.sleep(2.0)
        assert home.status()["workers"][0]["pid"] == waiting


def test_a_wrong_configuration_starts_nothing(tmp_path: Path) -> None:
    with household(tmp_path) as home:
        before = home.until_running()
        home.switches.set("configuration_is_wrong")
        assert reload(home)["reason"] == "workers: write a number"
        assert pids(home.status()) == pids(before)
        assert home.status()["roles"]["template"]["restarts"] == 0


def test_another_configuration_reaches_keeper_and_number_of_workers(tmp_path: Path) -> None:
    with household(tmp_path) as home:
        before = home.until_running()
        home.switches.set("three_workers")
        assert reload(home)["outcome"] == "done"
        after = home.until_running()
        assert [worker["generation"] for worker in after["workers"]] == [2, 2, 2]
        assert after["roles"]["keeper"]["pid"] != before["roles"]["keeper"]["pid"]
        (death,) = [e for e in home.events("exited") if e.get("role") == "keeper"]
        assert death["cause"] == "exited 0"


def test_whoever_asks_during_a_reload_gets_one_more_after_it(tmp_path: Path) -> None:
    with household(tmp_path) as home:
        home.until_running()
        # Else the reload might be over before it is seen.
        home.switches.set("start_hook_takes_long")
        home.send(signal.SIGHUP)
        until(lambda: home.status()["state"] == "reloading", 5, "the reload")
        for _ in range(3):
            home.send(signal.SIGHUP)
            time.sleep(0.01)
        home.switches.drop("start_hook_takes_long")
        until(lambda: home.status()["generation"] == 3 and home.status()["state"] == "running", 30)
        assert len(home.events("reloaded")) == 2
        assert home.status()["reload"]["number"] == 2


def test_an_import_that_has_become_unsafe_is_reloaded_without_preloading(tmp_path: Path) -> None:
    with household(tmp_path) as home:
        home.until_running()
        home.switches.set("import_leaves_thread")
        assert reload(home)["outcome"] == "done"
        status = home.until_running()
        assert set(pids(status)) <= set(home.switches.notes("imports"))
        home.switches.drop("import_leaves_thread")
        assert reload(home)["outcome"] == "done"
        status = home.until_running()
        assert not set(pids(status)) & set(home.switches.notes("imports"))


def test_a_replaced_worker_that_does_not_leave_is_shown_and_killed(tmp_path: Path) -> None:
    with household(tmp_path, replace(SETTINGS, drain_timeout=1.5)) as home:
        before = home.until_running()
        home.switches.set("worker_ignores_drain")
        old = pids(before)
        ask(home.socket, "restart", {"worker": 0})
        until(lambda: home.status()["leaving"], 10, "somebody who leaves")
        status = home.status()
        assert [(w["slot"], w["pid"], w["state"]) for w in status["leaving"]] == [(0, old[0], "draining")]
        assert (status["workers"][0]["state"], status["degraded"]) == ("ready", [])
        until(lambda: not home.status()["leaving"], 5, "its end")
        (death,) = [e for e in home.events("exited") if e["pid"] == old[0]]
        assert death["cause"] == "killed by signal 9 (SIGKILL): the time to leave is over"
        assert pids(home.status())[1] == old[1]


def test_a_stop_in_the_middle_of_a_reload_leaves_nobody(tmp_path: Path) -> None:
    with household(tmp_path) as home:
        home.until_running()
        home.send(signal.SIGHUP)
        until(lambda: home.events("reload_began"), 5, "the reload")
        home.known |= {process.pid for process in psutil.Process(home.pid).children(recursive=True)}
        home.stop()
        assert home.exit_code == 0
        assert home.left() == []


def test_a_restarted_worker_has_a_successor_before_it_leaves(tmp_path: Path) -> None:
    with household(tmp_path) as home:
        old = pids(home.until_running())
        with watched(home) as seen:
            assert ask(home.socket, "restart", {"worker": 1}) == {"worker": 1, "pid": old[1]}
            until(lambda: pids(home.status())[1] != old[1], 10, "another worker")
        assert all(worker["state"] == "ready" for status in seen for worker in status["workers"])
        assert pids(home.status())[0] == old[0]
        assert home.status()["totals"]["crashes"] == 0
        with pytest.raises(CommandFailed, match="there is no worker 7; there are: 0, 1"):
            ask(home.socket, "restart", {"worker": 7})
        with pytest.raises(CommandFailed, match="worker is a number"):
            ask(home.socket, "restart", {"worker": "1"})


def test_the_number_of_workers_can_be_changed(tmp_path: Path) -> None:
    with household(tmp_path) as home:
        first = pids(home.until_running())
        assert ask(home.socket, "scale", {"to": "+2"}) == {"workers": 4, "before": 2}
        assert pids(home.until_running())[:2] == first
        assert ask(home.socket, "scale", {"to": "1"})["workers"] == 1
        until(lambda: len(psutil.Process(home.pid).children()) == 4, 10, "an end of three")
        assert pids(home.until_running()) == first[:1]
        home.send(signal.SIGTTIN)
        until(lambda: len(home.until_running()["workers"]) == 2, 10, "one more")
        home.send(signal.SIGTTOU)
        until(lambda: len(home.until_running()["workers"]) == 1, 10, "one less")
        # There always is one.
        home.send(signal.SIGTTOU)
        for wrong in ("0", "-1", "65", "two", "", "1.5"):
            with pytest.raises(CommandFailed):
                ask(home.socket, "scale", {"to": wrong})
        assert pids(home.until_running()) == first[:1]
        assert {e["cause"] for e in home.events("exited")} == {"exited 0"}


def test_a_place_that_is_given_up_and_wanted_again_is_filled_at_once(tmp_path: Path) -> None:
    with household(tmp_path, replace(SETTINGS, drain_timeout=8.0)) as home:
        old = pids(home.until_running())
        home.switches.set("worker_ignores_drain")
        ask(home.socket, "scale", {"to": "1"})
        assert ask(home.socket, "scale", {"to": "2"}) == {"workers": 2, "before": 1}
        status = home.until_running()
        assert status["workers"][1]["pid"] != old[1]
        assert [worker["pid"] for worker in status["leaving"]] == [old[1]]
        until(lambda: not home.status()["leaving"], 15, "its end")


def test_quiet_reaches_all_workers_and_those_that_come_later(tmp_path: Path) -> None:
    with household(tmp_path) as home:
        home.until_running()
        home.send(signal.SIGTSTP)
        until(lambda: home.status()["state"] == "quiet", 5, "quiet")
        until(lambda: len(home.switches.notes("told")) == 2, 5, "both workers to be told")
        ask(home.socket, "quiet")
        home.send(signal.SIGKILL, "worker 0")
        until(lambda: len(home.switches.notes("told")) == 3, 5, "the new one to be told")
        home.send(signal.SIGCONT)
        until(lambda: home.status()["state"] == "running", 5, "the end of quiet")
        until(lambda: len(home.switches.notes("told")) == 5, 5, "both workers to be told")
        assert {word for _, word in home.switches.notes("told")} == {"Quiet", "Resume"}


def test_who_was_stopped_while_quiet_is_quiet_when_continued(tmp_path: Path) -> None:
    with household(tmp_path) as home:
        home.until_running()
        ask(home.socket, "quiet")
        os.kill(home.pid, signal.SIGSTOP)
        time.sleep(4.0)
        os.kill(home.pid, signal.SIGCONT)
        until(lambda: home.events("stood_still"), 5, "the pause to be noticed")
        assert home.status()["state"] == "quiet"
        assert ask(home.socket, "resume") == {"state": "running"}


def test_a_crash_loop_is_told_once_when_it_begins_and_once_when_it_ends(tmp_path: Path) -> None:
    with household(tmp_path, switches=("worker_dies_at_birth",)) as home:
        until(lambda: len(home.events("exited")) >= 6, 20, "three deaths of each")
        (told,) = until(lambda: home.events("degraded"), 5, "the loop to be told")
        assert (told["ready"], told["reason"]) == ("0/2", "exited 3")
        assert "workers: 0 of 2 ready" in home.status()["degraded"]
        home.switches.drop("worker_dies_at_birth")
        home.until_running()
        until(lambda: home.events("recovered"), 5, "the end to be told")
        assert len(home.events("degraded")) == 1


def test_nothing_is_changed_any_more_while_the_node_stops(tmp_path: Path) -> None:
    with household(tmp_path) as home:
        home.until_running()
        home.switches.set("worker_ignores_drain")
        assert ask(home.socket, "drain") == {"pid": home.pid, "state": "draining"}
        for command in ({"reload": {}}, {"scale": {"to": "3"}}, {"quiet": {}}, {"restart": {"worker": 0}}):
            ((name, arguments),) = command.items()
            with pytest.raises(CommandFailed, match="the node stops"):
                ask(home.socket, name, arguments)
        home.send(signal.SIGHUP)
        assert home.wait() == 0
        assert home.events("reload_began") == []


def test_a_reload_does_not_wait_for_a_replacement_that_cannot_succeed(tmp_path: Path) -> None:
    with household(tmp_path) as home:
        before = home.until_running()
        # The code is mended meanwhile, and that is what the reload is for.
        home.switches.set("these_die_at_birth", "1.0")
        ask(home.socket, "restart", {"worker": 0})
        until(lambda: len(home.events("exited")) >= 2, 10, "heirs that die")
        assert pids(home.status()) == pids(before)

        assert reload(home)["outcome"] == "done"

        after = home.until_running()
        assert (after["generation"], after["degraded"]) == (2, [])
        assert not set(pids(after)) & set(pids(before))


def test_a_replacement_that_a_failed_reload_has_put_off_goes_on(tmp_path: Path) -> None:
    with household(tmp_path) as home:
        before = home.until_running()
        home.switches.set("these_die_at_birth", "1.0 2.0")
        ask(home.socket, "restart", {"worker": 0})
        until(lambda: len(home.events("exited")) >= 2, 10, "heirs that die")
        assert reload(home)["outcome"] == "failed"

        home.switches.drop("these_die_at_birth")

        until(lambda: pids(home.status())[0] not in (None, pids(before)[0]), 40, "the restart")
        assert home.status()["generation"] == 1


def test_the_next_reload_does_not_wait_for_one_whose_workers_cannot_start(tmp_path: Path) -> None:
    with household(tmp_path) as home:
        before = home.until_running()
        # The proof works, and what comes after it does not.
        home.switches.set("these_die_at_birth", "2.1")
        ask(home.socket, "reload")
        until(lambda: [e for e in home.events("exited") if e.get("worker") == 1], 10, "an heir that dies")
        assert home.status()["reload"]["outcome"] == "running"

        assert reload(home)["outcome"] == "done"

        (stuck,) = home.events("reload_failed")
        assert stuck["reason"].startswith("worker 1 of the new generation cannot start: exited 3")
        after = home.until_running()
        assert after["generation"] == 3
        assert not set(pids(after)) & set(pids(before))


def test_after_a_stuck_reload_and_one_that_fails_nobody_keeps_the_old_code(tmp_path: Path) -> None:
    with household(tmp_path, replace(SETTINGS, workers=3)) as home:
        before = home.until_running()
        home.switches.set("these_die_at_birth", "2.1 3.0")
        ask(home.socket, "reload")
        until(lambda: [e for e in home.events("exited") if e.get("worker") == 1], 10, "an heir that dies")
        assert reload(home)["outcome"] == "failed"

        home.switches.drop("these_die_at_birth")

        until(lambda: not set(pids(home.status())) & set(pids(before)), 40, "heirs of all")
        assert home.status()["generation"] == 2


def test_a_reload_that_has_lost_its_template_gives_way_to_the_next(tmp_path: Path) -> None:
    with household(tmp_path, replace(SETTINGS, workers=3)) as home:
        before = home.until_running()
        # One that is on its way when the template dies, and one after it that nobody can make.
        home.switches.set("these_wait_at_birth", "2.1")
        ask(home.socket, "reload")
        until(lambda: home.switches.notes("waiting"), 20, "the last heir that there is a template for")
        home.switches.set("import_fails")
        home.send(signal.SIGKILL, "template")
        until(lambda: home.events("failed"), 10, "a template that cannot import")
        home.switches.drop("these_wait_at_birth")
        until(lambda: pids(home.status())[1] not in (None, pids(before)[1]), 10, "the heir to be ready")
        assert home.status()["reload"]["outcome"] == "running"

        assert reload(home)["number"] == 2

        (stuck, other) = home.events("reload_failed")
        assert stuck["reason"].startswith("template of the new generation cannot start: exited 78")
        assert other["reason"] == "no module named 'handlers'"
        home.switches.drop("import_fails")
        until(lambda: not set(pids(home.status())) & set(pids(before)), 40, "heirs of all")


def test_an_heir_of_the_old_code_gets_no_place_after_a_reload(tmp_path: Path) -> None:
    with household(tmp_path) as home:
        home.until_running()
        home.switches.set("these_wait_at_birth", "1.1")
        ask(home.socket, "restart", {"worker": 1})
        until(lambda: home.switches.notes("waiting"), 10, "an heir")
        home.send(signal.SIGKILL, "worker 1")
        until(lambda: home.status()["workers"][1]["pid"] is None, 10, "the end of who had the place")

        assert reload(home)["outcome"] == "done"

        home.switches.drop("these_wait_at_birth")
        status = home.until_running()
        assert [worker["generation"] for worker in status["workers"]] == [2, 2]
        assert [e["gen"] for e in home.events("ready") if e.get("worker") == 1] == [1, 2]


def test_a_password_in_what_the_new_code_says_is_not_shown(tmp_path: Path) -> None:
    with household(tmp_path) as home:
        home.until_running()
        home.switches.set("import_fails", "no answer from redis://app:geheim@db/0\nTraceback: line 1")

        outcome = reload(home)

        assert outcome["reason"] == "no answer from redis://app:***@db/0"
        assert "Traceback: line 1" in outcome["traceback"]
        assert "geheim" not in str(home.status())
