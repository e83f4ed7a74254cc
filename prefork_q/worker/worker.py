"""The worker process: its life from birth to end. Main thread.

- introduces itself to the master, runs the user's start hooks, and says ready once a claim was
  answered;
- turns the fetch loop until it is told to stop: by the master, by a SIGTERM of its own, or by the
  end of file that the master's death leaves on the channel;
- drains: claims nothing more, gives back what was not started, waits for what runs until the
  deadline, flushes, ends. What still runs then stays in its slot of the scoreboard, and the keeper
  gives it back once the process is gone: so it never runs twice at the same time.

The process ends by os._exit: its processor threads may be in any code.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Final

from setproctitle import setproctitle

from prefork_q.app import App
from prefork_q.broker import Broker, Limits
from prefork_q.connection import connect
from prefork_q.errors import Unavailable
from prefork_q.events import Events
from prefork_q.ipc.birth import Birth
from prefork_q.ipc.channel import ChannelClosed
from prefork_q.ipc.messages import Drain, Failed, Ready
from prefork_q.ipc.scoreboard import boot_time
from prefork_q.keys import Keys
from prefork_q.outage import Outage
from prefork_q.worker.commit import settlement
from prefork_q.worker.fetch import FetchLoop, FetchSettings
from prefork_q.worker.held import Held
from prefork_q.worker.lines import CommandLine, WakeLine
from prefork_q.worker.pool import Pool
from prefork_q.worker.processor import Processor
from prefork_q.worker.queues import QueueOrder
from prefork_q.worker.routes import routes

SWITCH_INTERVAL: Final = 0.0005
"""Seconds. How long a handler's bytecode may keep the loop from its turn; with the default of 5 ms
a round trip beside four busy threads takes 24 ms."""

HOOK_TIME: Final = 1.0
"""Seconds that the stop hooks may take together, at most; less if the drain's deadline is nearer."""
FLUSH_TIME: Final = 0.3
"""Seconds before the drain's deadline at which waiting ends, so that there is time to flush."""


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """What a worker is told. Durations in seconds, sizes in bytes; a weight of None: strict order."""

    redis_url: str
    namespace: str = "default"
    queues: Sequence[tuple[str, int | None]] = (("default", None),)
    threads: int = 1
    lease: float = 30.0
    drain_timeout: float = 30.0
    grace: float = 2.0
    result_limit: int = 1 << 20
    limits: Limits = field(default_factory=Limits)


def run_worker(birth: Birth, app: App, settings: WorkerSettings, events: Events) -> int:
    """Be the worker of this birth until the end of the process. Returns its exit code."""
    if not birth.introduce():
        return 0
    return Worker(birth, app, settings, events.with_process(
        worker=birth.slot, gen=birth.generation, pid=os.getpid()
    )).run()


