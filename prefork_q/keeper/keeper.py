"""The keeper's process: one loop over the master's channel, the bell and the clock.

- It does the chores of its agenda; the master learns whether Redis answers.
- Each turn takes at most one call of each chore, and a call at most TIMEOUT, so the beat that the
  master watches goes on while Redis does not answer.
- It ends when the master says so and all is handed back; when the master is dead, after the last
  worker; or when somebody ends it alone: then the master makes another.
"""

from __future__ import annotations

import os
import select
import signal
import socket
from dataclasses import dataclass

from prefork_q.broker import Broker
from prefork_q.connection import Link, connect
from prefork_q.errors import ConfigurationError, Unavailable
from prefork_q.events import Events
from prefork_q.ipc.birth import Birth
from prefork_q.ipc.channel import Channel, ChannelClosed
from prefork_q.ipc.messages import DeathNotice, Drain, Failed, Message, Quiet, Ready, Resume
from prefork_q.ipc.scoreboard import Scoreboard, boot_time
from prefork_q.keeper.agenda import Agenda
from prefork_q.keeper.auditor import Auditor
from prefork_q.keeper.handback import Returner
from prefork_q.keeper.mover import Bell, Mover
from prefork_q.keeper.pruner import Pruner
from prefork_q.keeper.reach import Reach
from prefork_q.keeper.reaper import Reaper
from prefork_q.keeper.registrar import Registrar
from prefork_q.keeper.reminder import Reminder
from prefork_q.keeper.renewer import Renewer
from prefork_q.keeper.sampler import Sampler
from prefork_q.keeper.vigil import Vigil
from prefork_q.keys import Keys
from prefork_q.leases import Limits

TIMEOUT = 1.5
"""Seconds that a call to Redis may take, and about twice that while it connects."""

BEAT = 0.5
"""Seconds between two turns of the loop at most."""

CALM = 1.0
"""Seconds. A TERM that reached the whole group shows within this time in the workers' states."""


@dataclass(frozen=True, slots=True)
class KeeperSettings:
    """Plain values; durations in seconds."""

    redis_url: str
    node: str
    namespace: str = "default"
    threads: int = 1
    lease: float = 30.0
    drain_timeout: float = 30.0
    retention: float = 86_400.0
    max_crashes: int = 3
    dead_limit: int = 100_000
    dead_retention: float = 180 * 86_400.0
    version: str = ""


def run_keeper(birth: Birth, settings: KeeperSettings, events: Events) -> int:
    """Keep until the end. Entry point of the keeper's process; returns its exit code.

    Without a parent-death signal: the keeper outlives a master that dies.
    """
    if not birth.introduce(parent_death_signal=None):
        return 0
    # A resolver that does not answer must not make it look dead: by default it would wait ten seconds or more
    # for each name server (resolv.conf(5)).
    os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:1")
    keeper = Keeper(birth.scoreboard, birth.channel, settings, events, master_pid=birth.master_pid)
    signal.signal(signal.SIGTERM, lambda number, frame: keeper.leave_when_calm())
    keeper.tell(Ready())
    return keeper.run()


