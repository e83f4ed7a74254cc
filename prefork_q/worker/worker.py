"""The worker process: its life from birth to end. Main thread.

- introduces itself to the master, runs the user's start hooks, and says ready once a claim was
  answered;
- turns the fetch loop until it is told to stop: by the master, by a SIGTERM of its own, or by the
  end of file that the master's death leaves on the channel;
- drains: claims nothing more, gives back what was not started, waits for what runs until the
  deadline, commits, ends. What still runs then stays in its slot of the scoreboard, and the keeper
  gives it back once the process is gone: so it never runs twice at the same time;
- after a soft time limit was enforced it ends as soon as nothing runs in it: a lock of the user's
  may be held for ever by the code that was interrupted.

The process ends by os._exit: its processor threads may be in any code.
"""

from __future__ import annotations

import math
import os
import random
import signal
import sys
import traceback
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Final

from setproctitle import setproctitle

from prefork_q.app import App
from prefork_q.events import Events
from prefork_q.ipc.birth import Birth
from prefork_q.ipc.channel import ChannelClosed
from prefork_q.ipc.fork import INTERNAL_ERROR
from prefork_q.ipc.messages import Drain, Dumped, DumpStacks, Failed, Quiet, Ready, Resume, Retiring
from prefork_q.ipc.scoreboard import boot_time
from prefork_q.keys import Keys
from prefork_q.leases import Limits
from prefork_q.outage import Outage
from prefork_q.worker.bell import Bell
from prefork_q.worker.failure import message_of, type_name
from prefork_q.worker.fetch import FetchLoop, FetchSettings
from prefork_q.worker.forks import ForkGuard
from prefork_q.worker.held import Held
from prefork_q.worker.hooks import StopHooks
from prefork_q.worker.lines import CommandLine, WakeLine
from prefork_q.worker.pool import Pool
from prefork_q.worker.processor import Processor
from prefork_q.worker.queues import QueueOrder
from prefork_q.worker.recycling import Recycling, resident_bytes
from prefork_q.worker.routes import routes
from prefork_q.worker.stacks import Stacks
from prefork_q.worker.standstill import Standstill

SWITCH_INTERVAL: Final = 0.0005
"""Seconds. How long a handler's bytecode may keep the loop from its turn; with the default of 5 ms
a round trip beside four busy threads takes 24 ms."""

HOOK_TIME: Final = 1.0
"""Seconds that the stop hooks may take together."""
FLUSH_TIME: Final = 0.3
"""Seconds of a drain that are kept for commits, after which what still runs is not waited for."""
END_SHARE: Final = 0.25
"""Of a drain: more than that is kept neither for commits nor for hooks."""
TITLE_INTERVAL: Final = 1.0
STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
"""Of a process that is not the worker's alone."""


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """What a worker is told. Durations in seconds, sizes in bytes; a weight of None: strict order.

    `max_tasks` attempts, or `max_rss` bytes more than at its start, and it is recycled; 0: no limit.
    """

    redis_url: str
    namespace: str = "default"
    queues: Sequence[tuple[str, int | None]] = (("default", None),)
    threads: int = 1
    lease: float = 30.0
    drain_timeout: float = 30.0
    grace: float = 2.0
    result_limit: int = 1 << 20
    max_tasks: int = 0
    max_rss: int = 0
    limits: Limits = field(default_factory=Limits)


def run_worker(birth: Birth, app: App, settings: WorkerSettings, events: Events) -> int:
    """Be the worker of this birth until the end of the process. Returns its exit code."""
    if not birth.introduce():
        return 0
    log = events.with_process(worker=birth.slot, gen=birth.generation, pid=os.getpid())
    return Worker(birth, app, settings, log).run()


