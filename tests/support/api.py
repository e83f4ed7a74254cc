"""A real api process under the test's hand, without the rest of a node; and raw HTTP to it."""

from __future__ import annotations

import http.client
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support.node import HANDLERS, Reply
from tests.support.server import dies_with_its_parent

START_TIMEOUT = 20.0


class Api:
    """One api process.

    Attributes:
        port: where it listens on 127.0.0.1; it also does at `unix_path`.
        pid: its process id.
    """

    def __init__(self, url: str, folder: Path, *, target: str = HANDLERS, **options: Any) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.log_path = folder / "api.log"
        self.unix_path = str(folder / "http.sock")
        self._flags = {
            "redis_url": url,
            "target": target,
            "state_dir": str(folder),
            "log_format": "json",
        } | options
        self._program: subprocess.Popen[str] | None = None
        self.port = 0
        self.pid = 0

    def start(self) -> Api:
        """Start it and wait until it serves."""
        word = self.begin()
        assert "ready" in word, (word, self.log())
        self.port, self.pid = word["ready"]["port"], word["ready"]["pid"]
        return self

    def begin(self) -> dict[str, Any]:
        """Start it and return its first word."""
        with self.log_path.open("ab") as log:
            self._program = subprocess.Popen(
                [
                    *dies_with_its_parent("KILL"),
                    sys.executable,
                    "-m",
                    "tests.support.api_master",
                    json.dumps(self._flags),
                    self.unix_path,
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        return self.word(START_TIMEOUT)

    def word(self, timeout: float = 10.0) -> dict[str, Any]:
        """Return the next word of the program that stands for its master."""
        assert self._program is not None
        assert self._program.stdout is not None
        ready, _, _ = select.select([self._program.stdout], [], [], timeout)
        assert ready, f"no word within {timeout:g} s\n{self.log()}"
        line = self._program.stdout.readline()
        assert line, f"it ended without a word\n{self.log()}"
        word: dict[str, Any] = json.loads(line)
        return word

    def tell(self, command: str) -> None:
        """Give a command, as the program describes."""
        assert self._program is not None
        assert self._program.stdin is not None
        self._program.stdin.write(command + "\n")
        self._program.stdin.flush()

    def exit_code(self, timeout: float = 10.0) -> int:
        """Wait for the end of the api process and return its exit code."""
        code: int = self.word(timeout)["exit_code"]
        return code

    def send(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def close(self) -> None:
        """End it, however it is. May be called again."""
        if self._program is None:
            return
        for stream in (self._program.stdin, self._program.stdout):
            if stream is not None:
                stream.close()
        try:
            self._program.wait(5)
        except subprocess.TimeoutExpired:
            os.kill(self.pid, signal.SIGKILL)
            self._program.wait(5)

    def log(self) -> str:
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def events(self, name: str) -> list[dict[str, Any]]:
        lines = [line for line in self.log().splitlines() if line.startswith("{")]
        return [event for line in lines if (event := json.loads(line))["event"] == name]

    # -- requests

    def http(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        headers: Mapping[str, str] | None = None,
        timeout: float = 15.0,
    ) -> Reply:
        """Make a request; `body` is sent as JSON, bytes as they are."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
        try:
            connection.request(method, path, body, dict(headers or {}))
            answer = connection.getresponse()
            names = {name.lower(): value for name, value in answer.getheaders()}
            return Reply(answer.status, names, answer.read())
        finally:
            connection.close()

    def connect(self, timeout: float = 10.0) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=timeout)

    def raw(self, *pieces: bytes, timeout: float = 10.0) -> list[int]:
        """Send bytes, read until the other end closes, and return the statuses of all answers.

        Raises:
            TimeoutError: it neither answered nor closed.
        """
        return statuses_in(self.raw_answer(*pieces, timeout=timeout))

    def raw_answer(self, *pieces: bytes, timeout: float = 10.0) -> bytes:
        deadline = time.monotonic() + timeout
        answer = b""
        with self.connect() as connection:
            for piece in pieces:
                try:
                    connection.sendall(piece)
                except (BrokenPipeError, ConnectionResetError):
                    # It has refused already.
                    break
            while True:
                connection.settimeout(max(0.01, deadline - time.monotonic()))
                try:
                    data = connection.recv(65_536)
                except ConnectionResetError:
                    return answer
                if not data:
                    return answer
                answer += data


def statuses_in(answer: bytes) -> list[int]:
    """Return the statuses of the answers that stand one after the other in `answer`."""
    return [int(status) for status in re.findall(rb"HTTP/1\.[01] (\d{3}) ", answer)]
