"""The fetch loop: claims what there is room for, commits what is done. Worker main thread.

It never polls: with nothing to do it sleeps in poll(2) on its two connections, the pipe through
which processors and signals wake it, and the master's channel. It runs no user code.

What it may claim:
- as many tasks of any type as there are free threads;
- beyond that only types that are fast, and only as much as starts within `pace.HORIZON`;
- after a task waited `PATIENCE` behind a running one, and the buffer was given back, only for free
  threads until a task ends: else the tasks would go to and fro;
- nothing while a suspect (a task that has taken a worker down before) waits or runs: it runs alone.
"""

from __future__ import annotations

import math
import os
import select
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

from prefork_q.broker import ClaimRequest, Lease, Limits, commit_arguments, milliseconds, parse_claimed
from prefork_q.events import Events
from prefork_q.ipc import stats
from prefork_q.ipc.scoreboard import boot_time
from prefork_q.ipc.slot import WorkerSlot
from prefork_q.worker.commit import Ledger, settlement, take_batch
from prefork_q.worker.failure import told
from prefork_q.worker.held import Held, Outcome
from prefork_q.worker.lines import Call, CommandLine, WakeLine
from prefork_q.worker.pace import HORIZON, Paces
from prefork_q.worker.pool import Pool
from prefork_q.worker.queues import QueueOrder
from prefork_q.worker.routes import Route

PATIENCE: Final = 0.25
"""Seconds that a buffered task waits behind a running one before it is given back."""
MAX_CLAIM: Final = 256
"""Tasks in one claim."""
TICK: Final = 1.0
"""Seconds: the longest sleep, so that the beat shows a loop that turns."""
PROGRESS_INTERVAL: Final = 0.5
"""Seconds between two calls that report progress."""


@dataclass(frozen=True, slots=True)
class FetchSettings:
    """`worker` is the incarnation, in whose name is claimed. Durations are in seconds.

    `max_tasks`: attempts that this worker may make in all, 0 for any number.
    """

    worker: str
    threads: int
    lease: float
    limits: Limits
    max_tasks: int = 0


