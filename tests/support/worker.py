"""Workers without a master: a workshop forks them, each with a scoreboard and a channel of its own.

    worker = start_worker(threads=2)
    worker.drain(3)
    assert worker.exit_code() == 0

The workshop is a process with one thread, as a forking process must be, and does what tests ask of it by
lines of JSON; it reads the workers' memory for them and writes there what a keeper would.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from prefork_q.app import App, load_app
from prefork_q.events import Events, Sink
from prefork_q.ipc import stats
from prefork_q.ipc.birth import Birth
from prefork_q.ipc.channel import Channel, ChannelClosed
from prefork_q.ipc.fork import fork
from prefork_q.ipc.messages import Drain, Go, Hello
from prefork_q.ipc.scoreboard import Scoreboard, boot_time
from prefork_q.leases import Limits
from prefork_q.worker.worker import WorkerSettings, run_worker
from tests.support import handlers
from tests.support.server import dies_with_its_parent
from tests.support.until import until

HELD = 512
HANDLERS = f"{Path(handlers.__file__)}:app"


class Worker:
    """One forked worker. Times are boot time, in seconds."""

    def __init__(self, workshop: Workshop, number: int, pid: int, incarnation: str, log: Path) -> None:
        self._workshop = workshop
        self._number = number
        self.pid = pid
        self.incarnation = incarnation
        self.log = log

    # -- what is done to it

    def drain(self, seconds: float) -> None:
        self._ask("drain", seconds=seconds)

    def orphan(self) -> None:
        """Close the master's end of its channel."""
        self._ask("orphan")

    def send_signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def keeper_renewed(self, index: int, token: int) -> None:
        self._ask("renewed", index=index, token=token)

    def keeper_found_lost(self, index: int, token: int) -> None:
        self._ask("lost", index=index, token=token)

    def keeper_was_asked_to_cancel(self, index: int, token: int) -> None:
        self._ask("cancel_requested", index=index, token=token)

    # -- what it does

    def wait_ready(self, timeout: float = 10.0) -> Worker:
        until(lambda: "Ready" in self.messages(), timeout, "a worker that is ready")
        return self

    def messages(self) -> list[str]:
        """The names of all messages that it has sent."""
        return list(self._ask("messages"))

    def failure(self) -> str:
        """What it said when it could not start."""
        return str(self._ask("failure"))

    def counters(self) -> dict[str, int]:
        return dict(self._ask("counters"))

    def state(self) -> str:
        return str(self._ask("state"))

    def last_beat(self) -> float:
        return float(self._ask("last_beat"))

    def holds(self) -> list[Any]:
        """What its table of held tasks shows: index, id, token, claimed_at, renewed_at."""
        return [SimpleNamespace(**held) for held in self._ask("holds")]

    def running(self) -> list[Any]:
        """What its processors show: processor, id, type, attempt, token, started_at, deadline."""
        return [SimpleNamespace(**running) for running in self._ask("running")]

    def type_counts(self, name: str) -> list[int]:
        """Completed, failed, retried and dead of one type."""
        return list(self._ask("type_counts", name=name))

    def cpu_seconds(self) -> float:
        words = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")

    def threads(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/task"))

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def has_ended(self) -> bool:
        return self._ask("exit_code") is not None

    def exit_code(self, timeout: float = 10.0) -> int:
        """Wait for its end and return how it was; negative for a signal."""
        until(self.has_ended, timeout, "a worker that has ended")
        return int(self._ask("exit_code"))

    def said(self, event: str) -> list[dict[str, Any]]:
        """Its lines of one event."""
        return [line for line in self.lines() if line["event"] == event]

    def lines(self) -> list[dict[str, Any]]:
        complete, _, _ = self.log.read_bytes().rpartition(b"\n")
        return [json.loads(line) for line in complete.splitlines()]

    def outcomes(self, id: str | None = None) -> list[str]:
        """The outcomes of its attempts (at one task), from its log."""
        return [line["outcome"] for line in self.said("finished") if id in (None, line["id"])]

    def _ask(self, what: str, **arguments: object) -> Any:
        return self._workshop.ask(what, worker=self._number, **arguments)


class Workshop:
    """A test's end of the process that forks."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [*dies_with_its_parent("KILL"), sys.executable, "-m", "tests.support.worker"],
            cwd=Path(__file__).parents[2],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._count = 0
        self.workers: list[Worker] = []

    def start(
        self,
        *,
        log: Path,
        url: str,
        namespace: str,
        environ: Mapping[str, str] | None = None,
        target: str = HANDLERS,
        held: int = HELD,
        is_welcome: bool = True,
        limits: Mapping[str, float] | None = None,
        queues: Sequence[tuple[str, int | None]] = (("default", None),),
        **settings: object,
    ) -> Worker:
        """Fork a worker; with `is_welcome` it has been told to go. `settings` are WorkerSettings'."""
        self._count += 1
        answer = self.ask(
            "start",
            worker=self._count,
            log=str(log),
            environ=dict(environ or {}),
            target=target,
            held=held,
            is_welcome=is_welcome,
            limits=dict(limits or {}),
            settings={"redis_url": url, "namespace": namespace, "queues": queues, **settings},
        )
        worker = Worker(self, self._count, answer["pid"], answer["incarnation"], log)
        self.workers.append(worker)
        return worker

    def end_workers(self) -> None:
        """Kill those that are left."""
        for worker in self.workers:
            if not worker.has_ended():
                worker.send_signal(signal.SIGKILL)
                worker.exit_code()
        self.workers = []

    def ask(self, what: str, **arguments: object) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"what": what, **arguments}).encode() + b"\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the workshop has ended: {self._process.wait(10)}")
        answer = json.loads(line)
        if "error" in answer:
            raise RuntimeError(f"{what}: {answer['error']}")
        return answer["answer"]

    def close(self) -> None:
        self.end_workers()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(10)


