"""Every key in Redis: its pattern, type, who writes it and when it expires. Spelled nowhere else.

All keys of a namespace carry the hash tag `{N}`, so that they share one slot of a cluster and
one script may touch all of them. Scripts get `Keys.root` as KEYS[1] and append the rest
themselves (`lua/parts/keys.lua`); a test compares the two spellings.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

from prefork_q.errors import ConfigurationError

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:@/+-]{0,99}")
"""Names of queues, types and namespaces: up to 100 visible ASCII characters, no space, quote or brace."""


class Key(NamedTuple):
    """One row of the table of keys."""

    pattern: str
    type: str
    holds: str
    written_by: str
    expires: str


TABLE: tuple[Key, ...] = (
    Key("pending:<queue>", "list", "ids, newest left, claimed from the right",
        "submit, claim, fail, release, promote, reap, hand_back, retry", "never"),
    Key("misplaced:<queue>", "any", "what stood where a pending list belongs, set aside to be looked at",
        "claim and what puts ids on a list", "never"),
    Key("processing", "zset", "id -> lease expiry, ms", "claim, renew and what ends a lease", "never"),
    Key("delayed", "zset", "id -> due, ms: retries and tasks for later",
        "submit, fail, release, hand_back, promote, cancel", "never"),
    Key("dead", "zset", "id -> died at, ms",
        "claim, fail, release, reap, hand_back, retry, delete, trim", "never"),
    Key("task:<id>", "hash", "type, queue, status, counters, times, token, a short payload, result or error",
        "every verb", "with the task: the retention after it ended; an open or dead one never"),
    Key("body:<id>", "string", "a payload of more than 512 bytes, as JSON text, opaque to every script",
        "submit", "with the task"),
    Key("idem:<key>", "string", "idempotency key -> `<id> <fingerprint>`", "submit", "with the task"),
    Key("wake:<queue>", "list", "at most a few wake-up tokens",
        "submit, claim, promote, release, reap, hand_back, retry, resume, remind", "never"),
    Key("mover", "list", "a token for the keepers: something is due earlier than was known",
        "submit, fail, release, hand_back", "never"),
    Key("claim:<worker>", "string", "the last claiming call of a worker: `<seq> <token> <id>...`, or `gone`",
        "claim, commit, hand_back", "four leases after the last call"),
    Key("claims", "zset", "worker -> when it last took tasks, ms", "claim, commit, hand_back, audit",
        "never; workers without a claim are dropped"),
    Key("token", "string", "the last fencing token", "claim, commit", "never"),
    Key("totals", "hash", "counters since the namespace began", "the script that makes the outcome", "never"),
    Key("rate:<second>", "hash", "completed and failed in one second of Redis's clock",
        "the script that makes the outcome", "90 s"),
    Key("queues", "hash", "queue -> tasks submitted to it", "submit, register", "never"),
    Key("paused", "set", "queues that are paused", "pause, resume", "never"),
    Key("ghosts", "hash", "queue -> cancelled ids still in its pending list",
        "cancel, claim, purge", "never"),
    Key("corrupt", "zset", "id -> found at, ms: listed ids whose task is missing or unreadable",
        "claim, promote, reap", "never; the newest 1,000"),
    Key("recent", "list", "ids, newest left: the last 10,000 that succeeded or were cancelled",
        "complete, fail, release, reap, hand_back, cancel", "never"),
    Key("cancels", "zset", "id -> asked at, ms: cancellations of running tasks",
        "cancel", "never; the newest 1,000"),
    Key("reaper", "hash",
        "last: when a keeper last reaped or renewed; hold: no reaping before; span: the longest lease told",
        "reap, renew", "never"),
    Key("nodes", "hash", "node -> `<written at, ms> <what it is and runs, as JSON>`",
        "register", "never; silent nodes are dropped"),
    Key("layout", "string", "the version of this layout", "register", "never"),
)

CHANNEL = "ended:<id>"
"""Pub/sub channel (not a key): one message when a task that somebody waits for has ended."""


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of one namespace.

    Raises:
        ConfigurationError: the namespace is not a valid name.
    """

    namespace: str = "default"

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.namespace):
            raise ConfigurationError(f"namespace {self.namespace!r}: {NAME_RULE}")

    @property
    def root(self) -> str:
        """The common beginning of all keys; KEYS[1] of every script. Nothing is stored there."""
        return f"pq:{{{self.namespace}}}:"

    def __call__(self, name: str) -> str:
        """Return the key called `name`: `keys("processing")`."""
        return self.root + name

    def pending(self, queue: str) -> str:
        return f"{self.root}pending:{queue}"

    def wake(self, queue: str) -> str:
        return f"{self.root}wake:{queue}"

    def task(self, id: str) -> str:
        return f"{self.root}task:{id}"

    def body(self, id: str) -> str:
        return f"{self.root}body:{id}"

    def claim(self, worker: str) -> str:
        return f"{self.root}claim:{worker}"

    def ended(self, id: str) -> str:
        return f"{self.root}ended:{id}"


NAME_RULE = (
    "a name has 1 to 100 characters, letters, digits and any of _ . : @ / + -, "
    "and begins with a letter, a digit or _"
)
