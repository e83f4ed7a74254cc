"""The control socket, over real sockets."""

from __future__ import annotations

import json
import os
import resource
import select
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from prefork_q.control.client import CommandFailed, NoAnswer, NotRunning, ask
from prefork_q.control.commands import COMMANDS, QUESTIONS, answer
from prefork_q.control.protocol import MAX_REQUEST, Request, encode_request
from prefork_q.control.server import LOOK, MAX_CLIENTS, ControlServer
from prefork_q.errors import ConfigurationError
from prefork_q.events import Events, Sink
from tests.support.until import until


class StandIn:
    """A node that answers from memory, as the master does."""

    def ping(self) -> dict[str, Any]:
        return {"pid": os.getpid()}

    def status(self) -> dict[str, Any]:
        return {"state": "running", "workers": [{"slot": 0}]}

    def metrics(self) -> dict[str, Any]:
        return {"long": "x" * 2_000_000}


class Fails(StandIn):
    def status(self) -> dict[str, Any]:
        raise ZeroDivisionError("a mistake")


@pytest.fixture
def events(tmp_path: Path) -> Iterator[Events]:
    sink = Sink.file(tmp_path / "log", patience=0.0)
    yield Events(sink, format="json", level="debug", process={})
    sink.close()


@contextmanager
def serving(path: Path, events: Events, node: StandIn | None = None) -> Iterator[ControlServer]:
    """Turn a server in a thread, as the master's loop would."""
    served = node or StandIn()
    server = ControlServer(path, events)
    server.open()
    server.serve(lambda request: answer(served, request.command, request.arguments))
    done = threading.Event()

    def loop() -> None:
        while not done.is_set():
            select.select([server], [], [], 0.02)
            server.turn()

    thread = threading.Thread(target=loop)
    thread.start()
    try:
        yield server
    finally:
        done.set()
        thread.join()
        server.close()


def talk(path: Path, data: bytes) -> dict[str, Any]:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(5)
        connection.connect(str(path))
        connection.sendall(data)
        received = b""
        while chunk := connection.recv(65_536):
            received += chunk
    reply: dict[str, Any] = json.loads(received)
    return reply


def test_commands_are_answered(tmp_path: Path, events: Events) -> None:
    path = tmp_path / "ctl.sock"
    with serving(path, events):
        assert ask(path, "ping") == {"pid": os.getpid()}
        assert ask(path, "status")["state"] == "running"
        assert ask(path, "workers") == [{"slot": 0}]
        assert len(ask(path, "metrics")["long"]) == 2_000_000


def test_every_command_has_a_help_text() -> None:
    assert all(command.help.endswith(".") and name == command.name for name, command in COMMANDS.items())


def test_what_cannot_be_done_is_told(tmp_path: Path, events: Events) -> None:
    path = tmp_path / "ctl.sock"
    with serving(path, events):
        with pytest.raises(CommandFailed, match="no command 'fly'; there are: ping") as failure:
            ask(path, "fly")
        assert failure.value.answer_code == "not_found"
        with pytest.raises(CommandFailed, match="takes no argument 'now'"):
            ask(path, "ping", {"now": True})


@pytest.mark.parametrize(
    "line",
    [
        b"{\n", b"[]\n", b"null\n", b'{"v":2,"command":"ping"}\n', b'{"v":1}\n', b'{"v":1,"command":7}\n',
        b'{"v":1,"command":"ping","arguments":[]}\n', b"\xff\xfe\n", b"[" * 30_000 + b"\n",
    ],
)  # fmt: skip
def test_what_is_no_request_is_refused(tmp_path: Path, events: Events, line: bytes) -> None:
    path = tmp_path / "ctl.sock"
    with serving(path, events):
        reply = talk(path, line)
        assert reply["ok"] is False
        assert reply["error"]["code"] == "invalid"
        assert ask(path, "ping")


