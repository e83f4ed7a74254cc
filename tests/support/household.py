"""A master with children that merely sleep: everything of the supervisor is real, but no task and no Redis.

How the children behave is said by files in the household's folder, so that a test can change it while
they live; what the keeper was told it writes there.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from _thread import allocate_lock
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

from prefork_q.control.client import ask
from prefork_q.control.server import ControlServer
from prefork_q.errors import ConfigurationError, PreforkQError
from prefork_q.events import Events, Sink
from prefork_q.ipc import stats
from prefork_q.ipc.birth import Birth
from prefork_q.ipc.channel import ChannelClosed
from prefork_q.ipc.fork import fork
from prefork_q.ipc.messages import Acknowledged, DeathNotice, Drain, Failed, Message, Ready, RedisState
from prefork_q.ipc.scoreboard import boot_time
from prefork_q.master.master import Master
from prefork_q.master.settings import Entrypoints, MasterSettings, Reading
from prefork_q.template import Template, TemplateSettings
from tests.support.until import until

TASK = b"01987654-3210-7abc-8def-0123456789ab"
HELD = b"01987654-3210-7abc-8def-0123456789ac"
SETTINGS = MasterSettings(version="1.2.3", workers=2, threads=2, drain_timeout=3.0, held=8)


class Switches:
    """Files whose presence tells children what to do."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def set(self, name: str, text: str = "") -> None:
        (self.folder / name).write_text(text)

    def drop(self, name: str) -> None:
        (self.folder / name).unlink(missing_ok=True)

    def is_set(self, name: str) -> bool:
        return (self.folder / name).exists()

    def text(self, name: str) -> str:
        """What it was set with; empty too if it is not set."""
        path = self.folder / name
        try:
            return path.read_text()
        except FileNotFoundError:
            return ""

    def note(self, name: str, line: object) -> None:
        with open(self.folder / name, "a") as file:
            file.write(json.dumps(line) + "\n")

    def notes(self, name: str) -> list[Any]:
        path = self.folder / name
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


class Household:
    """One running master. Made by `household`."""

    def __init__(self, folder: Path, settings: MasterSettings, *, has_store: bool, preload: str) -> None:
        self.switches = Switches(folder)
        self.socket = folder / "ctl.sock"
        self.log = folder / "log"
        self.settings = replace(settings, preload=preload)
        self._has_store = has_store
        self.pid = -1
        self.exit_code: int | None = None
        self.known: set[int] = set()

    def start(self) -> None:
        self.pid = fork(self._run)

    def _run(self) -> int:
        os.setsid()
        # What the children and the master print belongs to the test's folder.
        os.dup2(os.open(self.switches.folder / "stderr", os.O_CREAT | os.O_WRONLY | os.O_APPEND), 2)
        sink = Sink.file(self.log, patience=0.0)
        events = Events(sink, format="json", level="debug", process={})
        control = ControlServer(self.socket, events)
        control.open()
        settings = replace(self.settings, keep_fds=(sink.fileno(),))
        children = Children(self.switches)
        template = Template(
            children.load,
            children.work,
            children.answer,
            lambda app: self.switches.note("hooks", "template"),
            TemplateSettings(preload=settings.preload, keep_fds=settings.keep_fds),
            events,
        )
        store = children.store if self._has_store else None
        entrypoints = Entrypoints(template, children.keep, store)

        def reread() -> Reading:
            if self.switches.is_set("configuration_is_wrong"):
                raise ConfigurationError("workers: write a number")
            is_changed = self.switches.is_set("three_workers")
            fresh = replace(settings, workers=3) if is_changed else settings
            return Reading(fresh, entrypoints, is_changed=is_changed)

        return Stoppable(self.switches, settings, entrypoints, events, control=control, reread=reread).run()

    # -- looking

    def status(self) -> dict[str, Any]:
        status: dict[str, Any] = ask(self.socket, "status")
        return status

    def events(self, name: str | None = None) -> list[dict[str, Any]]:
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        events = [json.loads(line) for line in lines]
        return [event for event in events if name is None or event["event"] == name]

    def stderr(self) -> str:
        return (self.switches.folder / "stderr").read_text()

    def until_running(self) -> dict[str, Any]:
        def running() -> dict[str, Any]:
            with suppress(PreforkQError):
                status = self.status()
                if status["state"] == "running" and not status["degraded"]:
                    return status
            return {}

        status = until(running, timeout=20.0, what="the household to run")
        self.known |= {process.pid for process in psutil.Process(self.pid).children(recursive=True)}
        return status

    def pid_of(self, role: str) -> int:
        status = self.status()
        if role.startswith("worker"):
            return int(status["workers"][int(role.split()[1])]["pid"])
        return int(status["roles"][role]["pid"])

    # -- doing

    def send(self, number: signal.Signals, role: str | None = None) -> None:
        os.kill(self.pid if role is None else self.pid_of(role), number)

    def has_exited(self) -> bool:
        if self.exit_code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.exit_code = os.waitstatus_to_exitcode(status)
        return self.exit_code is not None

    def wait(self, timeout: float = 20.0) -> int | None:
        until(self.has_exited, timeout=timeout, what="the master to exit")
        return self.exit_code

    def stop(self, number: signal.Signals = signal.SIGTERM) -> float:
        """Signal the master and wait; return the seconds that it took."""
        began = time.monotonic()
        self.send(number)
        self.wait()
        return time.monotonic() - began

    def left(self) -> list[int]:
        """Return the processes that should be gone and are not."""
        return [pid for pid in self.known if psutil.pid_exists(pid) and not _is_zombie(pid)]

    def kill_all(self) -> None:
        if self.pid > 0 and not self.has_exited():
            try:
                family = psutil.Process(self.pid).children(recursive=True)
            except psutil.NoSuchProcess:
                family = []
            os.kill(self.pid, signal.SIGKILL)
            for process in family:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            self.wait()


