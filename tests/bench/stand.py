"""The stand: a server of its own, and contenders that are started on it, watched and ended."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil

from prefork_q.connection import connect
from tests.bench.contenders import Contender
from tests.bench.environments import environment
from tests.bench.peers import ledger
from tests.support.server import dies_with_its_parent, free_port

PEERS = Path(__file__).with_name("peers")
ROOT = Path(__file__).parents[2]
DRIVE_TIMEOUT = 300.0


def server_binary(kind: str) -> str:
    """Return the program of a server: `redis` from PATH, `valkey` from the embedded extra.

    Raises:
        FileNotFoundError: there is none.
    """
    if kind == "valkey":
        from prefork_q.store import find_server

        return str(find_server().path)
    found = shutil.which("redis-server")
    if found is None:
        raise FileNotFoundError("redis-server is not on PATH")
    return found


class Stand:
    """A server without persistence on a loopback port, as all contenders reach it."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.folder = folder
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self.ledger = folder / "ledger.cells"
        binary = server_binary(kind)
        self._server = subprocess.Popen(
            [
                *dies_with_its_parent("KILL"),
                binary,
                "--port",
                str(self.port),
                "--bind",
                "127.0.0.1",
                "--save",
                "",
                "--appendonly",
                "no",
                "--dir",
                str(folder),
            ],
            stdout=subprocess.DEVNULL,
        )
        self.redis: Any = connect(self.url, timeout=60)
        for _ in range(500):
            with contextlib.suppress(Exception):
                self.redis.ping()
                break
            time.sleep(0.01)
        info = self.redis.info("server")
        self.version = (
            f"{info.get('server_name', 'redis')} {info.get('valkey_version') or info['redis_version']}"
        )

    def close(self) -> None:
        self._server.kill()
        self._server.wait(10)

    def clean(self) -> None:
        """Begin anew: nothing stored, nothing noted."""
        self.redis.flushall(asynchronous=False)
        self.redis.config_resetstat()
        ledger.create(self.ledger)
        for counted in self.folder.glob("ledger.cells.node.*"):
            counted.unlink()
        ledger._maps.pop(str(self.ledger), None)

    def count(self) -> int:
        """How many calls of handlers were noted since `clean`."""
        done = ledger.total(ledger.view(self.ledger))
        for counted in self.folder.glob("ledger.cells.node.*"):
            done += int(counted.read_text().strip() or 0)
        return done

    def lines(self) -> list[list[float]]:
        return ledger.lines(self.ledger)

    # -- contenders

    def environ(self, contender: Contender, more: Mapping[str, str] | None = None) -> dict[str, str]:
        kept = {
            name: value for name, value in os.environ.items() if not re.match("PREFORK_Q|REDIS|BENCH", name)
        }
        return {
            **kept,
            "BENCH_REDIS": self.url,
            "BENCH_LEDGER": str(self.ledger),
            # This checkout's code, whatever the environment has installed.
            "PYTHONPATH": f"{PEERS}{os.pathsep}{ROOT}" if contender.is_project else str(PEERS),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONWARNINGS": "ignore",
            "BENCH_NODE_MODULES": str(environment("bullmq-node")) if contender.is_node else "",
            **contender.environ,
            **(more or {}),
        }

    def drive(self, contender: Contender, *arguments: str) -> dict[str, float]:
        """Run the contender's submitter; return what it answers.

        Raises:
            RuntimeError: it failed.
        """
        if contender.is_node:
            command = ["node", str(PEERS / contender.module), *arguments]
        else:
            python = str(environment(contender.library) / "bin" / "python")
            command = [python, str(PEERS / "drive.py"), contender.module, *arguments]
        done = subprocess.run(
            command,
            env=self.environ(contender),
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=DRIVE_TIMEOUT,
            check=False,
        )
        if done.returncode != 0:
            raise RuntimeError(f"{contender.name}: {' '.join(arguments)} failed\n{done.stderr[-2000:]}")
        answer: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
        return answer

    @contextlib.contextmanager
    def running(
        self, contender: Contender, *, more: Mapping[str, str] | None = None, workers: int | None = None
    ) -> Iterator[Workers]:
        """Start the contender's workers; end them and all that they started."""
        own = self.folder / "own"
        shutil.rmtree(own, ignore_errors=True)
        own.mkdir()
        places = {
            "bin": environment(contender.library) / "bin",
            "folder": own,
            "redis": self.url,
            "port": free_port(),
            "peers": PEERS,
        }
        environ = self.environ(contender, more)
        with (own / "output").open("wb") as output:
            started = [
                subprocess.Popen(
                    [
                        *dies_with_its_parent("KILL"),
                        *(word.format(**places) for word in with_workers(command, workers)),
                    ],
                    env=environ,
                    cwd=own,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )
                for command in contender.commands
            ]
            running = Workers(contender, started, own)
            try:
                yield running
            finally:
                running.end()


def with_workers(command: tuple[str, ...], workers: int | None) -> tuple[str, ...]:
    """Return a command with another number of worker processes, where it starts them itself."""
    if workers is None:
        return command
    words = list(command)
    for option in ("--workers", "--concurrency", "--processes", "-w"):
        if option in words:
            words[words.index(option) + 1] = str(workers)
    return tuple(words)


class Workers:
    """The running processes of a contender."""

    def __init__(self, contender: Contender, started: list[subprocess.Popen[bytes]], folder: Path) -> None:
        self.contender = contender
        self.folder = folder
        self._started = started

    def processes(self) -> list[psutil.Process]:
        """Return all that live, by the sessions that they were started in."""
        sessions = {process.pid for process in self._started}
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(ProcessLookupError, PermissionError, psutil.Error):
                if os.getsid(process.pid) in sessions and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def cpu(self) -> float:
        """Return the processor seconds that they have used; those of ended children of theirs too."""
        used = 0.0
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                used += sum(process.cpu_times()[:4])
        return used

    def pss(self) -> int:
        """Return the bytes of memory that they use, shared pages divided among those that share them."""
        used = 0
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                used += process.memory_full_info().pss
        return used

    def require(self) -> None:
        """Raise RuntimeError if one of the commands has ended."""
        for process in self._started:
            if process.poll() is not None:
                text = (self.folder / "output").read_text(errors="replace")
                raise RuntimeError(
                    f"{self.contender.name}: its workers ended ({process.returncode})\n{text[-2000:]}"
                )

    def end(self) -> None:
        processes = self.processes()
        for process in self._started:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        for process in processes:
            with contextlib.suppress(psutil.Error):
                process.kill()
        for process in self._started:
            process.wait(10)
        psutil.wait_procs(processes, 5)
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                process.kill()


def read_cpu(redis: Any) -> float:
    """Return the seconds of the server's main thread."""
    info = redis.info("cpu")
    names = ("used_cpu_user_main_thread", "used_cpu_sys_main_thread")
    return float(sum(info[name] for name in names))


def read_trips(redis: Any) -> int:
    """Return how often the server has read from clients' sockets: the round trips, pipelines once."""
    return int(redis.info("stats")["total_reads_processed"])


def read_calls(redis: Any, command: str | None = None) -> int:
    """Return how many commands were carried out, or how often that one; those inside of scripts too."""
    stats = redis.info("commandstats")
    if command is not None:
        return int(stats.get(f"cmdstat_{command}", {"calls": 0})["calls"])
    return int(sum(one["calls"] for one in stats.values()))


def wait_for_port(port: int, timeout: float) -> bool:
    """Wait until somebody listens on a loopback port."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return True
        time.sleep(0.005)
    return False
