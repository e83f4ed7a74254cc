"""What is claimed and how it is settled, as the scripts `claim` and `commit` spell it.

Shared by `Broker`, which waits for its answers, and by the worker's fetch loop, which does not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple

MAX_LOSSES = 10
"""Expired leases that a started task survives; one more and it is dead, 'lease lost'."""

UNKNOWN_LIMIT = 3_600.0
"""Seconds that a task of a type that no worker knows is put back before it is dead."""

MAX_CLAIM_BYTES = 1 << 20
"""Bytes of payloads in one claim; a single task may be larger."""


class Lease(NamedTuple):
    """A claimed task, as the answer of Redis has it: bytes stay bytes until somebody reads them."""

    id: bytes
    type: bytes
    queue: bytes
    body: bytes
    attempt: int
    max_attempts: int
    crashes: int
    timeout_ms: int
    wait_ms: int
    token: int


class Alike(NamedTuple):
    """Claimed tasks that have all this in common; `tasks` are id, body and ms waited, of each in turn."""

    type: bytes
    queue: bytes
    attempt: int
    max_attempts: int
    crashes: int
    timeout_ms: int
    tasks: list[Any]

    def each(self) -> Iterator[tuple[bytes, bytes, int]]:
        """Iterate over the tasks, as id, body and ms waited."""
        flat = iter(self.tasks)
        return zip(flat, flat, flat, strict=True)


class Settlement(NamedTuple):
    """What a worker says of a task that it holds; see `lua/parts/settle.lua`.

    `text` is a result or an error as JSON. `delay_ms` is "" for none: then a failed task is
    dead, and a released one goes back to its queue at once.
    """

    verb: str
    id: bytes
    token: int
    ran_ms: int = 0
    text: bytes = b""
    delay_ms: int | str = ""


class SettlementGroup(NamedTuple):
    """Settlements that have a verb, a token and a delay in common."""

    verb: str
    token: int
    delay_ms: int | str
    ids: Sequence[bytes]
    ran_ms: Sequence[int]
    texts: Sequence[bytes]

    def arguments(self) -> list[object]:
        """Return the arguments for `commit`: few, since each costs both sides a tenth of a µs."""
        verb, token, delay_ms, ids, ran_ms, texts = self
        if texts.count(texts[0]) == len(texts):
            texts = texts[:1]
        return [verb, token, delay_ms, " ".join(map(str, ran_ms)), len(texts), *texts, len(ids), *ids]


class ClaimRequest(NamedTuple):
    """What a worker has room for; see `lua/parts/take.lua`."""

    worker: str
    seq: int
    lease_ms: int
    room: int
    limit: int
    budget_us: int
    queues: Sequence[str]
    paces_us: Sequence[tuple[bytes, int]] = ()

    def arguments(self) -> list[object]:
        flat: list[object] = [
            self.worker,
            self.seq,
            self.lease_ms,
            self.room,
            self.limit,
            self.budget_us,
            MAX_CLAIM_BYTES,
            len(self.queues),
            *self.queues,
        ]
        for type_, pace_us in self.paces_us:
            flat += (type_, pace_us)
        return flat


@dataclass(frozen=True, slots=True)
class Claimed:
    """The answer to a claim. `dropped` tells of entries that were unreadable and why.

    `is_again`: the tasks are those that an earlier call with the same seq took. `has_more`: the
    queues have more that could be claimed.
    """

    lots: list[Alike]
    token: int
    is_gone: bool = False
    is_again: bool = False
    has_more: bool = False
    dropped: tuple[tuple[str, str], ...] = ()

    @property
    def leases(self) -> list[Lease]:
        """All tasks, one by one."""
        return [
            Lease(
                id, lot.type, lot.queue, body, lot.attempt, lot.max_attempts, lot.crashes, lot.timeout_ms,
                wait_ms, self.token,
            )
            for lot in self.lots
            for id, body, wait_ms in lot.each()
        ]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Limits:
    """What ends tasks. `retention` in seconds."""

    retention: float = 86_400.0
    max_crashes: int = 3
    max_losses: int = MAX_LOSSES
    unknown_limit: float = UNKNOWN_LIMIT


def milliseconds(seconds: float) -> int:
    return round(seconds * 1_000)


def grouped(settlements: Iterable[Settlement]) -> list[SettlementGroup]:
    """Return neighbours that differ by id, time and text alone as a group."""
    return [
        SettlementGroup(*common, *zip(*((one.id, one.ran_ms, one.text) for one in group), strict=True))
        for common, group in groupby(settlements, lambda one: (one.verb, one.token, one.delay_ms))
    ]


def commit_arguments(
    groups: Sequence[SettlementGroup], request: ClaimRequest, limits: Limits
) -> list[object]:
    """Return the arguments of `commit`."""
    arguments: list[object] = [
        milliseconds(limits.retention), milliseconds(limits.unknown_limit), len(groups),
    ]  # fmt: skip
    for group in groups:
        arguments += group.arguments()
    arguments += request.arguments()
    return arguments


def parse_claimed(answer: list[Any]) -> Claimed:
    """Return what a claim has answered."""
    word, token, lots, dropped, left = answer
    return Claimed(
        lots=[Alike._make(lot) for lot in lots],
        token=int(token),
        is_gone=word == b"gone",
        is_again=word == b"again",
        has_more=left == 1,
        dropped=tuple((name.decode("utf-8", "replace"), reason.decode()) for name, reason in dropped),
    )
