"""The guard over the workers: hard time limits, memory, deaf fetch loops, and what is known of a death.

Runs in the master, in its loop, and never waits. Nothing here is asked of a worker's goodwill: it reads the
scoreboard, and kills. Before it kills it has the stacks taken.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from prefork_q.ipc import stats
from prefork_q.ipc.scoreboard import Scoreboard
from prefork_q.ipc.slot import WorkerSlot
from prefork_q.ipc.stacks import ThreadStack
from prefork_q.ipc.stats import Running
from prefork_q.master.children import WORKER, Child, Slots
from prefork_q.master.deaths import Exit, PostMortem
from prefork_q.master.health import condition
from prefork_q.master.inquiries import Inquiries
from prefork_q.master.limits import HardLimits, Pauses, Verdict, timed_out
from prefork_q.master.oom import OomKills, events_file
from prefork_q.units import format_size

FRESH: Final = 1.0
"""Seconds for which an answer counts as taken just before the kill."""
HARD_RSS: Final = 1.5
"""Of `max_rss`: a worker that has grown by so much is not waited for."""
CRASHES: Final = frozenset({signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT})


@dataclass(frozen=True, slots=True)
class GuardSettings:
    """`max_rss` in bytes, 0 for none; `deaf_after` in seconds."""

    max_rss: int = 0
    deaf_after: float = 15.0


class Guard:
    """`kill` ends a worker, for a reason; `inquiries` is how workers are asked for their stacks."""

    def __init__(
        self,
        slots: Slots,
        board: Scoreboard,
        inquiries: Inquiries,
        settings: GuardSettings,
        *,
        kill: Callable[[Child, str], None],
    ) -> None:
        self._slots = slots
        self._board = board
        self._inquiries = inquiries
        self._kill = kill
        self._pauses = Pauses()
        self._limits = HardLimits(self._pauses)
        self._oom = OomKills(events_file())
        self._judged_since = 0.0
        self._verdicts: dict[Child, list[Verdict]] = {}
        self.settings = settings

    @property
    def judged_since(self) -> float:
        """From when on workers are judged, boot time: until then the node stood still."""
        return self._judged_since

    # -- in each turn --------------------------------------------------------------------------------

    def carry_on(self, now: float) -> None:
        """Take the steps that are due."""
        is_due = now >= self.next()
        self._inquiries.carry_on(now)
        if is_due:
            self._look(now)

    def next(self) -> float:
        """When there is something to do."""
        inquiry = self._inquiries.next()
        look = self._limits.next_look
        return look if inquiry is None else min(look, inquiry)

    def answered(self, child: Child, serial: int) -> None:
        """A main thread has written its stacks."""
        self._inquiries.answered(child, serial)
        self._limits.next_look = 0.0

    def stood_still(self, seconds: float, now: float) -> None:
        """The node did not run for so long: hold it against nobody."""
        self._pauses.add(now, seconds)
        self._board.stood_still += seconds
        self._judged_since = now

    def _look(self, now: float) -> None:
        self._limits.begin_look(now)
        self._oom.note(now)
        for child in self._slots.children(WORKER):
            if child.pid is None or child.cell is None or child.killed_for is not None:
                continue
            slot = self._board.worker(child.cell)
            running = slot.running()
            is_near, passed = self._limits.look(running, now)
            if is_near and not passed:
                self._ask(child, now)
            if passed:
                self._verdicts[child] = passed
                ids = ", ".join(verdict.id for verdict in passed)
                self._kill_when_asked(child, "timeout", f"hard time limit of task {ids}", now)
            elif child.is_ready:
                self._judge_memory(child, slot, running, now)
                self._judge_beat(child, slot, running, now)

    def _judge_memory(self, child: Child, slot: WorkerSlot, running: list[Running], now: float) -> None:
        limit, grown = self.settings.max_rss, slot.rss_bytes - slot.baseline_bytes
        if not limit or not slot.baseline_bytes or grown <= HARD_RSS * limit:
            return
        # One that has done nothing yet is no better the next time.
        if running or slot.counter(stats.COMPLETED) or slot.counter(stats.FAILED):
            reason = f"grew by {grown >> 20} MiB, max_rss is {format_size(limit)}"
            child.is_charged = self._kill_when_asked(child, "memory", reason, now)

    def _judge_beat(self, child: Child, slot: WorkerSlot, running: list[Running], now: float) -> None:
        if child.stopping:
            # It has a deadline for its end.
            return
        how = condition(
            last_beat=slot.last_beat, since=self._judged_since, now=now, runs=bool(running),
            is_stopped=slot.is_stopped, limit=self.settings.deaf_after,
        )  # fmt: skip
        if how == "deaf":
            silent = now - max(slot.last_beat, self._judged_since)
            reason = f"deaf: its fetch loop has not turned for {silent:.0f} s"
            self._kill_when_asked(child, "deaf", reason, now)

    def _ask(self, child: Child, now: float) -> None:
        if not self._inquiries.is_fresh(child, now, FRESH):
            self._inquiries.ask(child, now)

    def _kill_when_asked(self, child: Child, word: str, reason: str, now: float) -> bool:
        self._ask(child, now)
        if self._inquiries.is_open(child):
            return False
        child.killed_as = word
        self._kill(child, reason)
        return True

    # -- after a death -------------------------------------------------------------------------------

    def examine(self, child: Child, exit: Exit, running: list[Running], now: float) -> PostMortem:
        """Return what is known of the death of a worker that was waited for."""
        stacks = self.stacks_of(child)
        by_name = {stack.name: stack for stack in stacks}
        verdicts = self._verdicts.pop(child, [])
        texts = {
            verdict.processor: by_name[name].user_text
            for verdict in verdicts
            if (name := f"processor-{verdict.processor}") in by_name
        }
        is_foreign = exit.signal == signal.SIGKILL and child.killed_for is None
        return PostMortem(
            timed_out=timed_out(verdicts, running, texts),
            stack=_guilty(stacks, running, exit, child),
            oom_killed=is_foreign and self._oom.explains(now),
        )

    def forget(self, child: Child) -> None:
        """It is gone."""
        self._verdicts.pop(child, None)
        self._inquiries.forget(child)

    # -- stacks --------------------------------------------------------------------------------------

    def ask_all(self, now: float) -> list[Child]:
        """Ask every worker that can be asked; return them all."""
        workers = [child for child in self._slots.children(WORKER) if child.pid is not None]
        for child in workers:
            if child.is_greeted:
                self._inquiries.ask(child, now)
        return workers

    def has_answers(self, children: list[Child]) -> bool:
        """Whether nothing more is to be waited for."""
        return not any(self._inquiries.is_open(child) for child in children)

    def stacks_of(self, child: Child) -> list[ThreadStack]:
        """Return what is known of the threads of a worker."""
        if child.cell is None:
            return []
        slot = self._board.worker(child.cell)
        names = {slot.thread_of(p): f"processor-{p}" for p in range(slot.threads)}
        names[slot.main_thread] = "MainThread"
        return self._inquiries.result(child, names)

    def shown(self, child: Child) -> dict[str, Any]:
        """Return the stacks of a worker as plain JSON, each processor's with what it runs."""
        running = {}
        if child.cell is not None:
            running = {f"processor-{one.processor}": one for one in self._board.worker(child.cell).running()}
        stacks = self.stacks_of(child)
        return {
            "slot": child.place.number,
            "pid": child.pid,
            "generation": child.generation,
            "answered": bool(stacks),
            "threads": [
                {
                    "name": stack.name,
                    "task": running[stack.name].id if stack.name in running else None,
                    "type": running[stack.name].type if stack.name in running else None,
                    "stack": stack.text,
                }
                for stack in stacks
            ],
        }


def _guilty(stacks: list[ThreadStack], running: list[Running], exit: Exit, child: Child) -> str:
    """Return the stack of the thread that brought a process down, if it is known."""
    if exit.signal in CRASHES:
        return next((stack.user_text for stack in stacks if stack.is_current), "")
    if child.is_charged and running:
        name = f"processor-{running[0].processor}"
        return next((stack.user_text for stack in stacks if stack.name == name), "")
    return ""
