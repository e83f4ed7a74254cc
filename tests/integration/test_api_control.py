"""The control socket that the API asks, beside peers that do not do their part."""

from __future__ import annotations

import json
import select
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from prefork_q.control.client import ask
from prefork_q.control.protocol import MAX_REQUEST, Request, encode_request
from prefork_q.control.server import MAX_CLIENTS, ControlServer
from prefork_q.events import Events, Sink


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    """Where a server answers whose loop is a thread of the test."""
    sink = Sink.file(tmp_path / "log", patience=0.0)
    server = ControlServer(tmp_path / "ctl.sock", Events(sink, format="json", level="debug", process={}))
    server.open()
    server.serve(lambda request: {"command": request.command})
    done = threading.Event()

    def loop() -> None:
        while not done.is_set():
            select.select([server], [], [], 0.02)
            server.turn()

    thread = threading.Thread(target=loop)
    thread.start()
    yield tmp_path / "ctl.sock"
    done.set()
    thread.join()
    server.close()
    sink.close()


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


def test_three_hundred_silent_peers_keep_nobody_waiting(path: Path) -> None:
    with ExitStack() as stack:
        silent = [connected(path, stack) for _ in range(300)]
        began = time.monotonic()
        assert ask(path, "ping", timeout=2.0) == {"command": "ping"}
        assert time.monotonic() - began < 1
        # The oldest had to go for it.
        assert silent[0].recv(1) == b""


def test_who_has_asked_is_answered_whoever_comes_after(path: Path) -> None:
    with ExitStack() as stack:
        half = connected(path, stack)
        half.sendall(b'{"v":1,')
        whole = connected(path, stack)
        whole.sendall(encode_request(Request("status")))
        for _ in range(MAX_CLIENTS + 10):
            connected(path, stack)
        assert json.loads(said(whole))["data"] == {"command": "status"}
        assert said(half) == b""


@pytest.mark.parametrize(("size", "is_taken"), [(MAX_REQUEST, True), (MAX_REQUEST + 1, False)])
def test_a_request_has_a_limit_that_its_end_does_not_lift(path: Path, size: int, is_taken: bool) -> None:
    line = encode_request(Request("ping")).strip()
    with ExitStack() as stack:
        connection = connected(path, stack)
        connection.sendall(line + b" " * (size - len(line) - 1) + b"\n")
        answer = json.loads(said(connection))
    assert answer["ok"] is is_taken
    assert is_taken or answer["error"]["code"] == "too_large"