# -- in the workshop


@dataclass
class Bench:
    """What the workshop has of one worker."""

    pid: int
    channel: Channel
    board: Scoreboard
    events: Events
    messages: list[Any]
    exit_code: int | None = None

    def listen(self) -> None:
        try:
            while (message := self.channel.receive()) is not None:
                self.messages.append(message)
        except ChannelClosed:
            return


class Server:
    """Answers what tests ask, one after the other."""

    def __init__(self) -> None:
        self._benches: dict[int, Bench] = {}
        self._apps: dict[str, App] = {}

    def serve(self) -> None:
        for line in sys.stdin.buffer:
            asked = json.loads(line)
            try:
                answer = {"answer": getattr(self, f"do_{asked.pop('what')}")(**asked)}
            except Exception as error:
                answer = {"error": f"{type(error).__name__}: {error}"}
            sys.stdout.buffer.write(json.dumps(answer).encode() + b"\n")
            sys.stdout.buffer.flush()

    def do_start(
        self, worker: int, log: str, environ: dict[str, str], target: str, held: int, is_welcome: bool,
        limits: dict[str, float], settings: dict[str, Any],
    ) -> dict[str, object]:  # fmt: skip
        if target not in self._apps:
            self._apps[target] = load_app(target)
        app = self._apps[target]
        told = WorkerSettings(limits=Limits(**limits), **settings)  # type: ignore[arg-type]
        board = Scoreboard(1, told.threads, held)
        incarnation = f"workshop{os.getpid()}.0.{worker}"
        board.worker(0).open(incarnation, 1)
        ours, its = Channel.pair()
        events = Events(Sink.file(log), format="json", level="debug", process={})
        birth = Birth("worker", 0, incarnation, 1, os.getpid(), its, board)

        def child() -> int:
            os.environ.update(environ)
            # The line to the tests is not its own.
            null = os.open(os.devnull, os.O_RDWR)
            os.dup2(null, 0)
            os.dup2(null, 1)
            return run_worker(birth, app, told, events)

        pid = fork(child, keep_fds=(its.fileno(), events.sink.fileno()))
        its.close()
        bench = Bench(pid, ours, board, events, [])
        self._benches[worker] = bench
        hello = ours.wait(10)
        assert hello == Hello(pid), hello
        slot = board.worker(0)
        slot.pid, slot.is_alive = pid, True
        if is_welcome:
            ours.send(Go())
        return {"pid": pid, "incarnation": incarnation}

    def do_drain(self, worker: int, seconds: float) -> None:
        self._benches[worker].channel.send(Drain(seconds))

    def do_orphan(self, worker: int) -> None:
        bench = self._benches[worker]
        bench.listen()
        bench.channel.close()

    def do_renewed(self, worker: int, index: int, token: int) -> None:
        self._slot(worker).renewed(index, token, boot_time())

    def do_lost(self, worker: int, index: int, token: int) -> None:
        self._slot(worker).lost(index, token)

    def do_cancel_requested(self, worker: int, index: int, token: int) -> None:
        self._slot(worker).cancel_requested(index, token)

    def do_messages(self, worker: int) -> list[str]:
        bench = self._benches[worker]
        bench.listen()
        return [type(message).__name__ for message in bench.messages]

    def do_failure(self, worker: int) -> str:
        bench = self._benches[worker]
        bench.listen()
        return str(next(message.reason for message in bench.messages if type(message).__name__ == "Failed"))

    def do_counters(self, worker: int) -> dict[str, int]:
        slot = self._slot(worker)
        counters = {name: slot.counter(index) for name, index in stats.COUNTER_NAMES.items()}
        kinds = {f"redis_{kind}": slot.counter(stats.redis_error(kind)) for kind in stats.REDIS_ERROR_KINDS}
        return counters | kinds

    def do_type_counts(self, worker: int, name: str) -> list[int]:
        return list(self._slot(worker).snapshot().types[name].counts)

    def do_state(self, worker: int) -> str:
        return self._slot(worker).state

    def do_last_beat(self, worker: int) -> float:
        return self._slot(worker).last_beat

    def do_holds(self, worker: int) -> list[dict[str, object]]:
        return [asdict(held) for held in self._slot(worker).holds()]

    def do_running(self, worker: int) -> list[dict[str, object]]:
        return [asdict(running) for running in self._slot(worker).running()]

    def do_exit_code(self, worker: int) -> int | None:
        bench = self._benches[worker]
        if bench.exit_code is None:
            pid, status = os.waitpid(bench.pid, os.WNOHANG)
            if pid:
                bench.listen()
                bench.exit_code = os.waitstatus_to_exitcode(status)
                bench.events.sink.close()
        return bench.exit_code

    def _slot(self, worker: int) -> Any:
        return self._benches[worker].board.worker(0)


if __name__ == "__main__":
    Server().serve()
