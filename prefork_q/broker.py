"""The verbs on tasks. Each is one atomic script in Redis; all are safe to repeat.

`Broker` waits for its answers and is used by clients, the api and the keeper, from any thread.
The worker's fetch loop sends some of the same scripts itself (`worker/fetch.py`); what both say of
claims and outcomes stands in `leases.py`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import orjson

from prefork_q.calls import Calls
from prefork_q.connection import redis
from prefork_q.errors import IdempotencyConflict, Invalid, Stale
from prefork_q.keys import Keys
from prefork_q.layout import LAYOUT
from prefork_q.leases import (
    Claimed,
    ClaimRequest,
    Limits,
    Settlement,
    commit_arguments,
    grouped,
    milliseconds,
    parse_claimed,
)
from prefork_q.states import Status
from prefork_q.task import Submission, Submitted

T = TypeVar("T")

STATUSES = {status.value.encode(): status for status in Status}
"""By what the scripts call them."""

MAX_TOGETHER = 1_000
"""Tasks in one call where all must go in one: a submission of all or none, and what a dead worker held. A
few milliseconds of Redis's time, and well below the about 8,000 values that Lua can pass to one command."""

MAX_BATCH = 500
"""Tasks in one call of any other script: whatever is more than that goes in several."""


@dataclass(frozen=True, slots=True)
class Reminded:
    """Of the queues that were looked at, `queues` have tasks and are not paused; `pending` tasks wait in all.

    `cursor`: where to go on, 0 if these were the last.
    """

    queues: int
    pending: int
    cursor: int


class Unleased(NamedTuple):
    """A task that was called processing and had no lease, and the worker that had claimed it."""

    id: str
    type: str
    worker: str


@dataclass(frozen=True, slots=True)
class Promoted:
    """`next_due` is in seconds from now, None if nothing waits."""

    moved: int
    next_due: float | None


class Expired(NamedTuple):
    """A task whose lease ran out, and where it went."""

    id: str
    type: str
    queue: str
    attempt: int
    status: Status
    losses: int


@dataclass(frozen=True, slots=True)
class Reaped:
    """`is_holding`: no keeper had been heard of for a while, so nobody reaps for one lease."""

    expired: list[Expired]
    is_holding: bool


class Renewal(NamedTuple):
    id: str
    token: int
    is_started: bool


class HandBack(NamedTuple):
    """One task of a dead worker; see `lua/hand_back.lua` for the verdicts."""

    id: str
    token: int
    verdict: str = "held"
    error: bytes = b""
    delay: float | None = None


class Returned(NamedTuple):
    """A task that was handed back, and where it went. `attempt`: the one that ended with its worker."""

    id: str
    type: str
    status: Status
    queue: str = ""
    attempt: int = 0


def submit_arguments(submissions: Iterable[Submission]) -> list[object]:
    """Return the arguments of `submit`: neighbours that differ by id and body alone share the rest."""
    arguments: list[object] = []
    common: tuple[object, ...] | None = None
    size_at = 0
    for id, type_, body, queue, max_attempts, delay, run_at, timeout, key, digest in submissions:
        these = (type_, queue, max_attempts, delay, run_at, timeout, key is None)
        if these != common:
            common = these
            size_at = len(arguments) + 6
            arguments += (
                type_,
                queue,
                max_attempts,
                "" if delay is None else milliseconds(delay),
                "" if run_at is None else milliseconds(run_at),
                "" if timeout is None else milliseconds(timeout),
                0,
                0 if key is None else 1,
            )
        arguments[size_at] += 1  # type: ignore[operator]
        arguments += (id, body) if key is None else (id, body, key, digest or "")
    return arguments


