"""A real node: `prefork-q run` as its own process, in its own session, folder and on its own port."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tests.support import leaks
from tests.support import ledger as ledgers
from tests.support.server import dies_with_its_parent, free_port
from tests.support.until import until

PROGRAM = Path(sys.executable).with_name("prefork-q")
HANDLERS = f"{Path(__file__).with_name('handlers.py')}:app"

START_TIMEOUT = 20.0
"""Seconds; a start takes about one on an idle machine."""

ROLES = ("template", "keeper", "api", "store")
LOG_END = 6_000
"""Characters of the log that go into a message."""


@dataclass(frozen=True, slots=True)
class Reply:
    """An HTTP answer."""

    status: int
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Node:
    """One `prefork-q run`.

    Args:
        url: of the Redis server, None for the embedded one.
        folder: where its state, its log and (unless given) its ledger go; made if missing.
        namespace: the namespace of its keys.
        target: the handlers; those of `tests.support.handlers` unless given.
        ledger: where the handlers note what they do; several nodes may share one.
        environ: more environment variables.
        prefix: words before its command, such as those of a program that starts it in another way.
        output: a descriptor that it writes its log to, not `log`.
        options: more options of `run`: `lease="2s"`, `no_http=True`, `queues="a,b"`; a list is repeated.
    """

    def __init__(
        self,
        url: str | None,
        folder: Path,
        *,
        namespace: str = "default",
        target: str | None = HANDLERS,
        workers: int = 2,
        threads: int = 1,
        ledger: Path | None = None,
        environ: Mapping[str, str] | None = None,
        prefix: Sequence[str] = (),
        output: int | None = None,
        **options: Any,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.state_dir = folder / "state"
        self.log_path = folder / "log"
        self.ctl_socket = self.state_dir / "ctl.sock"
        self.ledger = ledgers.Ledger(ledger or folder / "ledger")
        self.port = free_port()
        self.url = url
        self.namespace = namespace
        self._target = target
        self._prefix = prefix
        self._output = output
        self._options = {
            "redis_url": url,
            "namespace": namespace,
            "workers": workers,
            "threads": threads,
            "http": f"127.0.0.1:{self.port}",
            "state_dir": self.state_dir,
            "ctl_socket": self.ctl_socket,
            "log_format": "json",
        } | options
        if self._options.get("no_http"):
            del self._options["http"]
        self.environ = {
            **{name: value for name, value in os.environ.items() if not _is_setting(name)},
            ledgers.VARIABLE: str(self.ledger.path),
            "PREFORK_Q_CTL_SOCKET": str(self.ctl_socket),
            **(environ or {}),
        }
        self._process: subprocess.Popen[bytes] | None = None

    def command(self) -> list[str]:
        """The words that run it."""
        target = [] if self._target is None else [self._target]
        return [str(PROGRAM), "run", *target, *flags(self._options)]

    # -- life ---------------------------------------------------------------------------------------------

    def start(self, *, wait_ready: bool = True, timeout: float = START_TIMEOUT) -> Node:
        """Start it and, unless told otherwise, wait until all its processes are ready.

        Raises:
            AssertionError: it ended, or is not ready in time; the text ends with its log.
        """
        if self._process is not None and self._process.poll() is None:
            raise RuntimeError("the node runs already")
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [*dies_with_its_parent("TERM"), *self._prefix, *self.command()],
                cwd=self.folder,
                env=self.environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log if self._output is None else self._output,
                start_new_session=True,
            )
        leaks.watch_session(self._process.pid)
        if wait_ready:
            self.wait_ready(timeout)
        return self

    def wait_ready(self, timeout: float = START_TIMEOUT) -> None:
        """Wait until the node is running and each of its processes is ready."""
        try:
            until(self._is_ready, timeout, "a node that is ready", every=0.05)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.log_end()}") from error

    @property
    def pid(self) -> int:
        """The master's process id, also after its end."""
        if self._process is None:
            raise RuntimeError("the node was not started")
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """The master's exit code (negative: the signal that killed it), None while it runs."""
        return None if self._process is None else self._process.poll()

    def send(self, number: signal.Signals) -> None:
        """Send the master a signal."""
        os.kill(self.pid, number)

    def wait(self, timeout: float = 40.0) -> int:
        """Wait for the master's end and return its exit code."""
        assert self._process is not None
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the node did not end within {timeout:g} s\n{self.log_end()}") from None

    def stop(self, number: signal.Signals = signal.SIGTERM, timeout: float = 40.0) -> int:
        """Send the master a signal, SIGTERM unless given, and return its exit code."""
        self.send(number)
        return self.wait(timeout)

    def kill(self, role: str, number: signal.Signals = signal.SIGKILL) -> list[int]:
        """Send a signal to the processes of a role, SIGKILL unless given, and return their ids.

        Args:
            role: master, template, keeper, api, store, worker (all of them), worker:SLOT, or all: every
                process of the node, at once.
        """
        if role == "all":
            pids = [process.pid for process in self.processes()]
            os.killpg(self.pid, number)
        elif role == "master":
            pids = [self.pid]
            self.send(number)
        else:
            pids = self.pids()[role]
            for pid in pids:
                os.kill(pid, number)
        if number == signal.SIGKILL and role in ("all", "master"):
            self.wait(10)
        return pids

    def close(self) -> None:
        """End whatever is left of it, however it is. May be called again."""
        if self._process is None:
            return
        for process in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.wait(10)
        until(lambda: not self.leftovers(), 10, "an end of the node's processes")

    # -- looking ------------------------------------------------------------------------------------------

    def processes(self) -> list[psutil.Process]:
        """Every process of its session that runs; zombies do not."""
        return leaks.session(self.pid)

    def leftovers(self) -> list[str]:
        """A line for each process of its session that still runs; for after its end."""
        return [leaks.describe(process) for process in self.processes()]

    def cli(
        self, *arguments: str, timeout: float = 30.0, stdin: str = ""
    ) -> subprocess.CompletedProcess[str]:
        """Run `prefork-q` with these arguments, in the node's environment; never raises for its exit code."""
        return subprocess.run(
            [str(PROGRAM), *arguments],
            cwd=self.folder,
            env=self.environ,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def ctl(self, *arguments: str, timeout: float = 30.0) -> Any:
        """Run `prefork-q ctl ... --json` and return what it printed.

        Raises:
            AssertionError: it printed no JSON; a degraded node's exit code 1 is no error.
        """
        done = self.cli("ctl", *arguments, "--json", timeout=timeout)
        try:
            return json.loads(done.stdout)
        except ValueError:
            raise AssertionError(
                f"ctl {arguments} exited {done.returncode}: {done.stdout}{done.stderr}"
            ) from None

    def status(self) -> dict[str, Any]:
        """What `ctl status --json` says."""
        answer: dict[str, Any] = self.ctl("status")
        return answer

    def pids(self) -> dict[str, list[int]]:
        """The processes that run, by role: master, template, keeper, api, store, worker, and worker:SLOT."""
        status = self.status()
        found: dict[str, list[int]] = {"master": [status["pid"]], "worker": []}
        for name in ROLES:
            found[name] = [role["pid"] for role in _roles(status, name) if role["pid"]]
        for worker in status["workers"]:
            own = [worker["pid"]] if worker["pid"] else []
            found["worker"] += own
            found[f"worker:{worker['slot']}"] = own
        return found

    def log(self) -> str:
        """All that it wrote."""
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def log_end(self) -> str:
        """The end of what it wrote, for a message."""
        return f"--- end of {self.log_path} ---\n{self.log()[-LOG_END:]}"

    def events(self, name: str | None = None, **fields: Any) -> list[dict[str, Any]]:
        """The events in its log, or those of that name which have these fields."""
        found = []
        for line in self.log().splitlines(keepends=True):
            if not (line.startswith("{") and line.endswith("\n")):
                continue  # a traceback, or a line that is being written
            event = json.loads(line)
            if (name is None or event.get("event") == name) and fields.items() <= event.items():
                found.append(event)
        return found

    def wait_event(
        self, name: str, *, timeout: float = 10.0, count: int = 1, **fields: Any
    ) -> dict[str, Any]:
        """Wait until the log has that event with these fields `count` times, and return the last of them."""
        try:
            found = until(
                lambda: (events := self.events(name, **fields))[count - 1 :] and events,
                timeout,
                f"event {name!r} {fields or ''}",
                every=0.02,
            )
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.log_end()}") from None
        return found[count - 1]

    # -- tasks --------------------------------------------------------------------------------------------

    def http(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        headers: Mapping[str, str] | None = None,
        timeout: float = 10.0,
    ) -> Reply:
        """Make an HTTP request to its API; `body` is sent as JSON, bytes as they are.

        Raises:
            OSError, http.client.HTTPException: there was no answer.
        """
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        sent = dict(headers or {})
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
        if body is not None:
            sent.setdefault("Content-Type", "application/json")
        try:
            connection.request(method, path, body, sent)
            answer = connection.getresponse()
            names = {name.lower(): value for name, value in answer.getheaders()}
            return Reply(answer.status, names, answer.read())
        finally:
            connection.close()

    def submit(self, type: str, payload: Mapping[str, Any] | None = None, **options: Any) -> str:
        """Submit a task over HTTP and return its id; `options` as in `POST /tasks`."""
        reply = self.http("POST", "/tasks", {"type": type, "payload": dict(payload or {})} | options)
        assert reply.status in (200, 202), reply
        id: str = reply.json["id"]
        return id

    def submit_many(self, type: str, payloads: list[Mapping[str, Any]], **options: Any) -> list[str]:
        """Submit up to 1,000 tasks in one request and return their ids."""
        tasks = [{"type": type, "payload": dict(payload)} | options for payload in payloads]
        reply = self.http("POST", "/tasks/batch", {"tasks": tasks}, timeout=30)
        assert reply.status == 202, reply
        return [task["id"] for task in reply.json["tasks"]]

    def task(self, id: str, *, wait: float | None = None) -> dict[str, Any]:
        """What `GET /tasks/ID` says of a task; with `wait`, after its end or so many seconds."""
        suffix = "" if wait is None else f"?wait={wait:g}"
        reply = self.http("GET", f"/tasks/{id}{suffix}", timeout=(wait or 0) + 10)
        assert reply.status == 200, reply
        task: dict[str, Any] = reply.json
        return task

    def ended(self, id: str, timeout: float = 20.0) -> dict[str, Any]:
        """Wait for a task's end and return the task.

        Raises:
            AssertionError: it has not ended in time; the text ends with the node's log.
        """
        task = self.task(id, wait=timeout)
        assert task["status"] in ("succeeded", "dead", "cancelled"), f"{task}\n{self.log_end()}"
        return task

    def metrics(self) -> dict[str, Any]:
        """The numbers of the whole namespace, `GET /metrics` as JSON."""
        reply = self.http("GET", "/metrics", headers={"Accept": "application/json"})
        assert reply.status == 200, reply
        numbers: dict[str, Any] = reply.json
        return numbers

    def _is_ready(self) -> bool:
        if self.exit_code is not None:
            raise AssertionError(f"the node exited {self.exit_code}\n{self.log_end()}")
        if "http" in self._options and not self._answers_ready():  # cheaper than a command
            return False
        done = self.cli("ctl", "status", "--json")
        if done.returncode not in (0, 1) or not done.stdout:
            return False
        status = json.loads(done.stdout)
        processes = [*status["workers"], *(role for name in ROLES for role in _roles(status, name))]
        return status["state"] == "running" and all(process["state"] == "ready" for process in processes)

    def _answers_ready(self) -> bool:
        try:
            return self.http("GET", "/readyz").status == 200
        except (OSError, http.client.HTTPException):
            return False


def flags(options: Mapping[str, Any]) -> list[str]:
    """Write options as a command line's."""
    words: list[str] = []
    for name, value in options.items():
        flag = f"--{name.replace('_', '-')}"
        if value is True:
            words.append(flag)
        elif isinstance(value, list | tuple):
            for item in value:
                words += [flag, str(item)]
        elif value is not None and value is not False:
            words += [flag, str(value)]
    return words


def _roles(status: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    """The processes of a role in `ctl status`: one, several, or none."""
    role = status["roles"].get(name)
    return role if isinstance(role, list) else [role] if role else []


def _is_setting(name: str) -> bool:
    """Whether a variable would configure the node."""
    others = ("REDIS_URL", "STATE_DIRECTORY", "RUNTIME_DIRECTORY", "NOTIFY_SOCKET", "NO_COLOR")
    return name.startswith("PREFORK_Q_") or name in others
