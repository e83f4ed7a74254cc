"""The master: one thread, one loop, a list of verbs, none of which blocks.

It forks, waits, signals, reads its children's channels and the scoreboard, and answers the control
socket. It runs no user code and talks to no Redis, so it answers whatever its children do.
"""

from __future__ import annotations

import gc
import os
import signal
import time
from collections.abc import Sequence
from socket import socket

from setproctitle import setproctitle

from prefork_q.control.commands import QUESTIONS, answer
from prefork_q.control.server import ControlServer
from prefork_q.events import Events, Sink
from prefork_q.ipc.fork import become_subreaper
from prefork_q.ipc.scoreboard import Scoreboard, boot_time
from prefork_q.master.births import Births
from prefork_q.master.checkup import CheckUp
from prefork_q.master.children import Slots
from prefork_q.master.deadlines import TURN, OwnPace
from prefork_q.master.family import Family
from prefork_q.master.herald import Herald, Phase, Vitals
from prefork_q.master.leftovers import end_leftovers
from prefork_q.master.orders import Orders
from prefork_q.master.reload import Reloads
from prefork_q.master.report import Report
from prefork_q.master.sdnotify import Notifier
from prefork_q.master.settings import Entrypoints, Generation, MasterSettings, Reread, doubt_of_lease
from prefork_q.master.signals import Signals
from prefork_q.master.stacks import StackTaking
from prefork_q.master.stop import StopPlan
from prefork_q.master.stopping import Stopping
from prefork_q.master.succession import Succession
from prefork_q.master.trouble import Trouble
from prefork_q.master.wires import Wires

LEFTOVERS_END = 0.2
"""Seconds for the last kill; see `stop` for the rest of the second after the drain timeout."""


