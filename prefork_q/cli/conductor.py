"""The master's part in a process that has no master (`--no-fork`). A thread of its own.

It holds the other ends of the channels, orders the drain, has the keeper give back what is left when
the worker has ended, and answers the control socket, though only to say what this is.
"""

from __future__ import annotations

import math
import os
import select
from collections.abc import Callable
from typing import Any, Final

from prefork_q.control.commands import COMMANDS
from prefork_q.control.protocol import Request
from prefork_q.control.server import ControlServer
from prefork_q.errors import Conflict, NotFound
from prefork_q.events import Events
from prefork_q.ipc.channel import Channel, ChannelClosed
from prefork_q.ipc.fork import INTERNAL_ERROR
from prefork_q.ipc.messages import Claim, DeathNotice, Drain, Failed, Message, Ready
from prefork_q.ipc.scoreboard import boot_time
from prefork_q.ipc.slot import WorkerSlot
from prefork_q.master.stopping import API_PATIENCE
from prefork_q.worker.bell import Bell

WORKER, KEEPER, API = "worker", "keeper", "api"

TURN: Final = 0.5
HAND_BACK: Final = 3.0
"""Seconds that the keeper has for giving back what is left."""
IDLE_END: Final = 1.0
"""The same where nothing is known that it would have to give back."""
LATE: Final = 2.0
"""Seconds after its deadline at which the worker's loop is not waited for any more."""


class Conductor:
    """`end_of_store` tells of the end of the embedded server, None while it lives or if there is none.
    Durations in s.
    """

    def __init__(
        self,
        slot: WorkerSlot,
        control: ControlServer,
        events: Events,
        *,
        version: str,
        drain_timeout: float,
        end_of_store: Callable[[], str | None],
    ) -> None:
        self._slot = slot
        self._control = control
        self._events = events
        self._version = version
        self._drain_timeout = drain_timeout
        self._end_of_store = end_of_store
        self._began = boot_time()
        self._channels: dict[str, Channel] = {}
        self._ready: set[str] = set()
        self._over: set[str] = set()
        self._asked = 0
        self._obeyed = 0
        self._is_draining = False
        self._is_returning = False
        self._worker_until = math.inf
        self._bell = Bell()
        self.exit_code = 0

    # -- called by others

    def channel(self, role: str) -> Channel:
        """Return a role's end of its channel. Before the thread begins."""
        ours, theirs = Channel.pair()
        self._channels[role] = ours
        return theirs

    def ask_to_stop(self) -> None:
        """Somebody wants it to stop; a second time: at once. A signal handler may call this."""
        self._asked += 1
        self._bell.ring()

    def is_over(self, role: str, failure: int = 0) -> None:
        """That role has ended; `failure`: the exit code that this gives the process. From any thread."""
        self.exit_code = self.exit_code or failure
        self._over.add(role)
        self._bell.ring()

    # -- its thread

    def run(self) -> None:
        """Conduct until all have ended."""
        self._control.serve(self._answer)
        try:
            while not self._over >= self._channels.keys():
                self._wait()
                self._control.turn()
                self._listen()
                self._look_after_life()
        finally:
            # Whoever still lives ends by that.
            for channel in self._channels.values():
                channel.close()

    def _wait(self) -> None:
        poller = select.poll()
        poller.register(self._bell.fileno, select.POLLIN)
        poller.register(self._control.fileno(), select.POLLIN)
        for role, channel in self._channels.items():
            if role not in self._over:
                poller.register(channel, select.POLLIN)
        poller.poll(TURN * 1_000)
        self._bell.quieten()

    def _listen(self) -> None:
        for role, channel in self._channels.items():
            try:
                while (message := channel.receive()) is not None:
                    self._hear(role, message)
            except ChannelClosed:
                # Its thread says that it has ended.
                continue

    def _hear(self, role: str, message: Message) -> None:
        match message:
            case Ready():
                self._ready.add(role)
                self._events.emit("ready", role=role, seconds=self._seconds())
                if self._ready == self._channels.keys() and not self._is_draining:
                    self._events.emit("running", seconds=self._seconds(), workers=1)
            case Failed(reason=reason, traceback=trace):
                self.exit_code = self.exit_code or (os.EX_CONFIG if role == KEEPER else 1)
                self._events.emit("failed", level="error", role=role, reason=reason, traceback=trace)

    def _look_after_life(self) -> None:
        asked = self._asked
        if asked > self._obeyed:
            self._events.emit("drain_hurried" if self._obeyed else "drain_began", seconds=self._drain_timeout)
            self._drain(self._drain_timeout if asked == 1 else 0.0)
            self._obeyed = asked
        end_of_store = None if self._is_draining else self._end_of_store()
        if end_of_store is not None:
            self.exit_code = 1
            self._events.emit("failed", level="error", role="store", reason=end_of_store)
            self._drain(0.0)
        if self._over and not self._is_draining:
            # Whoever has ended may have said why just before.
            self._listen()
            self.exit_code = self.exit_code or 1
            self._drain(self._drain_timeout)
        if WORKER in self._over and not self._is_returning:
            self._is_returning = True
            self._return_what_is_left()
        if WORKER not in self._over and boot_time() > self._worker_until:
            # As a start hook that hangs. The embedded server ends by its parent-death signal.
            self._events.emit("failed", level="error", role=WORKER, reason="it does not stop: leaving it")
            os._exit(INTERNAL_ERROR)

    def _drain(self, seconds: float) -> None:
        self._is_draining = True
        self._worker_until = min(self._worker_until, boot_time() + seconds + LATE)
        self._tell(WORKER, Drain(seconds))
        self._tell(API, Drain(seconds, min(API_PATIENCE, seconds / 4)))

    def _return_what_is_left(self) -> None:
        """Let the keeper give back what the worker left in its slot, and end."""
        now, slot = boot_time(), self._slot.snapshot()
        running = {one.id: Claim(one.id, one.token) for one in slot.running}
        held = tuple(Claim(one.id, one.token) for one in slot.holds if one.id not in running)
        self._slot.is_alive = False
        notice = DeathNotice(
            slot.incarnation, self._slot.place, "the process stops", drained=True,
            running=tuple(running.values()), held=held, pid=slot.pid, generation=slot.generation,
            ran={one.id: max(0.0, now - one.started_at) for one in slot.running},
        )  # fmt: skip
        self._tell(KEEPER, notice)
        self._tell(KEEPER, Drain(HAND_BACK if running or held else IDLE_END))

    def _tell(self, role: str, message: Message) -> None:
        if role not in self._channels or role in self._over:
            return
        try:
            self._channels[role].send(message)
        except ChannelClosed:
            # Its thread says that it has ended.
            return

    def _seconds(self) -> float:
        return round(boot_time() - self._began, 3)

    def _answer(self, request: Request) -> Any:
        if request.command == "ping":
            state = "draining" if self._is_draining else "running"
            return {"pid": os.getpid(), "version": self._version, "state": state}
        if request.command not in COMMANDS:
            raise NotFound(f"no command {request.command!r}; there is: ping")
        raise Conflict(
            f"process {os.getpid()} runs with --no-fork: without a master there is no {request.command}, "
            "only ping; look at the API's /metrics, and stop it with SIGTERM"
        )
