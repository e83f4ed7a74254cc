"""The fetch loop: claims what there is room for, commits what is done. Worker main thread.

It never polls: with nothing to do it sleeps in poll(2) on its two connections, the bell that
processors and signals ring, and the master's channel. It runs no user code and waits for nothing
else.

What it may claim:
- as many tasks of any type as there are free threads;
- beyond that only types that are fast, and only as much as starts within `pace.HORIZON`;
- after a task waited `PATIENCE` behind a running one, and the buffer was given back, only for free
  threads until a task ends: else the tasks would go to and fro;
- nothing while a suspect (a task that has taken a worker down before) waits or runs: it runs alone.
  One that waits longer than `PATIENCE` for the others is given back too, and then nothing is
  claimed until a task ends, so that it finds its place at last. That has a limit (see `SuspectHold`):
  beside a handler that runs for hours the suspect is put off, and the others are claimed.
"""

from __future__ import annotations

import math
import select
from collections import deque
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from prefork_q.events import Events
from prefork_q.ipc.scoreboard import boot_time
from prefork_q.ipc.slot import WorkerSlot
from prefork_q.leases import Claimed, ClaimRequest, Limits, commit_arguments, milliseconds, parse_claimed
from prefork_q.worker.bell import Bell
from prefork_q.worker.commit import Ledger, Run, runs, said_again
from prefork_q.worker.held import Held, Outcome
from prefork_q.worker.holdings import Holdings
from prefork_q.worker.lines import Call, CommandLine, WakeLine
from prefork_q.worker.pace import HORIZON, Paces
from prefork_q.worker.pool import Pool
from prefork_q.worker.queues import QueueOrder
from prefork_q.worker.reports import Reports
from prefork_q.worker.routes import Route
from prefork_q.worker.standstill import Standstill
from prefork_q.worker.suspects import SuspectHold

PATIENCE: Final = 0.25
"""Seconds that a claimed task waits behind a running one before it is given back."""
MAX_CLAIM: Final = 256
"""Tasks in one claim."""
TICK: Final = 1.0
"""Seconds: the longest sleep, so that the beat shows a loop that turns."""
THREADS_CHECK: Final = 0.5
"""Seconds between two looks at whether all threads live."""


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


class Sent(NamedTuple):
    """What belongs to a call that commits or claims."""

    batch: Sequence[Run]
    request: ClaimRequest
    at: float
    """Boot time at which it was first sent, or later: what it claims was not leased before."""


