"""Hand back: what a dead worker held goes back to its queues, within milliseconds of its death.

The master keeps each notice until it is acknowledged, and sends it again to a new keeper; the call
is safe to repeat. So it is acknowledged only once Redis has said that it is done.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from prefork_q.broker import Broker, HandBack, Returned
from prefork_q.errors import Unavailable
from prefork_q.events import Events, Level, Outcome
from prefork_q.ipc import stats
from prefork_q.ipc.messages import Acknowledged, DeathNotice, Ended
from prefork_q.ipc.scoreboard import RoleSlot
from prefork_q.keeper.agenda import NEVER
from prefork_q.keeper.postmortem import PostMortem, of_crash, of_time_limit
from prefork_q.states import Status

OUTCOMES: Final[dict[Status, Outcome]] = {
    Status.PENDING: "released",
    Status.DELAYED: "retrying",
    Status.DEAD: "dead",
    Status.CANCELLED: "cancelled",
}
COUNTERS = {Status.PENDING: stats.RELEASED, Status.DEAD: stats.DEAD, Status.CANCELLED: stats.CANCELLED}


class Returner:
    """Hands back one worker's tasks a run, those of the longest dead first."""

    name = "hand_back"
    needs_redis = True

    def __init__(
        self,
        broker: Broker,
        acknowledge: Callable[[Acknowledged], None],
        events: Events,
        slot: RoleSlot,
        *,
        lease: float,
    ) -> None:
        self._broker = broker
        self._acknowledge = acknowledge
        self._events = events
        self._slot = slot
        self._lease = lease
        self._notices: dict[str, DeathNotice] = {}

    def add(self, notice: DeathNotice) -> None:
        """Take a notice in; one that was sent again replaces the first."""
        self._notices[notice.incarnation] = notice

    @property
    def is_done(self) -> bool:
        return not self._notices

    def left(self) -> list[str]:
        """Return the ids of the tasks that still wait to be handed back."""
        return [
            id
            for notice in self._notices.values()
            for id in (
                *(late.id for late in notice.timed_out),
                *(claim.id for claim in (*notice.running, *notice.held)),
            )
        ]

    def run(self, now: float) -> float:
        for notice in self._notices.values():
            try:
                ended = self._hand_back(notice)
            except Unavailable:
                # If it is this one that is refused, the others are not to wait for it.
                self._notices[notice.incarnation] = self._notices.pop(notice.incarnation)
                raise
            del self._notices[notice.incarnation]
            self._acknowledge(Acknowledged(notice.incarnation, ended))
            break
        return now if self._notices else NEVER

    def _hand_back(self, notice: DeathNotice) -> tuple[Ended, ...]:
        verdicts = list(_verdicts(notice))
        # Of several claims of one task the latest is the one that may count.
        by_id = {one.entry.id: one for one in sorted(verdicts, key=lambda one: one.entry.token)}
        entries = [verdict.entry for verdict in verdicts]
        ended: Counter[tuple[str, int]] = Counter()
        # One call, which also ends the worker's name and finds what its last claim took unseen.
        for one in self._broker.hand_back(notice.incarnation, entries, lease=self._lease):
            ended.update(self._note(notice, one, by_id.get(one.id, UNSEEN)))
        return tuple(Ended(type, counter, n) for (type, counter), n in ended.items())

    def _note(self, notice: DeathNotice, one: Returned, verdict: Verdict) -> list[tuple[str, int]]:
        """Count and log one; return what counts for its type."""
        self._slot.add(stats.HANDED_BACK)
        is_timed_out, has_crashed = verdict.entry.verdict == "timed_out", verdict.entry.verdict == "crashed"
        counters = [COUNTERS[one.status]] if one.status in COUNTERS else []
        if has_crashed and one.status is Status.PENDING:
            counters = []
        if is_timed_out:
            counters.append(stats.FAILED)
            if one.status is Status.DELAYED:
                counters.append(stats.RETRIED)
        for counter in counters:
            self._slot.add(counter)
        if is_timed_out:
            self._log_attempt(notice, one, verdict)
        else:
            self._log(notice, one, verdict, has_crashed=has_crashed)
        return [(one.type, counter) for counter in counters if counter < stats.TYPE_COUNTERS]

    def _log_attempt(self, notice: DeathNotice, one: Returned, verdict: Verdict) -> None:
        """As the worker would have: the attempt is over."""
        events = self._events.with_process(worker=notice.slot, gen=notice.generation, pid=notice.pid)
        error = verdict.error
        line = events.attempt_line(
            one.id, one.type, one.queue, one.attempt, OUTCOMES[one.status], notice.ran.get(one.id, 0.0),
            error.type if error else None, error.message if error else None,
        )  # fmt: skip
        events.lines([line])

    def _log(self, notice: DeathNotice, one: Returned, verdict: Verdict, *, has_crashed: bool) -> None:
        level: Level = "error" if one.status is Status.DEAD else "warning" if has_crashed else "info"
        ran, error = notice.ran.get(one.id), verdict.error
        self._events.with_process(worker=notice.slot, gen=notice.generation, pid=notice.pid).emit(
            "handed_back", level=level, id=one.id, type=one.type, queue=one.queue, attempt=one.attempt,
            outcome=OUTCOMES[one.status], duration_ms=None if ran is None else round(ran * 1000, 3),
            has_crashed=has_crashed, cause=notice.cause,
            error_type=error.type if error else None, error_message=error.message if error else None,
        )  # fmt: skip


class Verdict(NamedTuple):
    """What is said to Redis of one task, and the error that it is told with."""

    entry: HandBack
    error: PostMortem | None = None


UNSEEN: Final = Verdict(HandBack("", 0))
"""Of a task that the worker had claimed and not entered in its slot yet."""


def _verdicts(notice: DeathNotice) -> Iterator[Verdict]:
    """Return the verdicts: only what ran in a process that died by itself has crashed."""
    for late in notice.timed_out:
        error = of_time_limit(notice, late)
        yield Verdict(HandBack(late.id, late.token, "timed_out", error.text, late.delay), error)
    crash = None if notice.drained else of_crash(notice)
    for claim in notice.running:
        if crash is None:
            yield Verdict(HandBack(claim.id, claim.token))
        else:
            yield Verdict(HandBack(claim.id, claim.token, "crashed", crash.text), crash)
    for claim in notice.held:
        yield Verdict(HandBack(claim.id, claim.token))
