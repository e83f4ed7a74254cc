"""The protocol of sd_notify(3): what is sent, by whom, and that nothing waits."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from prefork_q.master.sdnotify import Notifier
from tests.support.notify import Manager

Notify = Callable[[str | None], Notifier]


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    with Manager(str(tmp_path / "notify")) as manager:
        yield manager


@pytest.fixture
def notify() -> Iterator[Notify]:
    """Makes notifiers, and closes them."""
    with ExitStack() as stack:

        def make(address: str | None) -> Notifier:
            notifier = Notifier(address)
            stack.callback(notifier.close)
            return notifier

        yield make


def test_each_message_says_what_the_manual_says(manager: Manager, notify: Notify) -> None:
    notifier = notify(manager.address)

    before = time.clock_gettime(time.CLOCK_MONOTONIC)
    notifier.ready("2/2 workers")
    notifier.status("3 tasks/s\nREADY=1")
    notifier.reloading("reloading")
    notifier.alive()
    notifier.extend(2.5)
    notifier.stopping("stopping")

    told = manager.received()
    assert told[0] == {"READY": "1", "STATUS": "2/2 workers"}
    assert told[1] == {"STATUS": "3 tasks/s READY=1"}  # one line, whatever stands in it
    assert (told[2]["RELOADING"], told[2]["STATUS"]) == ("1", "reloading")
    assert before * 1e6 <= int(told[2]["MONOTONIC_USEC"]) <= time.clock_gettime(time.CLOCK_MONOTONIC) * 1e6
    assert told[3:] == [
        {"WATCHDOG": "1"},
        {"EXTEND_TIMEOUT_USEC": "2500000"},
        {"STOPPING": "1", "STATUS": "stopping"},
    ]


def test_the_sender_is_the_process_itself(manager: Manager, notify: Notify) -> None:
    notify(manager.address).ready("here")

    manager.received()
    assert manager.senders == {os.getpid()}


def test_an_abstract_address_is_understood(notify: Notify) -> None:
    name = f"@prefork-q-test-{os.getpid()}"
    with Manager(name) as manager:
        notify(name).ready("abstract")
        assert manager.received() == [{"READY": "1", "STATUS": "abstract"}]


def test_what_the_environment_names_is_taken_out_of_it(manager: Manager) -> None:
    environ = {
        "NOTIFY_SOCKET": manager.address,
        "WATCHDOG_USEC": "3000000",
        "WATCHDOG_PID": str(os.getpid()),
        "A": "1",
    }

    notifier = Notifier.take(environ)
    is_open = notifier.is_open
    notifier.close()

    assert (is_open, notifier.watchdog, environ) == (True, 3.0, {"A": "1"})


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"WATCHDOG_USEC": "3000000"},
        {"NOTIFY_SOCKET": "/run/x", "WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "1"},
        {"NOTIFY_SOCKET": "/run/x", "WATCHDOG_USEC": "soon"},
        {"NOTIFY_SOCKET": "/run/x", "WATCHDOG_USEC": "0"},
    ],
)
def test_a_watchdog_that_is_not_ours_is_not_fed(environ: dict[str, str]) -> None:
    notifier = Notifier.take(environ)
    notifier.close()

    assert notifier.watchdog is None


def test_no_manager_and_one_that_is_gone_are_no_trouble(tmp_path: Path, notify: Notify) -> None:
    for address in (None, "", "relative", str(tmp_path / "nobody")):
        notifier = notify(address)
        notifier.ready("x")
        notifier.status("x")
        notifier.close()
        notifier.ready("x")


def test_a_manager_that_does_not_read_is_not_waited_for_and_misses_no_change(
    manager: Manager, notify: Notify
) -> None:
    notifier = notify(manager.address)
    began = time.monotonic()
    for _ in range(1_000):
        notifier.status("so it is")
    notifier.reloading("kept 1")
    notifier.ready("kept 2")
    assert time.monotonic() - began < 1.0

    manager.received()
    notifier.retry()

    assert [told.get("STATUS") for told in manager.received()] == ["kept 1", "kept 2"]


def test_a_program_started_by_the_process_cannot_notify(manager: Manager) -> None:
    environ = os.environ | {"NOTIFY_SOCKET": manager.address, "WATCHDOG_USEC": "1000000"}
    code = (
        "import os, subprocess, sys\n"
        "from prefork_q.master.sdnotify import Notifier\n"
        "Notifier.take(os.environ)\n"
        "subprocess.run([sys.executable, '-c', 'import os; print(sorted(os.environ))'], check=True)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True, timeout=30
    )
    assert "NOTIFY_SOCKET" not in done.stdout
    assert "WATCHDOG_USEC" not in done.stdout
