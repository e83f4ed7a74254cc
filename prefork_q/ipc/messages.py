"""What travels over a channel: life-cycle messages and commands, as JSON.

Each message is a frozen dataclass; its class name is its name on the wire.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple, get_args

import orjson


class Claim(NamedTuple):
    """A task that a worker held, by the token of its lease."""

    id: str
    token: int


class TimedOut(NamedTuple):
    """A running task whose process was killed for it: its attempt is used.

    `limit`: its time limit, s. `delay`: seconds until its next attempt, None if there is none left.
    `stack`: what its thread was doing just before.
    """

    id: str
    token: int
    limit: float
    delay: float | None
    stack: str


class Ended(NamedTuple):
    """How many attempts of a type the keeper ended in one way (a counter of `stats` for types)."""

    type: str
    counter: int
    n: int


# -- from the master ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Go:
    """The newborn is expected: it may begin, and touch Redis."""


@dataclass(frozen=True, slots=True)
class Drain:
    """Stop within `seconds`; a later one replaces an earlier one.

    A worker claims nothing more, lets what runs finish, gives the rest back and exits 0. The api
    answers what it has and exits; for `patience` seconds it also answers once more on connections that are
    open. The keeper gets it when all workers are gone, or to make room for another one: it hands back
    what it was told, then exits.
    """

    seconds: float
    patience: float = 0.0


@dataclass(frozen=True, slots=True)
class Quiet:
    """To a worker: claim nothing more, give back what was not started, and live on. To the keeper: tell
    others that this node does so."""


@dataclass(frozen=True, slots=True)
class Resume:
    """To a worker: claim again. To the keeper: tell others so."""


@dataclass(frozen=True, slots=True)
class Spawn:
    """To the template: make a worker or an api process, as `role` says.

    Descriptors come along: the newborn's end of its channel; then a worker's file for its stacks, or an api
    process's listening sockets.
    """

    role: str
    slot: int
    incarnation: str
    generation: int
    cell: int


@dataclass(frozen=True, slots=True)
class DeathNotice:
    """To the keeper: a worker is dead (waitpid said so); give back what it held. Answer `Acknowledged`.

    `running` were in a handler when it died, `held` are all others that it had claimed (buffered, or
    finished but not committed); no id is in both. `drained`: the master had told it to stop, or killed
    it for reasons of its own, so nothing is charged to any task. Otherwise each of `running` is charged
    a crash. `timed_out` are those of the running ones that the master killed it for. `signal` or
    `exit_code` is set, the other one None; `cause` says the same in words.

    `ran`: seconds, by id, of what was in a handler. `stack`: what the thread that brought the process
    down was doing, if it could still say so.
    """

    incarnation: str
    slot: int
    cause: str
    signal: int | None = None
    exit_code: int | None = None
    drained: bool = False
    running: tuple[Claim, ...] = ()
    held: tuple[Claim, ...] = ()
    peak_rss_bytes: int | None = None
    pid: int | None = None
    generation: int = 0
    timed_out: tuple[TimedOut, ...] = ()
    ran: Mapping[str, float] = field(default_factory=dict)
    oom_killed: bool = False
    stack: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "running", _claims(self.running))
        object.__setattr__(self, "held", _claims(self.held))
        object.__setattr__(self, "timed_out", tuple(TimedOut(*entry) for entry in self.timed_out))


@dataclass(frozen=True, slots=True)
class DumpStacks:
    """To a worker: write what all threads are doing into the file for stacks, then answer `Dumped`."""

    serial: int


# -- to the master -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Hello:
    """A newborn's first words."""

    pid: int


@dataclass(frozen=True, slots=True)
class Ready:
    """Its work has begun: the fetch loop turned once, the server accepts, the handlers are loaded."""


@dataclass(frozen=True, slots=True)
class Failed:
    """It cannot begin, for a reason that a restart will not mend by itself; it exits now."""

    reason: str
    traceback: str = ""


@dataclass(frozen=True, slots=True)
class Spawned:
    """From the template: the process that it made for this incarnation."""

    incarnation: str
    pid: int


@dataclass(frozen=True, slots=True)
class SpawnFailed:
    """From the template: no process was made for this incarnation."""

    incarnation: str
    reason: str


@dataclass(frozen=True, slots=True)
class Unsafe:
    """From the template: importing the handlers left threads or sockets, so it cannot fork them."""

    threads: tuple[str, ...] = ()
    sockets: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "threads", tuple(self.threads))


@dataclass(frozen=True, slots=True)
class ReloadWanted:
    """From the watcher: these files have changed."""

    paths: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "paths", tuple(self.paths))


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """From the keeper: what this incarnation held is given back, the notice may be forgotten.

    `ended`: the attempts that were ended by that, for the numbers of their types.
    """

    incarnation: str
    ended: tuple[Ended, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "ended", tuple(Ended(*entry) for entry in self.ended))


@dataclass(frozen=True, slots=True)
class LeasesExpired:
    """From the keeper: these attempts were ended by the expiry of their leases, whoever held them."""

    ended: tuple[Ended, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "ended", tuple(Ended(*entry) for entry in self.ended))


@dataclass(frozen=True, slots=True)
class Dumped:
    """From a worker: the stacks that were asked for by this number are written."""

    serial: int


@dataclass(frozen=True, slots=True)
class Retiring:
    """From a worker: it claims nothing more and exits when it is idle, for this reason of its own."""

    reason: str


@dataclass(frozen=True, slots=True)
class RedisState:
    """From the keeper, at each change: whether Redis answers, its version once known, what it might do to
    tasks, and the names of the keeper's chores that it refuses."""

    reachable: bool
    version: str | None = None
    warning: str | None = None
    refused: str = ""


Message = (
    Go
    | Drain
    | Quiet
    | Resume
    | Spawn
    | DeathNotice
    | Hello
    | Ready
    | Failed
    | Spawned
    | SpawnFailed
    | Unsafe
    | ReloadWanted
    | Acknowledged
    | LeasesExpired
    | RedisState
    | DumpStacks
    | Dumped
    | Retiring
)

_BY_NAME: dict[str, type[Any]] = {kind.__name__: kind for kind in get_args(Message)}


def encode(message: Message) -> bytes:
    """Return the message as JSON: its name, then its members."""
    members = {field.name: getattr(message, field.name) for field in fields(message)}
    for name, value in members.items():
        if type(value) is str and not value.isascii():
            # The text of an exception may have what cannot be written as UTF-8.
            members[name] = value.encode("utf-8", "backslashreplace").decode()
    return orjson.dumps([type(message).__name__, members], default=_plain)


def decode(data: bytes) -> Message:
    """Return the message that `encode` wrote.

    Raises:
        ValueError: not a message; the two ends are of one program, so this is a mistake in it.
    """
    try:
        name, members = orjson.loads(data)
        message: Message = _BY_NAME[name](**members)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"not a message: {data[:100]!r}") from error
    return message


def _claims(pairs: Iterable[Any]) -> tuple[Claim, ...]:
    return tuple(Claim(id, token) for id, token in pairs)


def _plain(value: object) -> object:
    # A NamedTuple is no plain tuple to orjson.
    if isinstance(value, tuple):
        return list(value)
    raise TypeError(f"{type(value).__name__} does not travel")