class FetchLoop:
    """Owns what the worker holds, from the answer that claimed it to the answer that committed it."""

    def __init__(
        self,
        settings: FetchSettings,
        *,
        slot: WorkerSlot,
        commands: CommandLine,
        wakes: WakeLine,
        queues: QueueOrder,
        routes: dict[bytes, Route],
        events: Events,
        life: Callable[[], bool],
        life_fds: Sequence[int],
        wake_fd: int,
    ) -> None:
        """`life` looks after signals and the channel, and says whether to go on claiming; it is
        called each turn. `life_fds` wake the loop for it; the first is the reading end of the pipe
        whose writing end is `wake_fd`."""
        self._settings = settings
        self._slot = slot
        self._commands = commands
        self._wakes = wakes
        self._queues = queues
        self._routes = routes
        self._events = events
        self._life = life
        self._life_fds = tuple(life_fds)
        self._paces = Paces()
        self._ledger = Ledger(slot, self._paces, events)
        self._pool: Pool | None = None
        self._wake_fd = wake_fd

        self._outbox: deque[Outcome] = deque()
        self._progress: dict[bytes, tuple[Held, float, str]] = {}
        self._progress_at = 0.0
        self._is_sleeping = False
        self._free_entries = list(range(slot.held - 1, -1, -1))
        self._held: dict[bytes, Held] = {}
        self._in_flight: Sequence[Outcome] = ()
        self._cost = 0.0
        self._seq = 0
        self._suspect: Held | None = None
        self._is_suspect_put = False
        self._has_more = True
        self._owes_claim = False
        self._only_free = False
        self.wake_at: float | None = None
        """Boot time at which a turn has to begin at the latest: the drain's deadline."""
        self.has_turned = False
        """Whether a claim was answered: the worker is ready."""
        self.is_gone = False
        """Whether Redis holds this worker for dead: it must end."""
        self.has_interrupted = False
        """Whether a soft time limit was enforced: a lock of the user's may be held for ever."""

    # -- called by processors

    def deliver(self, outcome: Outcome) -> None:
        """Take an outcome, from any thread."""
        self._outbox.append(outcome)
        if self._is_sleeping:
            self.wake()

    def report_progress(self, held: Held, fraction: float, note: str) -> None:
        """Take a handler's word on how far it is, from any thread; the last one counts."""
        self._progress[held.lease.id] = (held, fraction, note)

    def wake(self) -> None:
        """End the loop's sleep, from any thread."""
        try:
            os.write(self._wake_fd, b"\0")
        except BlockingIOError:
            # The pipe is full of wake-ups already.
            return

    # -- the loop

    def attach(self, pool: Pool) -> None:
        """Give the loop its pool, whose processors deliver to the loop."""
        self._pool = pool

    @property
    def pool(self) -> Pool:
        if self._pool is None:
            raise RuntimeError("the loop turns only with a pool attached")
        return self._pool

    @property
    def held(self) -> Sequence[Held]:
        """What is held, in the order of the claims."""
        return list(self._held.values())

    @property
    def attempts(self) -> int:
        """How many attempts it has made, those that are under way included."""
        under_way = sum(held.is_started for held in self._held.values()) if self._settings.max_tasks else 0
        return self._ended + under_way

    @property
    def _ended(self) -> int:
        return self._slot.counter(stats.COMPLETED) + self._slot.counter(stats.FAILED)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is held and nothing is under way."""
        return not self._held and not self._commands.is_busy

    def turn(self) -> None:
        """One turn: do all that can be done now, then sleep until something happens."""
        now = boot_time()
        self._slot.beat(now)
        may_claim = self._life() and not self.is_gone
        self._commands.tick(now)
        self._collect_dead_threads()
        self._enforce_soft_limits(now)
        if may_claim:
            self._start_suspect()
            self._give_back_late(now)
        else:
            self._give_back_unstarted()
        if not self._commands.is_busy:
            self._next_call(now, may_claim)
        if may_claim and self._wants_more and not self._has_more:
            self._wakes.arm(now)
        self._sleep()

    def forget_fd(self, fd: int) -> None:
        """Poll a descriptor of `life_fds` no more: it would be readable for ever."""
        self._life_fds = tuple(kept for kept in self._life_fds if kept != fd)

    def forget_descriptors(self) -> None:
        """Close what this process must not use: it is a child that a handler has forked."""
        self._commands.close()
        self._wakes.close()
        os.close(self._wake_fd)
        os.close(self._life_fds[0])

    def remaining(self) -> list[Outcome]:
        """Take all outcomes that no answer has confirmed. The loop turns no more after this."""
        batch = [*self._in_flight, *self._outbox]
        self._in_flight = ()
        self._outbox.clear()
        return batch

    def book(self, batch: Sequence[Outcome], words: Sequence[bytes]) -> None:
        """Book a commit that was made outside of the loop."""
        self._settled(batch, words, boot_time())

    def log_unfinished(self, now: float) -> None:
        """Log the fate of what still runs when the process ends: it is given back."""
        finished = {outcome.held for outcome in (*self._in_flight, *self._outbox)}
        for held in self._held.values():
            if held.is_started and held not in finished:
                self._ledger.unfinished(held, now - held.claimed_at)

    # -- sleeping

    def _sleep(self) -> None:
        poller = select.poll()
        for fd in self._life_fds:
            poller.register(fd, select.POLLIN)
        command_fd, wake_fd = self._commands.fileno, self._wakes.fileno
        if command_fd >= 0:
            poller.register(command_fd, select.POLLIN)
        if wake_fd >= 0:
            poller.register(wake_fd, select.POLLIN)
        # From here on a processor that delivers writes to the pipe; what came before is seen below.
        # While a call is under way its answer wakes the loop soon enough.
        self._is_sleeping = not self._commands.is_busy
        timeout = 0.0 if self._is_sleeping and self._outbox else self._sleep_time(boot_time())
        ready = {fd for fd, _ in poller.poll(math.ceil(timeout * 1_000))}
        self._is_sleeping = False
        if self._life_fds[0] in ready:
            self._drain_pipe()
        if wake_fd in ready and self._wakes.receive(boot_time()):
            self._has_more = True
            # A token that finds no room is put back by a claim of nothing.
            self._owes_claim = True
        if command_fd in ready:
            answered = self._commands.receive(boot_time())
            if answered is not None:
                self._answered(*answered)

    def _sleep_time(self, now: float) -> float:
        until = now + TICK
        due = self._commands.next_wake(now)
        if due is not None:
            until = min(until, due)
        if not self._commands.is_busy:
            if self._wants_more and not self._has_more:
                until = min(until, self._wakes.next_wake())
            oldest = self.pool.oldest_waiting()
            if oldest is not None and oldest is not self._suspect:
                until = min(until, oldest.claimed_at + PATIENCE)
            if self._progress:
                until = min(until, self._progress_at + PROGRESS_INTERVAL)
        for limit in (self.pool.next_soft_limit(), self.wake_at):
            if limit is not None:
                until = min(until, limit)
        return max(0.0, until - now)

    def _drain_pipe(self) -> None:
        try:
            os.read(self._life_fds[0], 4_096)
        except BlockingIOError:
            return

    # -- room

    @property
    def _unfinished(self) -> int:
        """How many tasks wait for a processor or are in one's hands."""
        return len(self._held) - len(self._in_flight) - len(self._outbox)

    @property
    def _room(self) -> int:
        """How many tasks of any type could start at once."""
        return max(0, min(self._settings.threads - self._unfinished, self._allowance))

    @property
    def _allowance(self) -> int:
        """How many tasks it may still take before it is recycled."""
        most = self._settings.max_tasks
        return most - self._ended - len(self._held) if most else MAX_CLAIM

    @property
    def _wants_more(self) -> bool:
        return self._suspect is None and self._room > 0

    def _request(self) -> ClaimRequest:
        """Return what there is room for now; for nothing at all it still puts wake tokens back."""
        self._seq += 1
        settings = self._settings
        room = limit = budget_us = 0
        paces: list[tuple[bytes, int]] = []
        if self._suspect is None:
            room = min(self._room, len(self._free_entries), MAX_CLAIM)
            limit = room
            budget = HORIZON * settings.threads - self._cost
            if not self._only_free and budget > 0:
                paces = self._paces.fast()
                if paces:
                    limit = min(len(self._free_entries), MAX_CLAIM, max(0, self._allowance))
                    budget_us = int(budget * 1e6)
        return ClaimRequest(
            settings.worker, self._seq, milliseconds(settings.lease), room, limit, budget_us,
            self._queues.next(), paces,
        )

    # -- calls and answers

    def _next_call(self, now: float, may_claim: bool) -> None:
        batch = take_batch(self._outbox)
        self._in_flight = batch
        wants_claim = self._owes_claim or (may_claim and self._has_more and self._wants_more)
        if batch or wants_claim:
            request = self._request() if may_claim else self._request_of_nothing()
        if batch:
            arguments = commit_arguments(map(settlement, batch), request, self._settings.limits)
            self._commands.send(Call("commit", arguments, (batch, request, now)), now)
        elif wants_claim:
            retention_ms = milliseconds(self._settings.limits.retention)
            call = Call("claim", [retention_ms, *request.arguments()], ((), request, now))
            self._commands.send(call, now)
        elif self._progress and now >= self._progress_at + PROGRESS_INTERVAL:
            self._send_progress(now)
        if batch or wants_claim:
            self._owes_claim = False

    def _request_of_nothing(self) -> ClaimRequest:
        self._seq += 1
        settings = self._settings
        return ClaimRequest(
            settings.worker, self._seq, milliseconds(settings.lease), 0, 0, 0, self._queues.next()
        )

    def _send_progress(self, now: float) -> None:
        reports, self._progress = self._progress, {}
        self._progress_at = now
        arguments: list[object] = []
        for held, fraction, note in reports.values():
            arguments += (held.lease.id, held.lease.token, orjson.dumps({"fraction": fraction, "note": note}))
        self._commands.send(Call("progress", arguments, None), now)

    def _answered(self, call: Call, answer: Any) -> None:
        if call.verb == "progress":
            return
        now = boot_time()
        batch, request, sent_at = call.context
        if call.verb == "commit":
            words, answer = answer
            self._settled(batch, words, now)
        claimed = parse_claimed(answer)
        self.has_turned = True
        if claimed.is_gone:
            self.is_gone = True
        for name, reason in claimed.dropped:
            self._events.emit("dropped", level="error", id=name, cause=reason)
        for lease in claimed.leases:
            self._take(lease, sent_at)
        # A full answer: there may be more. Otherwise whoever adds a task leaves a token.
        self._has_more = request.limit > 0 and len(claimed.leases) >= request.limit

    def _settled(self, batch: Sequence[Outcome], words: Sequence[bytes], now: float) -> None:
        if not batch:
            return
        self._in_flight = ()
        self._only_free = self._only_free and all(outcome.name == "released" for outcome in batch)
        for outcome in batch:
            held = outcome.held
            del self._held[held.lease.id]
            self._slot.drop(held.index)
            self._free_entries.append(held.index)
            if held.cost != math.inf:
                self._cost -= held.cost
            if held is self._suspect:
                self._suspect = None
        if not self._held:
            self._cost = 0.0
        self._ledger.book(batch, words, now)

    def _take(self, lease: Lease, claimed_at: float) -> None:
        index = self._free_entries.pop()
        self._slot.hold(index, lease.id, lease.token, claimed_at)
        cost = self._paces.cost(lease.type)
        held = Held(lease, index, claimed_at, self._routes.get(lease.type), cost)
        self._held[lease.id] = held
        if cost != math.inf:
            self._cost += cost
        self._slot.observe_wait(self._queues.index(lease.queue), lease.wait_ms / 1_000)
        if lease.crashes > 0:
            self._suspect = held
            self._is_suspect_put = False
        else:
            self.pool.put(held)

    # -- giving back

    def _start_suspect(self) -> None:
        if self._suspect is not None and not self._is_suspect_put and self._unfinished == 1:
            self._is_suspect_put = True
            self.pool.put(self._suspect)

    def _give_back_unstarted(self) -> None:
        if self._suspect is not None and not self._is_suspect_put:
            self._is_suspect_put = True
            self._give_back([self._suspect])
        self._give_back(self.pool.take_back())

    def _enforce_soft_limits(self, now: float) -> None:
        for held in self.pool.interrupt(now):
            self.has_interrupted = True
            self._events.emit(
                "interrupted", level="warning", id=held.lease.id.decode(), attempt=held.lease.attempt,
                cause="its time limit has passed",
            )

    def _give_back_late(self, now: float) -> None:
        oldest = self.pool.oldest_waiting()
        if oldest is None or oldest is self._suspect or now - oldest.claimed_at < PATIENCE:
            return
        late = self.pool.take_back()
        if late:
            self._only_free = True
            self._give_back(late)

    def _give_back(self, tasks: Sequence[Held]) -> None:
        self._outbox.extend(Outcome(held, "released") for held in tasks)

    def _collect_dead_threads(self) -> None:
        for held in self.pool.replace_dead():
            failure = told("ProcessorLost", "its thread was ended from outside")
            attempts_left = held.lease.attempt < held.lease.max_attempts
            self._outbox.append(
                Outcome(
                    held, "retrying" if attempts_left else "dead", 0.0, failure.text,
                    1.0 if attempts_left else None, failure.type, failure.message,
                )
            )