class Broker:
    """The verbs, each a call that waits for its answer.

    Every method raises `Unavailable` when Redis cannot do it now. `client` must not decode
    answers and must not retry.
    """

    def __init__(self, client: redis.Redis, keys: Keys, limits: Limits | None = None) -> None:
        self._calls = Calls(client, keys.root)
        self._limits = limits or Limits()
        self._retention_ms = milliseconds(self._limits.retention)

    # -- submission

    def submit(self, submissions: Sequence[Submission]) -> list[Submitted]:
        """Store all of these tasks, or none. A task whose id is known is not stored again.

        Raises:
            Invalid: there are more than `MAX_TOGETHER`.
            IdempotencyConflict: a key was used before, for another request.
        """
        if len(submissions) > MAX_TOGETHER:
            raise Invalid(
                f"{len(submissions)} tasks in one call: at most {MAX_TOGETHER} can be stored together"
            )
        word, answers = self._calls.script("submit", *submit_arguments(submissions))
        if word == b"conflict":
            index = answers - 1
            raise IdempotencyConflict(
                f"the idempotency key {submissions[index].idempotency_key!r} was used for another request: "
                "send that request again unchanged, or use a new key",
                index=index,
            )
        return _submitted(submissions, answers)

    def submit_in_turn(self, batches: Iterable[Sequence[Submission]]) -> Iterator[list[Submitted]]:
        """Store batches of tasks as `submit` does, each made ready while Redis stores the one before.

        For tasks without idempotency keys, of which no batch can be refused for what it says. The
        client is one of `connect`. A batch whose answer did not come may have been stored: submit
        it again.
        """
        sent = deque[Sequence[Submission]]()

        def arguments() -> Iterator[list[object]]:
            for batch in batches:
                sent.append(batch)
                yield submit_arguments(batch)

        for _, answers in self._calls.script_in_turn("submit", arguments()):
            yield _submitted(sent.popleft(), answers)

    # -- the worker's verbs

    def claim(self, request: ClaimRequest) -> Claimed:
        """Lease what there is room for."""
        return parse_claimed(self._calls.script("claim", self._retention_ms, *request.arguments()))

    def complete(self, id: str | bytes, token: int, result: bytes, *, ran: float = 0.0) -> None:
        """Write the result (JSON) of a task that ran for `ran` seconds.

        Raises:
            Stale: the lease is another's, or nobody's; nothing was written.
        """
        self._settle_one(Settlement("complete", _id(id), token, milliseconds(ran), result))

    def fail(self, id: str | bytes, token: int, error: bytes, *, delay: float | None) -> None:
        """Write the error (JSON); the task is delayed for `delay` seconds, or dead if that is None.

        Raises:
            Stale: the lease is another's, or nobody's; nothing was written.
        """
        after: int | str = "" if delay is None else milliseconds(delay)
        self._settle_one(Settlement("fail", _id(id), token, 0, error, after))

    def release(self, id: str | bytes, token: int, *, delay: float | None = None, error: bytes = b"") -> None:
        """Give a task back; its attempt does not count. With a delay and an error its type is unknown here,
        with a delay alone it is put off.

        Raises:
            Stale: the lease is another's, or nobody's; nothing was written.
        """
        after: int | str = "" if delay is None else milliseconds(delay)
        self._settle_one(Settlement("release", _id(id), token, 0, error, after))

    def settle(self, settlements: Sequence[Settlement]) -> list[str]:
        """Carry out outcomes without claiming, a call or more for each verb, all in one round trip.

        Returns a word an outcome: ok, stale, or what has become of the task instead of what was said:
        cancelled (it was put back, and that had been asked for) or dead (released for its unknown type
        for too long).
        """
        calls, places = [], []
        for verb in ("complete", "fail", "release"):
            of_verb = [place for place, one in enumerate(settlements) if one.verb == verb]
            for chosen in _batches(of_verb):
                calls.append((verb, self._settle_arguments(verb, [settlements[place] for place in chosen])))
                places.append(chosen)
        words = [""] * len(settlements)
        for chosen, answer in zip(places, self._calls.scripts(calls), strict=True):
            for place, word in zip(chosen, answer, strict=True):
                words[place] = word.decode()
        return words

    def commit(self, settlements: Sequence[Settlement], request: ClaimRequest) -> tuple[list[str], Claimed]:
        """Carry out outcomes (at most `MAX_BATCH`) and claim, in one call."""
        words, claimed = self._calls.script(
            "commit", *commit_arguments(grouped(settlements), request, self._limits)
        )
        return [word.decode() for word in words], parse_claimed(claimed)

    def progress(self, reports: Sequence[tuple[str | bytes, int, bytes]]) -> list[str]:
        """Note how far running tasks are: (id, token, JSON). Returns a word each: ok or stale."""
        words: list[str] = []
        for batch in _batches(reports):
            words += self._words("progress", *(part for report in batch for part in report))
        return words

    # -- the keeper's verbs

    def cancellations(self, since: int) -> list[tuple[str, int]]:
        """Return the running tasks whose cancellation was asked for, and when that was (ms on Redis's clock),
        not before `since`, oldest first. Of the last thousand; some may have ended meanwhile."""
        found = self._calls.script("cancellations", since)
        return [(_text(id), int(float(at))) for id, at in zip(found[::2], found[1::2], strict=True)]

    def renew(self, renewals: Sequence[Renewal], *, lease: float) -> list[str]:
        """Extend leases. Returns a word each: ok, cancel (a cancellation was asked for) or stale."""
        words: list[str] = []
        for batch in _batches(renewals):
            arguments: list[object] = [milliseconds(lease)]
            for renewal in batch:
                arguments += (renewal.id, renewal.token, 1 if renewal.is_started else 0)
            words += self._words("renew", *arguments)
        return words

    def promote(self, limit: int = 500) -> Promoted:
        """Move due tasks to their pending lists."""
        moved, *wait_ms = self._calls.script("promote", limit)
        return Promoted(moved, wait_ms[0] / 1_000 if wait_ms else None)

    def reap(self, *, lease: float, limit: int = 500) -> Reaped:
        """Put tasks back whose lease has expired."""
        word, expired = self._calls.script(
            "reap", limit, milliseconds(lease), self._limits.max_losses, self._retention_ms
        )
        return Reaped(
            [
                Expired(id.decode(), _text(type_), _text(queue), attempt, Status(status.decode()), losses)
                for id, type_, queue, attempt, status, losses in expired
            ],
            is_holding=word == b"holding",
        )

    def hand_back(self, worker: str, entries: Sequence[HandBack], *, lease: float) -> list[Returned]:
        """Put back what a dead worker held, and refuse claims in its name from now on.

        Returns what this call has put back: the same call again puts nothing back. A call puts back all of
        the last claim, what is not named too, so what a worker held is named in one.
        """
        returned: list[Returned] = []
        for batch in _batches(entries, MAX_TOGETHER) or [[]]:
            arguments: list[object] = [
                worker,
                milliseconds(lease),
                self._limits.max_crashes,
                self._retention_ms,
            ]
            for entry in batch:
                after = "" if entry.delay is None else milliseconds(entry.delay)
                arguments += (entry.id, entry.token, entry.verdict, entry.error, after)
            returned += [
                Returned(
                    id.decode(),
                    _text(type_),
                    Status(status.decode()),
                    _text(queue),
                    attempt,
                )
                for id, type_, queue, attempt, status in self._calls.script("hand_back", *arguments)
            ]
        return returned

    def remind(self, cursor: int = 0) -> Reminded:
        """Leave a wake-up token for every queue with tasks that is not paused, of some hundred queues.

        `cursor` is where to go on, 0 at the beginning.
        """
        after, n, waiting = self._calls.script("remind", cursor, MAX_BATCH)
        return Reminded(int(n), int(waiting), int(after))

    def audit(self, *, lease: float, start: int = 0, limit: int = 500) -> tuple[int, list[Unleased]]:
        """Give a lease to tasks that are called processing and have none, among what was claimed last.

        Returns where to go on (0: that was all) and what was found.
        """
        next_start, found = self._calls.script("audit", milliseconds(lease), start, limit)
        return next_start, [
            Unleased(id.decode(), _text(type_), _text(worker))
            for id, type_, worker in found
        ]

    def trim(self, *, dead_limit: int, dead_retention: float, limit: int = 500) -> int:
        """Delete the oldest dead tasks beyond a number or an age. Returns how many."""
        return int(self._calls.script("trim", dead_limit, milliseconds(dead_retention), limit))

    def register(self, node: str, info: dict[str, Any], *, silence: float = 60.0) -> str:
        """Say that a node lives. Returns the version of the layout that is stored; nothing is written if
        that is not LAYOUT."""
        answer = self._calls.script(
            "register", node, orjson.dumps(info), milliseconds(silence), LAYOUT, *info.get("queues", ())
        )
        return bytes(answer).decode()

    # -- the operator's verbs

    def retry(self, ids: Sequence[str], *, nonce: str) -> list[str]:
        """Give dead tasks a new life. Returns a word each: ok, not_dead or missing.

        `nonce` names this request: repeated with the same one it answers the same.
        """
        return [word for batch in _batches(ids) for word in self._words("retry", nonce, *batch)]

    def cancel(self, id: str) -> str:
        """Cancel a task. Returns cancelled, requested (it runs), ended or missing."""
        return bytes(self._calls.script("cancel", id, self._retention_ms)).decode()

    def delete(self, ids: Sequence[str]) -> list[str]:
        """Delete dead tasks for good. Returns a word each: ok, not_dead or missing."""
        return [word for batch in _batches(ids) for word in self._words("delete", *batch)]

    def purge(self, queue: str, *, limit: int = 500) -> tuple[int, int]:
        """Delete pending tasks of a queue. Returns (left the list, deleted)."""
        left, deleted = self._calls.script("purge", queue, limit, self._retention_ms)
        return left, deleted

    def pause(self, queue: str) -> str:
        """Claim nothing more from a queue. Returns ok or missing."""
        return bytes(self._calls.script("pause", queue)).decode()

    def resume(self, queue: str) -> str:
        """Claim from a paused queue again. Returns ok or missing."""
        return bytes(self._calls.script("resume", queue)).decode()

    def watch(self, id: str) -> str:
        """Ask for a message on the task's channel when it ends. Returns its status, or missing."""
        return bytes(self._calls.script("watch", id)).decode()

    # -- how scripts are called

    def _settle_one(self, settlement: Settlement) -> None:
        answer = self._calls.script(settlement.verb, *self._settle_arguments(settlement.verb, [settlement]))
        if answer[0] == b"stale":
            raise Stale(f"{settlement.verb}: the lease of task {settlement.id.decode()} is not held any more")

    def _settle_arguments(self, verb: str, settlements: Iterable[Settlement]) -> list[object]:
        arguments: list[object] = [self._retention_ms]
        if verb == "release":
            arguments.append(milliseconds(self._limits.unknown_limit))
        for one in settlements:
            if verb == "complete":
                arguments += (one.id, one.token, one.ran_ms, one.text)
            else:
                arguments += (one.id, one.token, one.text, one.delay_ms)
        return arguments

    def _words(self, verb: str, *arguments: object) -> list[str]:
        return [word.decode() for word in self._calls.script(verb, *arguments)]


def _batches(entries: Sequence[T], size: int = MAX_BATCH) -> list[Sequence[T]]:
    return [entries[start : start + size] for start in range(0, len(entries), size)]


def _submitted(
    submissions: Sequence[Submission], answers: Sequence[bytes | Sequence[bytes]]
) -> list[Submitted]:
    done: list[Submitted] = []
    for one, answer in zip(submissions, answers, strict=True):
        if isinstance(answer, bytes):
            done.append(Submitted(one[0], STATUSES[answer]))
        else:
            first = answer[1].decode()
            # Its own id: the same call again, after its answer was lost.
            done.append(Submitted(first, STATUSES[answer[0]], first != one[0]))
    return done


def _id(id: str | bytes) -> bytes:
    return id.encode() if isinstance(id, str) else id


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")