@contextmanager
def household(
    folder: Path,
    settings: MasterSettings = SETTINGS,
    *,
    has_store: bool = False,
    preload: str = "auto",
    switches: tuple[str, ...] = (),
) -> Iterator[Household]:
    """Run a master until the end of the block, and see to it that nothing is left."""
    home = Household(folder, settings, has_store=has_store, preload=preload)
    for name in switches:
        home.switches.set(name)
    home.start()
    try:
        yield home
    finally:
        home.kill_all()
        if sys.exc_info()[0] is not None:
            sys.stdout.write(home.log.read_text() if home.log.exists() else "no log\n")
            sys.stdout.write(home.stderr())


class Stoppable(Master):
    """Stops itself in the middle of a turn, once it is told to."""

    def __init__(self, switches: Switches, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._switches = switches

    def answer_control(self) -> None:
        super().answer_control()
        if self._switches.is_set("master_stops_in_a_turn"):
            self._switches.drop("master_stops_in_a_turn")
            os.kill(os.getpid(), signal.SIGSTOP)


class Children:
    """Entry points; each runs in its own process."""

    def __init__(self, switches: Switches) -> None:
        self._switches = switches
        self._lock = allocate_lock()

    def load(self) -> str:
        if self._switches.is_set("import_fails"):
            told = "no module named 'handlers'\nTraceback: line 1\nModuleNotFoundError"
            raise ConfigurationError(self._switches.text("import_fails") or told)
        if self._switches.is_set("import_leaves_thread"):
            import threading

            threading.Thread(target=time.sleep, args=(60,), name="poller", daemon=True).start()
        if self._switches.is_set("import_leaves_lock"):
            import threading

            holder = threading.Thread(target=self._hold_lock, name="holder", daemon=True)
            holder.start()
            while not self._lock.locked():
                time.sleep(0.001)
        self._switches.note("imports", os.getpid())
        return "app"

    def _hold_lock(self) -> None:
        """Hold the lock nearly all the time, as a thread does that writes one line after the other."""
        while True:
            with self._lock:
                time.sleep(0.2)
            time.sleep(0.001)

    def work(self, birth: Birth, app: str) -> int:
        """A worker: says that it runs a task, if asked to, and waits."""
        switches = self._switches
        if switches.is_set("worker_dies_at_birth"):
            return 3
        if f"{birth.generation}.{birth.slot}" in switches.text("these_die_at_birth").split():
            return 3
        is_tied = not switches.is_set("no_parent_death_signal")
        if not birth.introduce(parent_death_signal=signal.SIGTERM if is_tied else None):
            return 0
        if switches.is_set("start_hook_takes_long"):
            birth.scoreboard.worker(birth.cell).state = "hooks"
            time.sleep(5.0)
        name = f"{birth.generation}.{birth.slot}"
        if name in switches.text("these_wait_at_birth").split():
            switches.note("waiting", name)
            until(lambda: name not in switches.text("these_wait_at_birth").split(), 60.0, "an end of waiting")
        if switches.is_set("worker_hangs_at_birth"):
            time.sleep(60)
        if switches.is_set("import_leaves_lock"):
            with self._lock:
                pass
        switches.note("threads", {name: os.environ[name] for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")})
        slot = birth.scoreboard.worker(birth.cell)
        slot.register(["sleep"], ["default"])
        terminated: list[int] = []
        signal.signal(signal.SIGTERM, lambda number, frame: terminated.append(number))
        slot.state = "ready"
        slot.add_for(0, stats.COMPLETED, 5)
        slot.tick(boot_time(), 5, 0)
        if switches.is_set("worker_holds_tasks"):
            slot.hold(0, TASK, 7, boot_time())
            slot.hold(1, HELD, 7, boot_time())
            slot.start(0, TASK, b"sleep", 1, 7, boot_time())
        if switches.is_set("worker_has_subprocess"):
            _start_orphan()
        birth.channel.send(Ready())
        is_told = False
        while not (terminated or is_told) or switches.is_set("worker_ignores_drain"):
            if not switches.is_set("worker_is_deaf"):
                slot.beat(boot_time())
            if switches.is_set("worker_is_busy"):
                slot.start(0, TASK, b"sleep", 1, 7, boot_time())
            try:
                message = birth.channel.wait(0.02)
            except ChannelClosed:
                return 0
            is_told = isinstance(message, Drain) or is_told
            if message is not None:
                switches.note("told", [birth.slot, type(message).__name__])
        slot.state = "ended"
        return 0

    def keep(self, birth: Birth) -> int:
        """A keeper: writes down what it was told, and acknowledges."""
        switches = self._switches
        if not birth.introduce(parent_death_signal=None):
            return 0
        slot = birth.scoreboard.keeper
        _say(birth, Ready(), RedisState(reachable=True, version="7.0.15"))
        is_reachable = True
        while True:
            if switches.is_set("redis_is_away") == is_reachable:
                is_reachable = not is_reachable
                _say(birth, RedisState(is_reachable, "7.0.15"))
            if not switches.is_set("keeper_is_silent"):
                slot.beat()
            try:
                message = birth.channel.wait(0.05)
            except ChannelClosed:
                return 0
            match message:
                case DeathNotice():
                    switches.note("notices", [
                        message.incarnation, message.slot, message.cause, message.drained,
                        [claim.id for claim in message.running], [claim.id for claim in message.held],
                    ])  # fmt: skip
                    if not switches.is_set("keeper_does_not_acknowledge"):
                        _say(birth, Acknowledged(message.incarnation))
                case Drain():
                    switches.note("keeper_drained", time.time())
                    if not switches.is_set("keeper_ignores_drain"):
                        return 0

    def answer(self, birth: Birth, app: str) -> int:
        """An api."""
        if not birth.introduce():
            return 0
        _say(birth, Ready())
        return _wait_for_drain(birth)

    def store(self, birth: Birth) -> int:
        """A store: becomes another program, which closes its channel."""
        if not birth.introduce():
            return 0
        if self._switches.is_set("store_fails"):
            _say(birth, Failed("no room"))
            return 75
        os.execvp("sleep", ["sleep", "60"])


def _say(birth: Birth, *messages: Message) -> None:
    with suppress(ChannelClosed):
        for message in messages:
            birth.channel.send(message)


def _wait_for_drain(birth: Birth) -> int:
    while True:
        try:
            if isinstance(birth.channel.wait(1.0), Drain):
                return 0
        except ChannelClosed:
            return 0


def _start_orphan() -> None:
    """Leave a grandchild behind, as a handler might: the master adopts it."""
    fork(lambda: fork(_sleep) and 0)


def _sleep() -> int:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(60)
    return 0


def _is_zombie(pid: int) -> bool:
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    return True