class Master:
    """Runs a node from its start to its end. One per process."""

    def __init__(
        self,
        settings: MasterSettings,
        entrypoints: Entrypoints,
        events: Events,
        listeners: Sequence[socket] = (),
        control: ControlServer | None = None,
        reread: Reread | None = None,
        notifier: Notifier | None = None,
    ) -> None:
        """Prepare; nothing is started before `run`.

        Args:
            settings: plain values.
            entrypoints: the code of the children.
            events: the log; its sink must not block, and its process fields must not have a `pid`.
            listeners: the API's sockets, bound and listening. The master only passes them on, and
                closes them when the node stops.
            control: the control socket, open already.
            reread: reads the configuration anew, for a reload; None: it stays as it is.
            notifier: the line to the service manager; None: there is none.
        """
        self._events = events
        self._listeners = list(listeners)
        self._control = control
        self._signals = Signals()
        now = boot_time()
        capacity = max(settings.slots, settings.workers)
        # Twice as many rows as workers: each may be up beside the one that it replaces.
        board = Scoreboard(2 * capacity, max(settings.most_threads, settings.threads), settings.held)
        slots = Slots(
            workers=settings.workers, apis=settings.api_processes, has_store=entrypoints.store is not None,
            has_watcher=entrypoints.watcher is not None,
        )  # fmt: skip
        generation = Generation(1, settings, entrypoints)
        self._wires = Wires(self._signals, *([control] if control else ()))
        births = Births(settings, board, self._wires, self._listeners)
        self._family = Family(generation, slots, births, self._wires, board, events)
        self._slots = slots
        self._succession = Succession(self._family, events)
        self._reloads = Reloads(reread, self._family, self._succession, board, events)
        self._stacks = StackTaking(self._family.guard, events)
        self._report = Report(settings, slots, board, self._family.estates.totals, pid=os.getpid(), now=now)
        self._trouble = Trouble(self._report, events)
        self._orders = Orders(
            self._family, self._succession, self._reloads, self._stacks, self._report, events,
            capacity=capacity, state=lambda: self._state, begin_drain=self._drain,
        )  # fmt: skip
        self._check_up = CheckUp(slots, board, self._family.estates.totals, self._report)
        self._herald = Herald(notifier or Notifier(None), self._vitals, events)
        self._pace = OwnPace(now)
        self._turned_at = now
        self._began_at = now
        self._stopping: Stopping | None = None
        self._was_complete = False
        self._has_stood_still = False
        self._is_aborted = False
        self._exit_code = 0

    # -- the loop ------------------------------------------------------------------------------------

    def run(self) -> int:
        """Keep the node alive until it is told to stop. Return the exit code: 0, 1 or 78."""
        self._open()
        self.fill_slots()
        while not self.is_finished:
            self.wait(self._next_deadline())
            self.handle_signals()
            self.handle_messages()
            self.answer_control()
            self.reap_children()
            self.enforce_deadlines()
            self.replace_processes()
            self.fill_slots()
            self.tell_manager()
        return self._close()

    @property
    def is_finished(self) -> bool:
        return self._stopping is not None and self._stopping.is_done

    def wait(self, until: float) -> None:
        """Sleep until something comes in, or a deadline."""
        self._wires.wait(until - boot_time())
        now = self._turned_at = boot_time()
        stood_still = self._pace.turned(now)
        self._has_stood_still = bool(stood_still)
        if stood_still:
            self._events.emit("stood_still", level="warning", seconds=round(stood_still, 1))
            self._family.stood_still(stood_still, now)
            self._report.stood_still(now)

    def handle_signals(self) -> None:
        for number in self._signals.take():
            match number:
                case signal.SIGTERM | signal.SIGINT:
                    self._stop(self._drain_plan(), number)
                case signal.SIGQUIT:
                    self._stop(StopPlan.at_once(boot_time()), number)
                case signal.SIGCHLD:
                    continue
                case signal.SIGUSR1:
                    self._reopen_log()
                case signal.SIGHUP:
                    self._told_by(number)
                    self._reloads.request()
                case signal.SIGTSTP:
                    self._told_by(number)
                    self._orders.quieten(True)
                case signal.SIGCONT:
                    # Who was stopped is continued by the same signal, and meant to be as he was before.
                    if not self._has_stood_still:
                        self._told_by(number)
                        self._orders.quieten(False)
                case signal.SIGTTIN | signal.SIGTTOU:
                    self._told_by(number)
                    self._orders.scale_by(1 if number == signal.SIGTTIN else -1)
                case signal.SIGUSR2:
                    self._told_by(number)
                    self._stacks.request(boot_time(), for_log=True)
                case signal.SIGABRT:
                    self._told_by(number)
                    self._stacks.request(boot_time(), for_log=True)
                    self._is_aborted = True
                case _:
                    self._events.emit("signal_ignored", level="debug", signal=signal.Signals(number).name)

    def handle_messages(self) -> None:
        self._family.hear()
        if not self._was_complete and self._slots.is_complete:
            self._was_complete = True
            seconds = round(boot_time() - self._began_at, 3)
            self._events.emit("running", seconds=seconds, workers=len(self._slots.workers))

    def answer_control(self) -> None:
        if self._control is not None:
            self._control.turn()

    def reap_children(self) -> None:
        self._family.reap()
        if self._family.gave_up is not None and self._stopping is None:
            self._exit_code = os.EX_CONFIG
            self._events.emit("gave_up", level="error", reason=self._family.gave_up.reason)
            self._begin(StopPlan.at_once(boot_time()))

    def enforce_deadlines(self) -> None:
        """End what is late: newborns, a silent keeper, and in a stop everybody by its plan."""
        # By the clock of the turn's beginning: that the node has stood still since then shows in the next.
        now = self._turned_at
        self._family.judge(now)
        self._stacks.carry_on()
        if self._is_aborted and not self._stacks.is_under_way:
            self._abort()
        if self._stopping is not None:
            self._stopping.carry_on(now)

    def replace_processes(self) -> None:
        """Carry on with reloads and restarts, and tell once that the node is in trouble."""
        if self._family.is_reload_wanted:
            self._family.is_reload_wanted = False
            self._reloads.request()
        for place in self._family.take_retiring():
            self._succession.replace(place)
        self._reloads.carry_on()
        self._succession.carry_on()
        if self._stopping is None:
            self._trouble.look(self._slots)

    def fill_slots(self) -> None:
        self._family.fill(boot_time())

    def tell_manager(self) -> None:
        """Tell systemd, if it listens, what the node does; a sign of life among it."""
        phase = Phase(self._state, self._reloads.number, self._reloads.is_running)
        self._herald.turn(phase, self._turned_at)

    # -- what is told of it ---------------------------------------------------------------------------

    def _vitals(self, now: float) -> Vitals:
        return self._check_up.vitals(
            now, redis=self._family.redis, reload=self._reloads.shown(),
            since=self._family.guard.judged_since,
            stops_until=self._stopping.plan.store_until if self._stopping is not None else 0.0,
        )  # fmt: skip

    @property
    def _settings(self) -> MasterSettings:
        return self._family.current.settings

    @property
    def _state(self) -> str:
        if self._stopping is not None:
            return "draining"
        if not self._was_complete:
            return "starting"
        if self._reloads.is_running:
            return "reloading"
        return "quiet" if self._family.is_quiet else "running"

    def _told_by(self, number: int) -> None:
        self._events.emit("signal_received", signal=signal.Signals(number).name)

    # -- begin and end -------------------------------------------------------------------------------

    def _open(self) -> None:
        setproctitle("prefork-q: master")
        become_subreaper()
        self._signals.install()
        # Children share what is here now, as long as no collection writes to it.
        gc.collect()
        gc.freeze()
        self._began_at = boot_time()
        self._pace = OwnPace(self._began_at)
        if self._control is not None:
            self._control.serve(
                lambda request: answer(self._orders, request.command, request.arguments), QUESTIONS
            )
        settings = self._settings
        self._events.emit(
            "started", version=settings.version, node=settings.node, pid=os.getpid(),
            workers=settings.workers, threads=settings.threads, lease_s=settings.lease,
            drain_timeout_s=settings.drain_timeout, preload=settings.preload,
        )  # fmt: skip
        doubt = doubt_of_lease(settings.lease)
        if doubt is not None:
            self._events.emit("lease_short", level="warning", lease_s=settings.lease, reason=doubt)

    def _stop(self, plan: StopPlan, number: int) -> None:
        self._told_by(number)
        if self._stopping is None:
            self._begin(plan)
        else:
            self._stopping.hurry(boot_time())

    def _drain(self) -> None:
        self._begin(self._drain_plan())

    def _drain_plan(self) -> StopPlan:
        return StopPlan.drain(boot_time(), self._settings.drain_timeout)

    def _begin(self, plan: StopPlan) -> None:
        # Only then does the kernel refuse connections as soon as the api has closed its copies.
        for listener in self._listeners:
            listener.close()
        self._stopping = Stopping(plan, self._family, self._events)
        self._stopping.begin(boot_time())

    def _close(self) -> int:
        leftovers = end_leftovers(LEFTOVERS_END)
        unreturned = self._family.estates.notices.unreturned()
        if unreturned:
            self._exit_code = self._exit_code or 1
            self._events.emit(
                "tasks_left", level="error", tasks=len(unreturned),
                ids=[claim.id for claim in unreturned[:50]],
                reason="nobody could give them back; they run again when their leases have expired",
            )  # fmt: skip
        if self._control is not None:
            self._control.close()
        self._wires.close()
        self._signals.restore()
        self._events.emit(
            "stopped", exit_code=self._exit_code, leftovers=leftovers or None,
            uptime_s=round(boot_time() - self._began_at, 3),
        )  # fmt: skip
        failure = self._family.gave_up
        if failure is not None:
            self._herald.gave_up(failure.reason)
            # For whoever typed the command, wherever the log goes.
            text = f"{failure.traceback.rstrip()}\nprefork-q: {failure.reason}\n".lstrip()
            Sink.stderr(patience=0.5).write([text.encode(errors="backslashreplace")])
        self._herald.close()
        return self._exit_code

    def _next_deadline(self) -> float:
        now = boot_time()
        candidates = [
            now + TURN, self._family.deadlines.next(), self._family.next_fill(), self._reloads.next(),
            self._succession.next(), self._family.guard.next(), self._herald.next(),
        ]  # fmt: skip
        if self._stopping is not None:
            candidates.append(self._stopping.next(now))
        client = self._control.next_deadline() if self._control is not None else None
        if client is not None:
            candidates.append(now + client - time.monotonic())
        return min(at for at in candidates if at is not None)

    def _abort(self) -> None:
        """Die as the watchdog wants it. The children see the end of their channels, and drain."""
        self._events.emit("aborted", level="error", pid=os.getpid())
        signal.signal(signal.SIGABRT, signal.SIG_DFL)
        # It ends process one of a container too, for which a signal of its own does nothing.
        os.abort()

    def _reopen_log(self) -> None:
        try:
            self._events.sink.reopen()
        except OSError as error:
            self._events.emit("log_not_reopened", level="error", error=str(error))