class Keeper:
    """The loop. Runs in the keeper's process, in its main thread."""

    def __init__(
        self,
        board: Scoreboard,
        channel: Channel,
        settings: KeeperSettings,
        events: Events,
        *,
        master_pid: int,
    ) -> None:
        self._board = board
        self._channel: Channel | None = channel
        self._settings = settings
        self._events = events
        self._drain_until: float | None = None
        self._vigil: Vigil | None = None
        self._is_asked_to_leave = False
        self._troubled_at = 0.0

        client = connect(settings.redis_url, timeout=TIMEOUT, max_connections=4)
        limits = Limits(retention=settings.retention, max_crashes=settings.max_crashes)
        broker = Broker(client, Keys(settings.namespace), limits)
        slot, lease = board.keeper, settings.lease
        self._reach = Reach(client, self.tell, events, slot)
        self._returner = Returner(broker, self.tell, events, slot, lease=lease)
        facts: dict[str, object] = {
            "host": socket.gethostname(), "pid": master_pid, "version": settings.version,
            "threads": settings.threads,
        }  # fmt: skip
        self._registrar = Registrar(board, broker, node=settings.node, facts=facts)
        self._bell = Bell(
            Link(settings.redis_url, timeout=TIMEOUT), Keys(settings.namespace)("mover"), self._wake_mover
        )
        self._agenda = Agenda(
            [
                # The order matters, see the agenda's module.
                self._returner,
                Renewer(board, broker, events, lease=lease),
                self._registrar,
                Mover(broker, slot),
                self._bell,
                Reaper(broker, self.tell, events, slot, lease=lease),
                Auditor(broker, events, lease=lease),
                Reminder(broker, slot),
                Pruner(
                    broker, events, slot,
                    dead_limit=settings.dead_limit, dead_retention=settings.dead_retention,
                ),
                Sampler(board),
            ],
            self._reach, events, beat=slot.beat,
        )  # fmt: skip

    def run(self) -> int:
        """Turn until all is done.

        Returns:
            1 if tasks were left to their leases' expiry; EX_CONFIG if this node must not go on, of which
            the master is told; else 0.
        """
        while not self._is_finished(boot_time()):
            self._wait()
            self._handle_messages()
            try:
                self._agenda.run_due()
            except ConfigurationError as error:
                self.tell(Failed(str(error)))
                self._bell.close()
                return os.EX_CONFIG
            self._watch(boot_time())
        return self._leave()

    def tell(self, message: Message) -> None:
        """Send to the master, if there still is one; its end is noticed where we read."""
        if self._channel is None:
            return
        try:
            self._channel.send(message)
        except ChannelClosed:
            return

    def leave_when_calm(self) -> None:
        """Somebody sent TERM. Runs as a signal handler: it notes, and does nothing else."""
        self._is_asked_to_leave = True

    # -- the verbs of the loop

    def _wait(self) -> None:
        """Sleep until a message, the bell, or something is due."""
        now = boot_time()
        self._board.keeper.beat(now)
        until = min(now + BEAT, self._agenda.next_due)
        if self._vigil is not None:
            until = min(until, self._vigil.next_look)
        if self._drain_until is not None:
            until = min(until, self._drain_until)
        if self._reach.is_lost:
            self._bell.close()
        poller = select.poll()
        if self._channel is not None:
            writes = select.POLLOUT if self._channel.has_queued else 0
            poller.register(self._channel, select.POLLIN | writes)
        bell = self._bell.fileno()
        if bell >= 0:
            poller.register(bell, select.POLLIN)
        # Rounded up: a wait that ends a little too early would be repeated in vain.
        ready = dict(poller.poll(max(0, int((until - now) * 1000) + 1) if until > now else 0))
        if ready.get(bell):
            self._answer_bell()

    def _answer_bell(self) -> None:
        try:
            self._bell.answer(boot_time())
        except Unavailable as error:
            self._agenda.failed(self._bell, error)

    def _wake_mover(self) -> None:
        self._agenda.hurry("mover")

    def _handle_messages(self) -> None:
        while self._channel is not None:
            try:
                message = self._channel.receive()
            except ChannelClosed:
                self._begin_vigil()
                return
            match message:
                case None:
                    return
                case DeathNotice():
                    self._returner.add(message)
                    self._agenda.hurry(self._returner.name)
                case Drain(seconds=seconds):
                    self._drain_until = boot_time() + seconds
                    self._reach.hurry()
                case Quiet() | Resume():
                    self._registrar.is_quiet = isinstance(message, Quiet)
                    self._agenda.hurry(self._registrar.name)
                case _:
                    raise TypeError(f"the keeper takes no {type(message).__name__}")

    def _begin_vigil(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        self._vigil = Vigil(
            self._board, self._returner, self._events,
            now=boot_time(), drain_timeout=self._settings.drain_timeout,
        )  # fmt: skip

    def _watch(self, now: float) -> None:
        if self._vigil is not None and now >= self._vigil.next_look:
            self._vigil.look(now)
            self._agenda.hurry(self._returner.name)

    # -- the end

    def _is_finished(self, now: float) -> bool:
        if self._drain_until is not None:
            return self._has_handed_back or now >= self._drain_until
        if self._vigil is not None:
            return self._vigil.is_over and (self._has_handed_back or now >= self._vigil.gives_up_at)
        return self._is_asked_to_leave and self._is_calm(now)

    @property
    def _has_handed_back(self) -> bool:
        """Whether nothing is left to do for the dead. To end the name of one that held nothing is not
        worth waiting for a Redis that is away."""
        return self._returner.is_done or (self._reach.is_lost and not self._returner.left())

    def _is_calm(self, now: float) -> bool:
        """Whether TERM was meant for this process alone: then another will take its place.

        Workers that drain say that it was for all. The keeper must outlast them, and the master will
        say when it is done.
        """
        states = [slot.state for slot in self._board.workers() if slot.is_alive]
        if {"draining", "ended"} & set(states) or not self._returner.is_done or not self._troubled_at:
            self._troubled_at = now
        return now - self._troubled_at > (CALM if states else 5 * CALM)

    def _leave(self) -> int:
        left = self._returner.left()
        if left:
            self._events.emit(
                "left_to_leases", level="error", tasks=len(left), ids=left[:100],
                reason="Redis did not answer before the end; they run again when their leases have expired",
            )  # fmt: skip
        self._bell.close()
        return 1 if left else 0
