"""Hand back: what a dead worker held goes back to its queues, within milliseconds of its death.

The master keeps each notice until it is acknowledged, and sends it again to a new keeper; the call
is safe to repeat. So it is acknowledged only once Redis has said that it is done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import orjson

from prefork_q.broker import Broker, HandBack, Returned
from prefork_q.events import Events, Level
from prefork_q.ipc import stats
from prefork_q.ipc.messages import Acknowledged, Claim, DeathNotice
from prefork_q.ipc.scoreboard import RoleSlot
from prefork_q.keeper.agenda import NEVER
from prefork_q.states import Status

BATCH = 500

OUTCOMES = {
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
        return [claim.id for notice in self._notices.values() for claim in (*notice.running, *notice.held)]

    def run(self, now: float) -> float:
        for notice in self._notices.values():
            self._hand_back(notice)
            del self._notices[notice.incarnation]
            self._acknowledge(Acknowledged(notice.incarnation))
            break
        return now if self._notices else NEVER

    def _hand_back(self, notice: DeathNotice) -> None:
        entries = list(_entries(notice))
        crashed = {entry.id for entry in entries if entry.verdict == "crashed"}
        # The first call also ends the worker's name and finds what its last claim took unseen.
        for start in range(0, max(len(entries), 1), BATCH):
            for one in self._broker.hand_back(
                notice.incarnation, entries[start : start + BATCH], lease=self._lease
            ):
                self._note(notice, one, has_crashed=one.id in crashed)

    def _note(self, notice: DeathNotice, one: Returned, *, has_crashed: bool) -> None:
        self._slot.add(stats.HANDED_BACK)
        if not has_crashed or one.status is not Status.PENDING:
            self._slot.add(COUNTERS.get(one.status, stats.RELEASED))
        level: Level = "error" if one.status is Status.DEAD else "warning" if has_crashed else "info"
        self._events.emit(
            "handed_back", level=level, id=one.id, type=one.type, outcome=OUTCOMES[one.status],
            has_crashed=has_crashed, cause=notice.cause, worker=notice.slot,
        )  # fmt: skip


def _entries(notice: DeathNotice) -> Iterator[HandBack]:
    """Return the verdicts: only what ran in a process that died by itself has crashed."""
    error = b"" if notice.drained else crash_error(notice)
    verdict = "held" if notice.drained else "crashed"
    for claim in notice.running:
        yield _entry(claim, verdict, error)
    for claim in notice.held:
        yield _entry(claim, "held", b"")


def _entry(claim: Claim, verdict: str, error: bytes) -> HandBack:
    return HandBack(claim.id, claim.token, verdict, error)


def crash_error(notice: DeathNotice) -> bytes:
    """Return the error of a task whose worker died under it, as JSON text."""
    cause: dict[str, object] = {"signal": notice.signal, "exit_code": notice.exit_code}
    if notice.peak_rss_bytes:
        cause["peak_rss_bytes"] = notice.peak_rss_bytes
    return orjson.dumps(
        {
            "type": "WorkerDied",
            "message": f"its worker died while it ran this task: {notice.cause}",
            "traceback": "",
            "cause": cause,
        }
    )