class Worker:
    """Assembles the parts and looks after the life cycle."""

    def __init__(self, birth: Birth, app: App, settings: WorkerSettings, events: Events) -> None:
        self._birth = birth
        self._app = app
        self._settings = settings
        self._events = events
        self._slot = birth.scoreboard.worker(birth.slot)
        self._keys = Keys(settings.namespace)
        self._is_terminated = False
        self._is_orphan = False
        self._deadline: float | None = None
        self._titled_at = 0.0
        self._loop, self._pool = self._assemble()

    def _assemble(self) -> tuple[FetchLoop, Pool]:
        settings, slot = self._settings, self._slot
        reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, self._on_term)
        rng = random.Random()
        queues = QueueOrder(
            [name for name, _ in settings.queues], [weight for _, weight in settings.queues], rng
        )
        table = dict(routes(self._app))
        slot.register([route.name for route in table.values()], queues.names)
        outage = Outage(self._events)
        self._commands = CommandLine(settings.redis_url, self._keys, slot, outage)
        self._wakes = WakeLine(settings.redis_url, [self._keys.wake(name) for name in queues.names], outage)
        loop = FetchLoop(
            FetchSettings(self._birth.incarnation, settings.threads, settings.lease, settings.limits),
            slot=slot,
            commands=self._commands,
            wakes=self._wakes,
            queues=queues,
            routes=table,
            events=self._events,
            life=self._look_after_life,
            life_fds=(reader, self._birth.channel.fileno()),
            wake_fd=writer,
        )

        def make(number: int, inbox: SimpleQueue[Held | None]) -> Processor:
            return Processor(
                number,
                inbox=inbox,
                deliver=loop.deliver,
                slot=slot,
                lease=settings.lease,
                grace=settings.grace,
                result_limit=settings.result_limit,
                report_progress=loop.report_progress,
            )

        pool = Pool(settings.threads, make)
        loop.attach(pool)
        os.register_at_fork(after_in_child=self._forget_everything)
        return loop, pool

    # -- life

    def run(self) -> int:
        sys.setswitchinterval(SWITCH_INTERVAL)
        setproctitle(f"prefork-q: worker {self._birth.slot} gen {self._birth.generation}")
        if not self._run_start_hooks():
            return 1
        self._pool.start()
        is_ready = False
        while not self._is_done():
            self._loop.turn()
            if self._loop.has_turned and not is_ready:
                is_ready = True
                self._say_ready()
            self._show_title()
        self._stop()
        os._exit(0)

    def _look_after_life(self) -> bool:
        """Read signals and messages; return whether to go on claiming. Called each turn of the loop."""
        if not self._is_orphan:
            try:
                while (message := self._birth.channel.receive()) is not None:
                    if isinstance(message, Drain):
                        self._drain(message.seconds)
            except ChannelClosed:
                self._is_orphan = True
                self._loop.forget_fd(self._birth.channel.fileno())
                self._events.emit("orphaned", level="warning", cause="the master is gone: draining")
                self._drain(self._settings.drain_timeout)
        if self._is_terminated and self._deadline is None:
            self._drain(self._settings.drain_timeout)
        if self._loop.is_gone and self._deadline is None:
            cause = "it was held for dead, its tasks were handed back"
            self._events.emit("disowned", level="error", cause=cause)
            self._drain(0.0)
        if self._loop.has_interrupted and self._deadline is None:
            # A lock may be held for ever by the code that was interrupted.
            self._events.emit("recycled", cause="a time limit interrupted a handler")
            self._drain(self._settings.drain_timeout)
        return self._deadline is None

    def _drain(self, seconds: float) -> None:
        deadline = boot_time() + max(0.0, seconds)
        if self._deadline is None:
            self._slot.state = "draining"
            self._deadline = deadline
        else:
            self._deadline = min(self._deadline, deadline)
        self._loop.wake_at = self._deadline - FLUSH_TIME

    def _is_done(self) -> bool:
        if self._deadline is None:
            return False
        return self._loop.is_idle or boot_time() >= self._deadline - FLUSH_TIME

    def _say_ready(self) -> None:
        if self._deadline is None:
            self._slot.state = "ready"
        try:
            self._birth.channel.send(Ready())
        except ChannelClosed:
            # The next turn reads the end of file and drains.
            return

    def _stop(self) -> None:
        """Flush what is finished, let the stop hooks run, tell the fate of what is not."""
        left = max(0.0, (self._deadline or 0.0) - boot_time())
        self._run_stop_hooks(min(HOOK_TIME, left))
        batch = self._loop.remaining()
        if batch:
            client = connect(self._settings.redis_url, timeout=1.0)
            broker = Broker(client, self._keys, self._settings.limits)
            try:
                words = broker.settle([settlement(outcome) for outcome in batch])
            except Unavailable as error:
                ids = [outcome.held.lease.id.decode() for outcome in batch]
                self._events.emit(
                    "left_leased", level="error", tasks=len(ids), ids=ids[:20], cause=str(error)
                )
            else:
                self._loop.book(batch, [word.encode() for word in words])
        self._loop.log_unfinished(boot_time())

    # -- hooks

    def _run_start_hooks(self) -> bool:
        try:
            for hook in self._app.hooks.worker_start:
                hook()
        except Exception as error:
            reason = f"the hook on_worker_start raised {type(error).__name__}: {error}"
            self._fail(reason, traceback.format_exc())
            return False
        return True

    def _run_stop_hooks(self, limit: float) -> None:
        hooks = self._app.hooks.worker_stop
        if not hooks:
            return

        def run() -> None:
            for hook in hooks:
                try:
                    hook()
                except BaseException as error:
                    self._events.emit(
                        "hook_failed", level="error", hook="on_worker_stop", error_type=type(error).__name__,
                        error_message=str(error),
                    )

        thread = threading.Thread(target=run, name="stop-hooks", daemon=True)
        thread.start()
        thread.join(limit)
        if thread.is_alive():
            self._events.emit("hook_abandoned", level="error", hook="on_worker_stop", after_s=round(limit, 3))

    def _fail(self, reason: str, trace: str) -> None:
        try:
            self._birth.channel.send(Failed(reason, trace))
        except ChannelClosed:
            self._events.emit("failed", level="error", cause=reason)

    # -- signals, forks, title

    def _on_term(self, number: int, frame: object) -> None:
        self._is_terminated = True

    def _forget_everything(self) -> None:
        """In a handler's own child: it is no worker, and must not touch what is the worker's."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        self._loop.forget_descriptors()
        self._birth.channel.close()

    def _show_title(self) -> None:
        now = boot_time()
        if now - self._titled_at < 1.0:
            return
        self._titled_at = now
        running = next((held for p in self._pool.processors if (held := p.current) is not None), None)
        title = f"prefork-q: worker {self._birth.slot} gen {self._birth.generation}"
        if running is not None:
            lease = running.lease
            title += f" [{lease.type.decode('utf-8', 'replace')} {lease.id.decode()}]"
        setproctitle(title)

