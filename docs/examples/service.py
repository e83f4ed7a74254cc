"""The service as the demonstration uses it: the installed program, and its HTTP API."""

from __future__ import annotations

import ctypes
import http.client
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil

START_TIMEOUT = 45.0
DRAIN_TIMEOUT = 10.0
"""Seconds that running tasks get to end when the service is stopped."""
STOP_TIMEOUT = DRAIN_TIMEOUT + 5.0
REQUEST_TIMEOUT = 30.0
LOOK = 0.05
"""Seconds between two looks at something that has no event to wait for."""


class ServiceFailed(Exception):
    """The service did not do what it should; the text says what and shows the end of its log."""


class Service:
    """`prefork-q run` with the embedded store, on a free port, with all its files below `folder`.

    A context manager: entered, the service is ready; left, it has stopped cleanly.

    Raises:
        ServiceFailed: it does not get ready, answers with an error, or does not stop as it should.
    """

    def __init__(self, target: str, folder: Path) -> None:
        self._log = folder / "service.log"
        self._command = [
            str(Path(sys.executable).with_name("prefork-q")), "run", target,
            "--embedded", "--state-dir", str(folder / "state"), "--http", "127.0.0.1:0",
            "--drain-timeout", f"{DRAIN_TIMEOUT:g}s", "--log-format", "json",
        ]  # fmt: skip
        self._connection: http.client.HTTPConnection | None = None
        self.stop_seconds = 0.0

    def __enter__(self) -> Service:
        # A session of its own: Ctrl-C reaches the demonstration alone, which then stops the
        # service with one signal; a second one would mean 'now'.
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                env=clean_environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=end_with_parent,
            )
        try:
            self.host, self.port = self._wait_for_address()
            self._wait_until_ready()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        problem = self._stop()
        if problem and error is None:
            raise ServiceFailed(f"{problem}\n{self.log_end()}")

    @property
    def pid(self) -> int:
        """The master's."""
        return self._process.pid

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    def request(self, method: str, path: str, body: Any = None) -> Any:
        """Send one request on the kept connection and return the answer's JSON."""
        status, answer = self._exchange(method, path, body)
        if status >= 400:
            raise ServiceFailed(f"{method} {path}: {status} {answer.get('detail', answer)}\n{self.log_end()}")
        return answer

    def log_end(self, lines: int = 20) -> str:
        """Return the last lines of the service's log."""
        text = self._log.read_text(encoding="utf-8", errors="replace") if self._log.exists() else ""
        return "\n".join(text.splitlines()[-lines:]) or "(its log is empty)"

    def _exchange(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        if self._connection is None:
            self._connection = http.client.HTTPConnection(self.host, self.port, timeout=REQUEST_TIMEOUT)
        headers = {"Accept": "application/json"}
        data = None
        if body is not None:
            headers["Content-Type"] = "application/json"
            data = json.dumps(body, ensure_ascii=False).encode()
        self._connection.request(method, path, data, headers)
        response = self._connection.getresponse()
        return response.status, json.loads(response.read() or b"null")

    def _wait_for_address(self) -> tuple[str, int]:
        """Read the log until it names the address that the API listens on."""
        deadline = time.monotonic() + START_TIMEOUT
        while time.monotonic() < deadline:
            for line in self._log.read_text(encoding="utf-8").splitlines() if self._log.exists() else ():
                if '"event":"listening"' in line:
                    host, _, port = json.loads(line)["http"].rpartition(":")
                    return host, int(port)
            if self._process.poll() is not None:
                raise ServiceFailed(f"the service ended with {self._process.returncode}\n{self.log_end()}")
            time.sleep(LOOK)
        raise ServiceFailed(f"the service named no address within {START_TIMEOUT:g} s\n{self.log_end()}")

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT
        while time.monotonic() < deadline:
            status, _ = self._exchange("GET", "/readyz", None)
            if status == 200:
                return
            if self._process.poll() is not None:
                raise ServiceFailed(f"the service ended with {self._process.returncode}\n{self.log_end()}")
            time.sleep(LOOK)
        raise ServiceFailed(f"no worker was ready within {START_TIMEOUT:g} s\n{self.log_end()}")

    def _stop(self) -> str | None:
        """Stop the service; return what was wrong with the way it went, or None."""
        if self._connection:
            self._connection.close()
        started = time.monotonic()
        self._process.send_signal(signal.SIGTERM)
        try:
            code = self._process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            os.killpg(self.pid, signal.SIGKILL)
            self._process.wait()
            return f"the service did not stop within {STOP_TIMEOUT:g} s and was killed"
        self.stop_seconds = time.monotonic() - started
        if left := self._left():
            return f"the service ended with {code} and left processes behind: {left}"
        return f"the service ended with {code}, not 0" if code else None

    def _left(self) -> list[int]:
        """The processes of the service's session that still live."""
        return [process.pid for process in psutil.process_iter() if is_alive_in(process, self.pid)]


def is_alive_in(process: psutil.Process, session: int) -> bool:
    try:
        return os.getsid(process.pid) == session and process.status() != psutil.STATUS_ZOMBIE
    except (ProcessLookupError, psutil.NoSuchProcess):
        return False


def clean_environment() -> dict[str, str]:
    """The environment without what would configure the service in another way."""
    foreign = ("REDIS_URL", "RUNTIME_DIRECTORY", "STATE_DIRECTORY", "NOTIFY_SOCKET")
    kept = (name for name in os.environ if name not in foreign and not name.startswith("PREFORK_Q_"))
    return {name: os.environ[name] for name in kept}


def end_with_parent() -> None:
    """Runs in the new process: SIGTERM when the demonstration dies, even by SIGKILL (PR_SET_PDEATHSIG)."""
    ctypes.CDLL(None).prctl(1, int(signal.SIGTERM))