class Worker:
    """Assembles the parts and looks after the life cycle."""

    def __init__(
        self,
        birth: Birth,
        app: App,
        settings: WorkerSettings,
        events: Events,
        *,
        on_stop: Callable[[], None] | None = None,
    ) -> None:
        """`on_stop`: the process is not the worker's alone (`--no-fork`). It is called for each signal to
        stop, and orders come over the channel; nothing is recycled, since nobody would make an heir.
        """
        self._on_stop = on_stop
        self._birth = birth
        self._channel = birth.channel
        self._app = app
        self._settings = settings
        self._events = events
        self._slot = birth.scoreboard.worker(birth.cell)
        self._title = f"prefork-q: {birth.role} {birth.slot} gen {birth.generation}"
        self._titled_at = 0.0
        self._bell = Bell()
        self._stacks = Stacks(birth.stacks_fd, self._slot)
        self._recycling = Recycling(
            self._slot, max_tasks=settings.max_tasks, max_rss=settings.max_rss, probe_fd=self._bell.fileno
        )
        self._is_terminated = False
        self._is_orphan = False
        self._deadline: float | None = None
        """Boot time at which it has to be gone, infinite if it ends once nothing runs; None: it goes on."""
        self._end_time = 0.0
        """Seconds before the deadline at which handlers are not waited for any more."""
        self._catch_signals()
        self._loop, self._pool = self._assemble()
        ForkGuard(self._forget).install()

    def _assemble(self) -> tuple[FetchLoop, Pool]:
        settings, slot, keys = self._settings, self._slot, Keys(self._settings.namespace)
        queues = QueueOrder(
            [name for name, _ in settings.queues], [weight for _, weight in settings.queues], random.Random()
        )
        table = routes(self._app)
        slot.register([route.name for route in table.values()], queues.names)
        outage = Outage(self._events)
        wake_keys = [keys.wake(name) for name in queues.names]
        url, ring = settings.redis_url, self._bell.ring
        loop = FetchLoop(
            FetchSettings(
                self._birth.incarnation, settings.threads, settings.lease, settings.limits, settings.max_tasks
            ),
            slot=slot,
            commands=CommandLine(url, keys, slot, outage, ring),
            wakes=WakeLine(url, wake_keys, slot, outage, self._events, ring),
            queues=queues,
            routes=table,
            events=self._events,
            bell=self._bell,
            channel_fd=self._channel.fileno(),
            standstill=Standstill(lambda: self._birth.scoreboard.stood_still, boot_time()),
        )

        def make(number: int, inbox: SimpleQueue[Held]) -> Processor:
            return Processor(
                number,
                inbox=inbox,
                deliver=loop.deliver,
                wake_by=loop.wake_by,
                slot=slot,
                lease=settings.lease,
                grace=settings.grace,
                result_limit=settings.result_limit,
                report_progress=loop.report_progress,
            )

        pool = Pool(settings.threads, make)
        loop.attach(pool)
        return loop, pool

    # -- life

    def run(self) -> int:
        """Live, and end the process with that."""
        try:
            has_begun = self.live()
        except Exception as error:
            # Nothing here may fail; if it does all the same, the keeper gives back what is held.
            self._events.emit(
                "failed", level="error", error_type=type_name(error), error_message=message_of(error),
                traceback=traceback.format_exc(),
            )  # fmt: skip
            os._exit(INTERNAL_ERROR)
        if not has_begun:
            return 1
        self._slot.state = "ended"
        os._exit(0)

    def live(self) -> bool:
        """Work until told to stop. Returns whether it has begun to: False if a start hook has failed.

        What still runs afterwards stands in the slot.
        """
        self._stacks.install()
        sys.setswitchinterval(SWITCH_INTERVAL)
        setproctitle(self._title)
        if not self._run_start_hooks():
            return False
        # Once more: a hook's library may have taken the signal for itself.
        self._catch_signals()
        self._pool.start()
        # The first answer to a claim makes it ready, and may bring a task that takes memory at once.
        self._slot.baseline_bytes = resident_bytes()
        self._turn_until_told()
        self._end()
        return True

    def _turn_until_told(self) -> None:
        is_ready = False
        # An order that came while the hooks ran is heard before the first claim.
        self._look_after_orders((self._channel.fileno(),))
        self._loop.work(())
        while not self._may_end():
            self._turn(math.inf if self._deadline is None else self._deadline - self._end_time)
            if self._loop.has_turned and not is_ready:
                is_ready = True
                self._say_ready()

    def _turn(self, until: float) -> None:
        ready = self._loop.sleep(until)
        # Before the loop looks at answers: what came with an order to stop must not be started.
        self._look_after_orders(ready)
        self._loop.work(ready)
        # Only now: what a wake-up announces waits for no look at descriptors.
        if self._deadline is None and self._has_had_its_day():
            # What was not started goes back at once.
            self._loop.work(())
        self._show_title()

    def _may_end(self) -> bool:
        if self._deadline is None:
            return False
        return self._loop.is_done or boot_time() >= self._deadline - self._end_time

    def _end(self) -> None:
        """Let the stop hooks run, commit what is finished, tell the fate of what is not."""
        deadline = self._deadline or 0.0
        hooks = StopHooks(self._app.hooks.worker_stop, self._events, self._bell.ring)
        hooks.start()
        hooks_until = min(boot_time() + HOOK_TIME, deadline)
        while not self._loop.is_flushed or not hooks.are_done:
            until = hooks_until if self._loop.is_flushed else deadline
            if boot_time() >= until:
                break
            self._turn(until)
        if not hooks.are_done:
            self._events.emit("hook_abandoned", level="error", hook="on_worker_stop")
        self._tell_fates()

    def _tell_fates(self) -> None:
        left = [held.id.decode() for held in self._loop.uncommitted()]
        if left:
            cause = "Redis did not answer before the time to stop came"
            self._events.emit("left_leased", level="error", tasks=len(left), ids=left[:20], cause=cause)

    # -- orders

    def _look_after_orders(self, ready: Container[int]) -> None:
        if not self._is_orphan and self._channel.fileno() in ready:
            self._read_channel()
        if self._is_terminated and self._deadline in (None, math.inf):
            self._drain(self._settings.drain_timeout)

    def _has_had_its_day(self) -> bool:
        """Begin to drain if there is a reason of its own for that; return whether there is."""
        if self._loop.is_gone:
            cause = "it was held for dead, its tasks were handed back"
            self._events.emit("disowned", level="error", cause=cause)
            self._drain(0.0)
            return True
        reason = self._reason_to_retire()
        if reason is None:
            return False
        self._retire(reason)
        return True

    def _read_channel(self) -> None:
        try:
            while (message := self._channel.receive()) is not None:
                match message:
                    case Drain(seconds=seconds):
                        self._drain(seconds)
                    case Quiet():
                        self._loop.quiet()
                    case Resume():
                        if self._deadline is None:
                            self._loop.resume()
                    case DumpStacks(serial=serial):
                        self._stacks.write(serial)
                        self._channel.send(Dumped(serial))
        except ChannelClosed:
            self._is_orphan = True
            self._loop.forget_channel()
            self._events.emit("orphaned", level="warning", cause="the master is gone: draining")
            self._drain(self._settings.drain_timeout)

    def _reason_to_retire(self) -> str | None:
        if self._on_stop is not None:
            return None
        if self._loop.has_interrupted:
            # A lock may be held for ever by the code that was interrupted.
            return "a time limit interrupted a handler"
        return self._recycling.reason(self._loop.attempts)

    def _retire(self, reason: str) -> None:
        """Claim nothing more; what runs has all the time it wants, unless the master says otherwise."""
        self._drain(math.inf)
        try:
            self._channel.send(Retiring(reason))
        except ChannelClosed:
            # The next turn reads the end of file.
            return

    def _drain(self, seconds: float) -> None:
        """Claim nothing more and end within so many seconds, or earlier if that was ordered before."""
        if self._deadline is None:
            self._slot.state = "draining"
            self._loop.quiet()
        deadline = boot_time() + max(0.0, seconds)
        if self._deadline is None or deadline < self._deadline:
            self._deadline = deadline
            kept = FLUSH_TIME + (HOOK_TIME if self._app.hooks.worker_stop else 0.0)
            self._end_time = min(kept, END_SHARE * max(0.0, seconds))

    def _say_ready(self) -> None:
        if self._deadline is None:
            self._slot.state = "ready"
        try:
            self._channel.send(Ready())
        except ChannelClosed:
            # The next turn reads the end of file and drains.
            return

    # -- start hooks

    def _run_start_hooks(self) -> bool:
        if not self._app.hooks.worker_start:
            return True
        self._slot.state = "hooks"
        try:
            for hook in self._app.hooks.worker_start:
                hook()
        except BaseException as error:
            reason = f"the hook on_worker_start raised {type_name(error)}: {message_of(error)}"
            self._fail(reason, traceback.format_exc())
            return False
        self._slot.state = "starting"
        return True

    def _fail(self, reason: str, trace: str) -> None:
        try:
            self._channel.send(Failed(reason, trace))
        except ChannelClosed:
            self._events.emit("failed", level="error", reason=reason, traceback=trace)

    # -- signals, forks, title

    def _catch_signals(self) -> None:
        signal.set_wakeup_fd(self._bell.writer, warn_on_full_buffer=False)
        if self._on_stop is None:
            signal.signal(signal.SIGTERM, self._on_term)
            return
        for number in STOP_SIGNALS:
            signal.signal(number, self._pass_on)

    def _on_term(self, number: int, frame: object) -> None:
        self._is_terminated = True

    def _pass_on(self, number: int, frame: object) -> None:
        if self._on_stop is not None:
            self._on_stop()

    def _forget(self) -> None:
        """Close what is the worker's, in a handler's own child."""
        self._loop.forget_descriptors()
        self._channel.close()
        self._stacks.forget()

    def _show_title(self) -> None:
        now = boot_time()
        if now - self._titled_at < TITLE_INTERVAL:
            return
        self._titled_at = now
        running = next((held for p in self._pool.processors if (held := p.current) is not None), None)
        title = self._title
        if running is not None:
            title += f" [{running.lot.type_name} {running.id.decode()}]"
        setproctitle(title)
