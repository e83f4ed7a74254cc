"""A real Redis-compatible server under the test's hand: start, kill, pause, restart.

Two back ends with one face: `ProcessServer`, a process of this machine, and `ContainerServer`, through
Testcontainers. A restart keeps the data of a persistent server (append-only file, every write synced) and
the URL.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.support.flavours import Flavour
from tests.support.images import LABEL
from tests.support.until import until

START_TIMEOUT = 20.0
"""Seconds; a start takes 0.02 s, or 0.5 s in a container, on an idle machine."""

PORTS = range(20_000, 32_000)
"""Below the range that the kernel hands out to clients (from 32768), so a port stays free over a restart."""

PARTS = 8
"""Of the ports, for processes that run tests at the same time."""

PERSISTENT = ("--appendonly", "yes", "--appendfsync", "always")
VOLATILE = ("--appendonly", "no")
NEVER = Retry(NoBackoff(), 0)
ALWAYS = ("--save", "", "--protected-mode", "no")


def free_port() -> int:
    """Return a loopback port that nobody listens on, outside of the kernel's own choice.

    Each process of pytest-xdist has a part of its own, so that none takes what another has just found.
    """
    part = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) % PARTS
    size = len(PORTS) // PARTS
    for port in random.sample(PORTS[part * size : (part + 1) * size], k=100):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise RuntimeError("no free port among a hundred")


class ServerDied(Exception):
    """A server that was being started ended instead; the text ends with its log."""


class PortTaken(ServerDied):
    """Another took the port between the look and the start."""


class Server(ABC):
    """What tests do with a server.

    Attributes:
        flavour: redis-7.0, valkey-9, ...
        url: what prefork-q is given; the same after a restart.
    """

    through: ClassVar[str]

    def __init__(self, flavour: Flavour, *, is_persistent: bool, arguments: Sequence[str]) -> None:
        self.flavour = flavour.name
        self.version = flavour.version
        self._arguments = [*ALWAYS, *(PERSISTENT if is_persistent else VOLATILE), *arguments]
        self._clients: list[redis.Redis] = []

    @property
    @abstractmethod
    def url(self) -> str: ...

    @abstractmethod
    def start(self) -> None:
        """Start it, for the first time or after `kill` or `shut_down`; return when it has loaded its data."""

    @abstractmethod
    def kill(self) -> None:
        """End it with SIGKILL; the data stay."""

    @abstractmethod
    def shut_down(self) -> None:
        """End it with SIGTERM, which lets it finish; the data stay."""

    @abstractmethod
    def pause(self) -> None:
        """Stop it where it is: connections stay open, nothing is answered."""

    @abstractmethod
    def resume(self) -> None:
        """Let it go on after `pause`."""

    @abstractmethod
    def stop(self) -> None:
        """End it for good, however it is, and remove its data. May be called again."""

    @abstractmethod
    def log(self) -> str:
        """What the server wrote."""

    @property
    @abstractmethod
    def is_running(self) -> bool:
        """Whether it was started and not ended since; a paused one runs."""

    def restart(self) -> None:
        """End it in order, unless it was killed, and start it again with the same URL and data."""
        if self.is_running:
            self.shut_down()
        self.start()

    def client(self, **options: Any) -> redis.Redis:
        """Return a new client that never tries again by itself; closed with the server."""
        defaults: dict[str, Any] = {"socket_timeout": 10, "socket_connect_timeout": 10, "retry": NEVER}
        client = redis.Redis.from_url(self.url, **(defaults | options))
        self._clients.append(client)
        return client

    def answers(self) -> bool:
        """Tell whether it answers a PING now."""
        with redis.Redis.from_url(self.url, socket_timeout=1, retry=NEVER) as client:
            try:
                return bool(client.ping())
            except redis.AuthenticationError:
                return True
            except redis.RedisError:
                return False

    def empty(self) -> None:
        """Remove all data."""
        with redis.Redis.from_url(self.url, socket_timeout=10, retry=NEVER) as client:
            client.flushall()

    def _close_clients(self) -> None:
        while self._clients:
            self._clients.pop().close()

    def __repr__(self) -> str:
        return f"<{self.flavour} at {self.url}, {self.through}>"


class ProcessServer(Server):
    """A process of this machine, in its own folder, on a loopback port or a Unix socket."""

    through = "a process"

    def __init__(
        self,
        flavour: Flavour,
        folder: Path,
        *,
        is_persistent: bool = True,
        is_unix: bool = False,
        arguments: Sequence[str] = (),
    ) -> None:
        super().__init__(flavour, is_persistent=is_persistent, arguments=arguments)
        if flavour.binary is None:
            raise ValueError(f"{flavour.name} has no program on this machine")
        self._binary = flavour.binary
        self._folder = folder
        self._socket = folder / "redis.sock" if is_unix else None
        self._port: int | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"unix://{self._socket}" if self._socket else f"redis://127.0.0.1:{self._port}/0"

    @property
    def pid(self) -> int:
        """Its process id.

        Raises:
            RuntimeError: it does not run.
        """
        if self._process is None:
            raise RuntimeError("the server does not run")
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None

    def start(self) -> None:
        if self._process is not None:
            raise RuntimeError("the server runs already")
        self._folder.mkdir(parents=True, exist_ok=True)
        if self._socket or self._port:  # once it has an address it keeps it
            self._start()
            return
        for attempts_left in (4, 3, 2, 1, 0):
            self._port = free_port()
            try:
                self._start()
                return
            except PortTaken:
                if not attempts_left:
                    raise

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def shut_down(self) -> None:
        self._end(signal.SIGTERM)

    def pause(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def stop(self) -> None:
        self._close_clients()
        if self._process is not None:
            self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    def log(self) -> str:
        path = self._folder / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    def _start(self) -> None:
        address = (
            ["--port", "0", "--unixsocket", str(self._socket), "--unixsocketperm", "600"]
            if self._socket
            else ["--port", str(self._port), "--bind", "127.0.0.1"]
        )
        length_of_old_log = len(self.log())
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *dies_with_its_parent("KILL"),
                    self._binary,
                    *address,
                    "--dir",
                    str(self._folder),
                    *self._arguments,
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        try:
            until(
                lambda: self._answers_or_dies(length_of_old_log),
                START_TIMEOUT,
                "a server that answers",
                every=0.003,
            )
        except BaseException:
            if self._process is not None:
                self.kill()
            raise

    def _answers_or_dies(self, log_begins: int) -> bool:
        assert self._process is not None
        if self._process.poll() is None:
            return self.answers()
        log = self.log()[log_begins:]
        exit_code, self._process = self._process.returncode, None
        error = PortTaken if "Address already in use" in log else ServerDied
        raise error(f"{self._binary} exited {exit_code}: {log[-2000:]}")

    def _end(self, number: signal.Signals) -> None:
        process = self._process
        if process is None:
            raise RuntimeError("the server does not run")
        process.send_signal(number)
        process.send_signal(signal.SIGCONT)  # a paused one notices SIGTERM only then
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
        finally:
            self._process = None


class ContainerServer(Server):
    """A container, through Testcontainers, its port bound to a loopback port of this machine."""

    through = "Testcontainers"

    def __init__(
        self, flavour: Flavour, *, run: str, is_persistent: bool = False, arguments: Sequence[str] = ()
    ) -> None:
        super().__init__(flavour, is_persistent=is_persistent, arguments=arguments)
        if flavour.image is None:
            raise ValueError(f"{flavour.name} has no image")
        self._image = flavour.image
        self._run = run
        self._port: int | None = None
        self._container: Any = None

    @property
    def url(self) -> str:
        return f"redis://{self._container.get_container_host_ip()}:{self._port}/0"

    @property
    def is_running(self) -> bool:
        if self._container is None:
            return False
        self._container.reload()
        return self._container.status in ("running", "paused")

    def start(self) -> None:
        if self._container is None:
            self._create()
        else:
            self._container.get_wrapped_container().start()
        until(self.answers, START_TIMEOUT, "a container that answers")

    def kill(self) -> None:
        self._container.get_wrapped_container().kill()
        self._container.get_wrapped_container().wait(timeout=10)

    def shut_down(self) -> None:
        self._container.get_wrapped_container().stop(timeout=10)

    def pause(self) -> None:
        self._container.get_wrapped_container().pause()

    def resume(self) -> None:
        self._container.get_wrapped_container().unpause()

    def stop(self) -> None:
        self._close_clients()
        if self._container is not None:
            self._container.stop()
            self._container = None

    def log(self) -> str:
        return str(self._container.get_wrapped_container().logs().decode(errors="replace"))

    def _create(self) -> None:
        # Read when Testcontainers is imported. Its own reaper needs an image from a registry (ours is
        # `Engine.remove_containers`), and where `/.dockerenv` exists it would guess another address.
        os.environ.setdefault("TESTCONTAINERS_RYUK_DISABLED", "true")
        os.environ.setdefault("TESTCONTAINERS_CONNECTION_MODE", "docker_host")
        from docker.errors import APIError
        from testcontainers.community.redis import RedisContainer

        for attempts_left in (4, 3, 2, 1, 0):
            self._port = free_port()
            # For Valkey too: this class asks from outside, Valkey's runs a program that the image may lack.
            container = RedisContainer(self._image).with_command(self._arguments)
            container = container.with_kwargs(labels={LABEL: self._run})
            # An address, so that it is bound to loopback only; a port of our own, so that a restart keeps it.
            container.ports["6379"] = ("127.0.0.1", self._port)
            self._container = container
            try:
                container.start()
                return
            except APIError as error:
                self.stop()
                if not attempts_left or "port is already allocated" not in str(error):
                    raise


def dies_with_its_parent(signal_name: str) -> list[str]:
    """The words before a command that make the kernel send it a signal when the test process is gone."""
    # The kernel means the thread, not the process: what a test's short-lived thread starts would die with it.
    if threading.current_thread() is not threading.main_thread():
        return []
    setpriv = shutil.which("setpriv")  # util-linux; without it a killed test run leaves its servers
    return [setpriv, "--pdeathsig", signal_name, "--"] if setpriv else []