def test_a_request_without_end_is_refused(tmp_path: Path, events: Events) -> None:
    path = tmp_path / "ctl.sock"
    with serving(path, events):
        assert talk(path, b"x" * (MAX_REQUEST + 1))["error"]["code"] == "too_large"


def test_a_request_in_pieces_is_answered(tmp_path: Path, events: Events) -> None:
    path = tmp_path / "ctl.sock"
    with serving(path, events), socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(5)
        connection.connect(str(path))
        for byte in b'{"v":1,"command":"ping"}\n':
            connection.send(bytes((byte,)))
            time.sleep(0.001)
        assert json.loads(connection.recv(65_536))["ok"] is True


def test_a_mistake_in_an_answer_ends_nobody(tmp_path: Path, events: Events) -> None:
    path = tmp_path / "ctl.sock"
    with serving(path, events, Fails()):
        with pytest.raises(CommandFailed, match="ZeroDivisionError: a mistake"):
            ask(path, "status")
        assert ask(path, "ping")
    assert "control_failed" in (tmp_path / "log").read_text()


def test_silent_clients_are_dropped_after_the_time_limit(tmp_path: Path, events: Events) -> None:
    path = tmp_path / "ctl.sock"
    with serving(path, events), socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(5)
        connection.connect(str(path))
        began = time.monotonic()
        assert connection.recv(1) == b""
        assert 1.5 < time.monotonic() - began < 4


def test_clients_that_do_not_read_keep_nobody_waiting(tmp_path: Path, events: Events) -> None:
    path = tmp_path / "ctl.sock"
    with serving(path, events), socket.socket(socket.AF_UNIX) as lazy:
        lazy.connect(str(path))
        lazy.sendall(b'{"v":1,"command":"metrics"}\n')
        assert ask(path, "ping")


def test_more_clients_than_there_is_room_for_are_all_answered(tmp_path: Path, events: Events) -> None:
    path = tmp_path / "ctl.sock"
    with serving(path, events):
        idle = [socket.socket(socket.AF_UNIX) for _ in range(MAX_CLIENTS)]
        for connection in idle[: MAX_CLIENTS // 2]:
            connection.connect(str(path))
        with ThreadPoolExecutor(100) as pool:
            answers = list(pool.map(lambda _: ask(path, "ping", timeout=10.0), range(200)))
        assert len(answers) == 200
        for connection in idle:
            connection.close()


def test_who_asks_at_the_same_moment_is_told_the_same(tmp_path: Path, events: Events) -> None:
    path = tmp_path / "ctl.sock"
    answered: list[str] = []

    def told(request: Request) -> object:
        answered.append(request.command)
        return {"number": len(answered)}

    server = ControlServer(path, events)
    server.open()
    server.serve(told, QUESTIONS)
    commands = ["status"] * 20 + ["reload"] * 3 + ["status"] * 20
    callers = [socket.socket(socket.AF_UNIX) for _ in commands]
    try:
        for caller, command in zip(callers, commands, strict=True):
            caller.connect(str(path))
            caller.sendall(encode_request(Request(command)))
        server.turn()
        # What changes something is done each time, and what is asked after it is looked up anew.
        assert answered == ["status", "reload", "reload", "reload", "status"]
        numbers = [json.loads(caller.recv(65_536))["data"]["number"] for caller in callers]
        assert numbers == [1] * 20 + [2, 3, 4] + [5] * 20
        with socket.socket(socket.AF_UNIX) as later:
            later.connect(str(path))
            later.sendall(encode_request(Request("status")))
            server.turn()
            assert json.loads(later.recv(65_536))["data"]["number"] == 6
    finally:
        for caller in callers:
            caller.close()
        server.close()


def test_without_descriptors_it_waits_a_moment_and_does_not_spin(tmp_path: Path, events: Events) -> None:
    path = tmp_path / "ctl.sock"
    server = ControlServer(path, events)
    server.open()
    server.serve(lambda request: answer(StandIn(), request.command, request.arguments))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        client.sendall(b'{"v":1,"command":"ping"}\n')
        highest = os.dup(0)
        os.close(highest)
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest, hard))
        try:
            server.turn()
            assert select.select([server], [], [], 0)[0] == []
            due = server.next_deadline()
            assert due is not None
            assert due - time.monotonic() < 1
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        client.settimeout(0.02)
        reply = b""
        for _ in range(100):
            server.turn()
            with suppress(TimeoutError):
                reply = client.recv(1000)
                break
        assert b'"ok":true' in reply
    server.close()


