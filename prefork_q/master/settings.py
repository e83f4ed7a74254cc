"""What the master is told at its start: plain values, and the entry points of its children."""

from __future__ import annotations

import re
import secrets
import socket
from collections.abc import Callable
from dataclasses import dataclass, field

from prefork_q.ipc.birth import Birth
from prefork_q.master.deadlines import FIRST_DELAY, LONGEST_DELAY

SHORTEST_SILENCE, LONGEST_SILENCE = 5.0, 30.0
"""Seconds: a keeper may wait for Redis for almost as long as the former, and does not hang; after the latter
it is replaced however long the leases are, since it also moves what is due."""
RESTART = 1.0
"""Seconds that the birth of a keeper takes at most."""

EntryPoint = Callable[[Birth], int]
"""Runs in a fresh process, says hello with `birth.introduce()`, and returns the exit code."""


def node_name() -> str:
    """Return a name for this life of the node, never used again: short host name and random digits."""
    host = re.sub(r"[^A-Za-z0-9-]+", "-", socket.gethostname().split(".")[0])[:48].strip("-")
    return f"{host or 'node'}-{secrets.token_hex(4)}"


def keeper_silence(lease: float) -> float:
    """Return how many seconds a keeper may not beat, for leases of so many seconds."""
    return max(SHORTEST_SILENCE, min(LONGEST_SILENCE, lease / 6))


def doubt_of_lease(lease: float) -> str | None:
    """Say why a lease of so many seconds is too short for comfort; None if it is not."""
    silence = keeper_silence(lease)
    least = 3 * (silence + RESTART)
    if lease >= least:
        return None
    return (
        f"a lease of {lease:g} s is short: a keeper that hangs is replaced after {silence:g} s, and nobody "
        f"renews leases until then, so running tasks may be run again elsewhere; take {least:g} s or more"
    )


@dataclass(frozen=True, slots=True)
class Entrypoints:
    """The code of the children. The template's makes the workers and the api processes; no store: Redis is
    elsewhere; no watcher: a change of the code on disk is nobody's business."""

    template: EntryPoint
    keeper: EntryPoint
    store: EntryPoint | None = None
    watcher: EntryPoint | None = None


@dataclass(frozen=True, slots=True)
class MasterSettings:
    """Plain values; times in seconds.

    `slots` is the most workers that there may ever be and `most_threads` the most threads that each may ever
    have (the scoreboard is made for them), `held` the most tasks that a worker may have claimed at once.
    `boot_timeout` is what a newborn has until it is ready, `import_timeout` the same where the handlers have
    to be imported or a start hook runs. `keep_fds` are descriptors that every child keeps, such as the log's.
    `preload` is auto, on or off.
    """

    version: str
    workers: int
    threads: int = 1
    slots: int = 64
    most_threads: int = 1
    held: int = 640
    api_processes: int = 1
    lease: float = 30.0
    drain_timeout: float = 30.0
    boot_timeout: float = 30.0
    import_timeout: float = 120.0
    preload: str = "auto"
    keep_fds: tuple[int, ...] = ()
    keeper_silence: float | None = None
    max_rss: int = 0
    deaf_after: float = 15.0
    node: str = field(default_factory=node_name)

    @property
    def silence_limit(self) -> float:
        """How long the keeper may not beat before it is replaced; far below a lease."""
        return keeper_silence(self.lease) if self.keeper_silence is None else self.keeper_silence

    @property
    def keeper_delay(self) -> float:
        """The longest wait between two births of the keeper: who renews has to be there again in time."""
        return max(FIRST_DELAY, min(LONGEST_DELAY, self.lease / 10))


@dataclass(frozen=True, slots=True)
class Generation:
    """A configuration, and the code that goes with it; counted from 1 by the reloads that went well."""

    number: int
    settings: MasterSettings
    entrypoints: Entrypoints


def _nothing() -> None:
    pass


@dataclass(frozen=True, slots=True)
class Reading:
    """What the configuration says when it is read anew.

    `is_changed`: it says something else than before. `adopt` is called when it begins to hold.
    """

    settings: MasterSettings
    entrypoints: Entrypoints
    is_changed: bool = False
    adopt: Callable[[], None] = _nothing


Reread = Callable[[], Reading]
"""Reads the configuration anew; raises ConfigurationError if it is wrong, or says what cannot change."""
