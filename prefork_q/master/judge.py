"""Who is late, and ends for it: newborns, who was told to leave or hung up, a template or keeper that hangs.

Runs in the master, each turn of its loop. Times are boot time in seconds, given by the caller.
"""

from __future__ import annotations

from collections.abc import Callable

from prefork_q.ipc.scoreboard import Scoreboard
from prefork_q.master.children import WORKER, Child, Slots
from prefork_q.master.deadlines import Deadlines, Silence
from prefork_q.master.settings import Generation


class Judge:
    """Ends them by `kill`, given the reason; `unborn` is for one that never came to be."""

    def __init__(
        self,
        generation: Generation,
        slots: Slots,
        board: Scoreboard,
        deadlines: Deadlines,
        *,
        kill: Callable[[Child, str], None],
        unborn: Callable[[Child, str], None],
    ) -> None:
        self._slots = slots
        self._board = board
        self._deadlines = deadlines
        self._kill = kill
        self._unborn = unborn
        self._generation = generation
        self._silence = Silence(generation.settings.silence_limit)

    def adopt(self, generation: Generation, now: float) -> None:
        """The limits are those of this one from now on."""
        self._generation = generation
        self._silence = Silence(generation.settings.silence_limit)
        self._silence.restart(now)

    def keeper_is_ready(self, now: float) -> None:
        """It has to beat from now on."""
        self._silence.restart(now)

    def stood_still(self, seconds: float, now: float) -> None:
        """The node did not run for so long: hold it against nobody."""
        self._deadlines.shift(seconds)
        self._silence.restart(now)

    def look(self, now: float, *, is_redis_away: bool) -> None:
        """End who is late."""
        for kind, subject in self._deadlines.take_due(now):
            child = self._slots.by_incarnation(subject)
            if child is None:
                continue
            if kind == "boot":
                self._judge_newborn(child, now, is_redis_away=is_redis_away)
            elif kind == "hung up":
                self._kill(child, "closed its channel and did not exit")
            elif kind == "leave":
                self._kill(child, "the time to leave is over")
            elif child.pid is None:
                self._unborn(child, "ended before it said hello")
        self._judge_keeper(now)

    def _judge_newborn(self, child: Child, now: float, *, is_redis_away: bool) -> None:
        reason = f"not ready within {now - child.asked_at:.0f} s"
        if self._is_in_hook(child):
            if not child.has_hook_time:
                # The user's code, as an import is.
                child.has_hook_time = True
                settings = self._generation.settings
                more = max(0.0, settings.import_timeout - settings.boot_timeout)
                self._deadlines.set("boot", child.incarnation, now + more)
                return
            reason += ": a hook on_worker_start has not returned"
            is_redis_away = False
        if child.is_greeted and is_redis_away:
            if child.generation == self._generation.number:
                self._deadlines.set("boot", child.incarnation, now + self._generation.settings.boot_timeout)
                return
            # One of a generation that is only being tried: whoever asked for that waits for an answer.
            reason += ": Redis is unreachable"
        self._judge_template(child)
        self._kill(child, reason)

    def _is_in_hook(self, child: Child) -> bool:
        if child.role != WORKER or child.cell is None:
            return False
        return self._board.worker(child.cell).state == "hooks"

    def _judge_template(self, newborn: Child) -> None:
        """It answers one request after the other: one that has answered none since then hangs."""
        template = newborn.made_by
        if template is None or newborn.pid is not None or template.heard_at >= newborn.asked_at:
            return
        if template.cause is None and template.killed_for is None:
            self._kill(template, "did not answer when it was asked for a process")

    def _judge_keeper(self, now: float) -> None:
        keeper = self._slots.keeper.child
        if keeper is None or not keeper.is_ready or keeper.killed_for is not None:
            return
        if self._silence.is_silent(self._board.keeper.last_beat, now):
            self._kill(keeper, f"silent for more than {self._generation.settings.silence_limit:g} s")