class FetchLoop:
    """Turned by the worker: `sleep`, then `work` with what has become ready."""

    def __init__(
        self,
        settings: FetchSettings,
        *,
        slot: WorkerSlot,
        commands: CommandLine,
        wakes: WakeLine,
        queues: QueueOrder,
        routes: Mapping[bytes, Route],
        events: Events,
        bell: Bell,
        channel_fd: int,
        standstill: Standstill,
    ) -> None:
        self._settings = settings
        self._slot = slot
        self._commands = commands
        self._wakes = wakes
        self._queues = queues
        self._events = events
        self._bell = bell
        self._paces = Paces()
        self._holdings = Holdings(slot, routes, queues, self._paces)
        self._ledger = Ledger(slot, events)
        self._outbox: deque[Outcome] = deque()
        self._reports = Reports()
        self.report_progress = self._reports.add
        """Takes a handler's word on how far it is, from any thread."""
        self._pool: Pool | None = None

        self._channel_fd = channel_fd
        self._standstill = standstill
        self._poller = select.poll()
        self._watched: tuple[int, ...] = ()
        # For other threads: whether an outcome has to end the sleep, and when it ends by itself.
        self._is_listening = False
        self._sleeps_until = 0.0

        self._in_flight: Sequence[Outcome] = ()
        self._unbooked: tuple[Sequence[Run], Sequence[bytes]] | None = None
        self._attempts = 0
        self._seq = 0
        self._suspect: Held | None = None
        self._is_suspect_placed = False
        self._may_claim = True
        self._has_more = True
        self._owes_claim = False
        self._only_free = False
        self._hold = SuspectHold()
        self._threads_checked_at = 0.0
        self.has_turned = False
        """Whether a claim was answered: the worker is ready."""
        self.is_gone = False
        """Whether Redis holds this worker for dead: it must end."""
        self.has_interrupted = False
        """Whether a soft time limit was enforced: a lock of the user's may be held for ever."""

    def attach(self, pool: Pool) -> None:
        """Give the loop its pool, whose processors deliver to the loop."""
        self._pool = pool

    @property
    def pool(self) -> Pool:
        if self._pool is None:
            raise RuntimeError("the loop turns only with a pool attached")
        return self._pool

    # -- called by processors

    def deliver(self, outcome: Outcome) -> None:
        """Take an outcome, from any thread; it may come twice, then the first one counts."""
        self._outbox.append(outcome)
        if self._is_listening:
            # One ring is enough.
            self._is_listening = False
            self._bell.ring()

    def wake_by(self, at: float) -> None:
        """See to it that the loop turns at boot time `at`, from any thread."""
        if at < self._sleeps_until:
            self._bell.ring()

    # -- life

    @property
    def attempts(self) -> int:
        """How many attempts it has made, those that are under way included."""
        under_way = self._holdings.under_way() if self._settings.max_tasks else 0
        return self._attempts + under_way

    @property
    def is_done(self) -> bool:
        """Whether nothing is held, and no answer is due that could bring something."""
        return not self._holdings and (not self._commands.is_busy or self._commands.is_stuck)

    @property
    def is_flushed(self) -> bool:
        """Whether no outcome waits for Redis."""
        return not self._outbox and not self._in_flight

    def quiet(self) -> None:
        """Claim nothing more, and give back what has not started."""
        self._may_claim = False
        # A token that has come is another's to take; and who begins quiet still shows that Redis
        # knows it, to be ready.
        if self._wakes.leave(boot_time()) or not self.has_turned:
            self._owes_claim = True

    def resume(self) -> None:
        """Claim again, after `quiet`."""
        self._may_claim = True
        self.look_again()

    def look_again(self) -> None:
        """Claim at the next turn, if only nothing: there may be tasks whose wake-up was missed."""
        self._has_more = self._owes_claim = True

    def forget_channel(self) -> None:
        """Poll the channel no more: its end of file would be there for ever."""
        self._channel_fd = -1

    def forget_descriptors(self) -> None:
        """Close what this process must not use: it is a child that a handler has forked."""
        self._commands.close()
        self._wakes.close()
        self._bell.close()

    def uncommitted(self) -> list[Held]:
        """Return the tasks that have ended and whose outcomes Redis has not answered."""
        return [outcome.held for outcome in (*self._in_flight, *self._outbox)]

    # -- the loop

    def sleep(self, until: float) -> Container[int]:
        """Wait until there is something to do, or boot time `until`; return the ready descriptors."""
        self._watch()
        # From here on others ring; what they did before is seen below. While a call is under way
        # its answer wakes the loop soon enough.
        self._sleeps_until = math.inf
        self._is_listening = not self._commands.is_busy
        timeout = 0.0
        if not (self._is_listening and self._outbox):
            now = boot_time()
            self._sleeps_until = self._wake_time(now, until)
            timeout = max(0.0, self._sleeps_until - now)
        ready = [fd for fd, _ in self._poller.poll(math.ceil(timeout * 1_000))]
        self._is_listening = False
        self._sleeps_until = 0.0
        return ready

    def work(self, ready: Container[int]) -> None:
        """Do all that can be done now."""
        now = boot_time()
        self._slot.beat(now)
        if self._bell.fileno in ready:
            self._bell.quieten()
        if self._wakes.fileno in ready and self._wakes.serve(now):
            self._has_more = True
            # A token that finds no room is put back by a claim of nothing.
            self._owes_claim = True
        if self._commands.fileno in ready:
            answered = self._commands.serve(now)
            if answered is not None:
                self._answered(*answered, now)
        if self._wakes.may_have_lost:
            self._wakes.may_have_lost = False
            self._commands.begin_anew()
            self.look_again()
        self._commands.tick(now)
        if self._may_claim:
            self._give_back_late(now)
        else:
            self._give_back_unstarted()
        if not self._commands.is_busy:
            self._next_call(now)
        self._start_suspect()
        if self._awaits_wake:
            self._wakes.arm(now)
        if self._unbooked is not None:
            # While Redis has the next call to work on.
            self._ledger.book(*self._unbooked, now)
            self._unbooked = None
        self._look_after_threads(now)

    def _watch(self) -> None:
        commands, wakes = self._commands, self._wakes
        watched = (commands.fileno, commands.events, wakes.fileno, wakes.events, self._channel_fd)
        if watched == self._watched:
            return
        self._watched = watched
        self._poller = poller = select.poll()
        poller.register(self._bell.fileno, select.POLLIN)
        for fd, mask in (watched[0:2], watched[2:4], (self._channel_fd, select.POLLIN)):
            if fd >= 0:
                poller.register(fd, mask)

    def _wake_time(self, now: float, until: float) -> float:
        times = [now + TICK, until, self._commands.next_wake()]
        soft_limit = self.pool.next_soft_limit()
        if soft_limit is not None:
            times.append(max(soft_limit, self._standstill.doubtful_until))
        if not self._commands.is_busy:
            if self._awaits_wake:
                times.append(self._wakes.next_wake())
            if self._may_claim:
                times += [held.lot.arrived_at + PATIENCE for held in self._waiting()]
                times.append(self._hold.until)
            times.append(self._reports.due_at())
        return min(time for time in times if time is not None)

    # -- room

    @property
    def _most(self) -> int:
        """How many more tasks it may take, whatever runs."""
        most = min(self._holdings.free, MAX_CLAIM)
        if self._settings.max_tasks:
            most = min(most, self._settings.max_tasks - self._attempts - self._holdings.unfinished)
        return max(0, most)

    @property
    def _room(self) -> int:
        """How many tasks of any type could start at once."""
        if self._suspect is not None or self._hold.is_on:
            return 0
        return max(0, min(self._settings.threads - self._holdings.unfinished, self._most))

    @property
    def _awaits_wake(self) -> bool:
        """Whether there is room, and a token has to come first."""
        return self._may_claim and not self._has_more and self._room > 0

    def _request(self) -> ClaimRequest:
        """Return what there is room for now; for nothing at all it still puts wake tokens back."""
        self._seq += 1
        settings = self._settings
        # The first call asks for nothing: the worker says that it is ready before anything runs in it.
        room = limit = self._room if self._may_claim and self.has_turned else 0
        budget_us = 0
        paces: list[tuple[bytes, int]] = []
        budget = HORIZON * settings.threads - self._holdings.cost
        is_open = self._may_claim and self._suspect is None and not (self._only_free or self._hold.is_on)
        if is_open and budget > 0:
            paces = self._paces.fast()
            if paces:
                limit = self._most
                budget_us = int(budget * 1e6)
        return ClaimRequest(
            settings.worker, self._seq, milliseconds(settings.lease), room, limit, budget_us,
            self._queues.next(), paces,
        )  # fmt: skip

    # -- calls and answers

    def _next_call(self, now: float) -> None:
        due = self._reports.due_at()
        if due is not None and now >= due:
            # First, or a busy worker would never come to it.
            arguments = self._reports.take(now)
            if arguments:
                self._commands.send(Call("progress", arguments, None), now)
                return
        outcomes = self._in_flight = self._holdings.take_batch(self._outbox)
        if self._suspect is not None and self._suspect.is_over:
            self._suspect = None
        if not self._holdings.unfinished:
            self._only_free = False
            self._hold.end()
        if not outcomes and not (self._owes_claim or (self._may_claim and self._has_more and self._room > 0)):
            return
        self._owes_claim = False
        batch = runs(outcomes)
        self._learn(batch)
        request = self._request()
        sent = Sent(batch, request, now)
        limits = self._settings.limits
        if batch:
            arguments = commit_arguments([run.settlements() for run in batch], request, limits)
            self._commands.send(Call("commit", arguments, sent), now)
        else:
            arguments = [milliseconds(limits.retention), *request.arguments()]
            self._commands.send(Call("claim", arguments, sent), now)

    def _learn(self, batch: Sequence[Run]) -> None:
        """Count attempts that have ended, and let their pace decide what is claimed next."""
        for run in batch:
            if run.name != "released":
                n = len(run.outcomes)
                self._attempts += n
                self._paces.learn(run.lot.type, sum(outcome.ran for outcome in run.outcomes) / n, n)

    def _answered(self, call: Call, answer: Any, now: float) -> None:
        sent = call.context
        if sent is None:
            return
        if call.verb == "commit":
            words, answer = answer
        claimed = parse_claimed(answer)
        if call.verb == "commit":
            self._settled(sent.batch, said_again(sent.batch, words) if claimed.is_again else words)
        self.has_turned = True
        if claimed.is_gone:
            self.is_gone = True
        for name, reason in claimed.dropped:
            self._events.emit("dropped", level="error", id=name, cause=reason)
        # The answer of a call that was sent again may be that of the first sending.
        claimed_at = sent.at if claimed.is_again else self._commands.sent_at
        self._take(claimed, claimed_at, now)
        # If nothing is left, whoever adds a task leaves a token.
        self._has_more = claimed.has_more

    def _settled(self, batch: Sequence[Run], words: Sequence[bytes]) -> None:
        outcomes, self._in_flight = self._in_flight, ()
        if any(outcome.held.is_started for outcome in outcomes):
            self._only_free = False
            self._hold.end()
        self._holdings.settle(outcomes)
        self._unbooked = batch, words

    def _take(self, claimed: Claimed, claimed_at: float, now: float) -> None:
        taken = self._holdings.take(claimed.lots, claimed.token, claimed_at, now)
        if not self._may_claim:
            self._give_back(taken)
            return
        if taken and taken[-1].lot.crashes > 0:
            # It comes alone.
            self._suspect = taken.pop()
            self._is_suspect_placed = False
        self.pool.put(*taken)

    # -- giving back

    def _waiting(self) -> list[Held]:
        """Return what has waited longest behind a running task: of the buffer, and the suspect."""
        waiting = [] if self._suspect is None or self._is_suspect_placed else [self._suspect]
        oldest = self.pool.oldest_waiting()
        if oldest is not None and oldest is not self._suspect:
            waiting.append(oldest)
        return waiting

    def _give_back_late(self, now: float) -> None:
        if self._hold.runs_out(now):
            self.look_again()
        for held in self._waiting():
            if now - held.lot.arrived_at < PATIENCE:
                continue
            if held is self._suspect:
                self._give_back_suspect(held, self._hold.begin(now))
            elif late := self.pool.take_back():
                self._only_free = True
                self._give_back(late)

    def _give_back_unstarted(self) -> None:
        if self._suspect is not None and not self._is_suspect_placed:
            self._give_back_suspect(self._suspect)
        self._give_back(self.pool.take_back())

    def _give_back_suspect(self, suspect: Held, delay: float | None = None) -> None:
        self._is_suspect_placed = True
        if delay is not None:
            self._events.emit(
                "put_off", level="warning", id=suspect.id.decode(), type=suspect.lot.type_name,
                seconds=delay,
                cause="it has taken a worker down, so it runs alone, and what runs here takes too long",
            )  # fmt: skip
        self._give_back([suspect], delay)

    def _give_back(self, tasks: Sequence[Held], delay: float | None = None) -> None:
        self._outbox.extend(Outcome(held, "released", delay=delay) for held in tasks)

    def _start_suspect(self) -> None:
        suspect = self._suspect
        if suspect is not None and not self._is_suspect_placed and self._holdings.unfinished == 1:
            self._is_suspect_placed = True
            self._hold.found_place()
            self.pool.put(suspect)

    # -- processors

    def _look_after_threads(self, now: float) -> None:
        stood_still = self._standstill.turned(now)
        if stood_still:
            self.pool.postpone(stood_still, now - stood_still)
        for held in self.pool.interrupt(now) if now >= self._standstill.doubtful_until else ():
            self.has_interrupted = True
            self._events.emit(
                "interrupted", level="warning", id=held.id.decode(), attempt=held.lot.attempt,
                cause="its time limit has passed",
            )  # fmt: skip
        if now >= self._threads_checked_at + THREADS_CHECK:
            self._threads_checked_at = now
            for outcome in self.pool.replace_dead():
                self._events.emit("processor_lost", level="error", id=outcome.held.id.decode())
                self._outbox.append(outcome)