def test_another_version_of_the_protocol_is_refused_with_the_reason(tmp_path: Path, events: Events) -> None:
    path = tmp_path / "ctl.sock"
    with serving(path, events):
        reply = talk(path, b'{"v":2,"command":"ping"}\n')
    assert reply["error"]["detail"].startswith("version 2 of the protocol is not spoken here, only 1")


def test_the_socket_is_for_its_owner_and_group(tmp_path: Path, events: Events) -> None:
    path = tmp_path / "new" / "ctl.sock"
    with serving(path, events):
        assert stat.S_IMODE(path.stat().st_mode) == 0o660
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert not path.exists()


STRANGER = """
import os, socket, sys
s = socket.socket(socket.AF_UNIX)
os.setgroups([int(group) for group in sys.argv[2:]]); os.setgid(65534); os.setuid(65534)
s.connect(sys.argv[1])
try: s.sendall(b'{"v":1,"command":"ping"}\\n'); print(s.recv(1000).decode())
except OSError as error: print("hung up")
"""
"""Somebody else, who is in the groups that are named."""


def asked_by_a_stranger(path: Path, *groups: int) -> str:
    for folder in (path.parent, *path.parent.parents):
        if folder.stat().st_uid == os.geteuid() and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o011)
    command = [sys.executable, "-c", STRANGER, str(path), *map(str, groups)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_another_user_is_refused(tmp_path: Path, events: Events) -> None:
    path = tmp_path / "ctl.sock"
    with serving(path, events):
        path.chmod(0o666)
        said = asked_by_a_stranger(path, os.getegid() + 1)
    assert '"denied"' in said
    assert "control_refused" in (tmp_path / "log").read_text()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_who_is_in_the_group_among_others_is_answered(tmp_path: Path, events: Events) -> None:
    path = tmp_path / "ctl.sock"
    with serving(path, events):
        said = asked_by_a_stranger(path, os.getegid() + 1, os.getegid(), os.getegid() + 2)
    assert '"ok":true' in said


def test_what_a_dead_master_left_is_replaced(tmp_path: Path, events: Events) -> None:
    path = tmp_path / "ctl.sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    with pytest.raises(NotRunning):
        ask(path, "ping")
    with serving(path, events):
        assert ask(path, "ping")


@pytest.mark.parametrize("is_all_gone", [False, True], ids=["the socket", "the lock too"])
def test_a_socket_that_somebody_removed_is_made_again(
    tmp_path: Path, events: Events, is_all_gone: bool
) -> None:
    path = tmp_path / "ctl.sock"
    with serving(path, events):
        path.unlink()
        if is_all_gone:
            path.with_name("ctl.sock.lock").unlink()
        until(path.exists, 3 * LOOK, "the socket")
        assert ask(path, "ping") == {"pid": os.getpid()}
        with pytest.raises(ConfigurationError, match="another master answers"):
            ControlServer(path, events).open()
    assert not path.exists()


def test_a_second_master_is_refused(tmp_path: Path, events: Events) -> None:
    path = tmp_path / "ctl.sock"
    with serving(path, events):
        with pytest.raises(ConfigurationError, match="another master answers"):
            ControlServer(path, events).open()
        assert ask(path, "ping")


def test_a_path_that_must_not_be_used_is_refused(tmp_path: Path, events: Events) -> None:
    (tmp_path / "file").write_text("precious")
    with pytest.raises(ConfigurationError, match="is no socket"):
        ControlServer(tmp_path / "file", events).open()
    assert (tmp_path / "file").read_text() == "precious"

    with pytest.raises(ConfigurationError, match="longer than"):
        ControlServer(tmp_path / ("x" * 120), events).open()

    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(ConfigurationError, match="writable by everybody"):
        ControlServer(tmp_path / "open" / "ctl.sock", events).open()

    with pytest.raises(ConfigurationError, match="ctl_socket"):
        ControlServer(tmp_path / "file" / "ctl.sock", events).open()


def test_nobody_is_there(tmp_path: Path) -> None:
    with pytest.raises(NotRunning):
        ask(tmp_path / "ctl.sock", "ping")


def test_a_master_that_does_not_answer_is_given_up_in_time(tmp_path: Path) -> None:
    path = tmp_path / "ctl.sock"
    with socket.socket(socket.AF_UNIX) as mute:
        mute.bind(str(path))
        mute.listen(1)
        began = time.monotonic()
        with pytest.raises(NoAnswer, match="in time"):
            ask(path, "ping", timeout=0.5)
        assert time.monotonic() - began < 1.5


def test_something_else_that_listens_is_recognised(tmp_path: Path) -> None:
    path = tmp_path / "ctl.sock"
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        other.listen(1)

        def reply() -> None:
            connection, _ = other.accept()
            connection.recv(100)
            connection.sendall(b"-ERR unknown command\n")
            connection.close()

        thread = threading.Thread(target=reply)
        thread.start()
        with pytest.raises(NoAnswer, match="is no prefork-q master"):
            ask(path, "ping")
        thread.join()


def test_asking_needs_only_the_standard_library() -> None:
    script = (
        "import sys, prefork_q.control.client\n"
        "ours = {m.split('.')[0] for m in sys.modules if not m.startswith(('_', 'prefork_q'))}\n"
        "print(sorted(ours - set(sys.stdlib_module_names) - {'sitecustomize'}))"
    )
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "[]"


# -- peers that do not do their part


def connected(path: Path, stack: ExitStack) -> socket.socket:
    connection = stack.enter_context(socket.socket(socket.AF_UNIX))
    # With a timeout a full queue of the kernel is an error at once (connect(2)); so it is waited for.
    connection.connect(str(path))
    connection.settimeout(5)
    return connection


def said(connection: socket.socket) -> bytes:
    answer = b""
    while data := connection.recv(65_536):
        answer += data
    return answer


def test_three_hundred_silent_peers_keep_nobody_waiting(tmp_path: Path, events: Events) -> None:
    path = tmp_path / "ctl.sock"
    with serving(path, events), ExitStack() as stack:
        silent = [connected(path, stack) for _ in range(300)]
        assert ask(path, "ping", timeout=1.0) == StandIn().ping()
        # The oldest had to go for it.
        assert silent[0].recv(1) == b""


def test_who_has_asked_is_answered_whoever_comes_after(tmp_path: Path, events: Events) -> None:
    path = tmp_path / "ctl.sock"
    with serving(path, events), ExitStack() as stack:
        half = connected(path, stack)
        half.sendall(b'{"v":1,')
        whole = connected(path, stack)
        whole.sendall(encode_request(Request("status")))
        for _ in range(MAX_CLIENTS + 10):
            connected(path, stack)
        assert json.loads(said(whole))["data"] == StandIn().status()
        assert said(half) == b""


@pytest.mark.parametrize(("size", "is_taken"), [(MAX_REQUEST, True), (MAX_REQUEST + 1, False)])
def test_a_request_has_a_limit_that_its_end_does_not_lift(
    tmp_path: Path, events: Events, size: int, is_taken: bool
) -> None:
    path, line = tmp_path / "ctl.sock", encode_request(Request("ping")).strip()
    with serving(path, events), ExitStack() as stack:
        connection = connected(path, stack)
        connection.sendall(line + b" " * (size - len(line) - 1) + b"\n")
        answer = json.loads(said(connection))
    assert answer["ok"] is is_taken
    assert is_taken or answer["error"]["code"] == "too_large"
