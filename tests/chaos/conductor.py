"""Carries out a plan: nodes and clients at work, faults at their times, and a look at everything after each
round, when the faults have ended and nothing is left to do.
"""

from __future__ import annotations

import heapq
import itertools
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import redis

from prefork_q.errors import Unavailable
from prefork_q.inspector import Inspector
from prefork_q.keys import Keys
from tests.chaos.checker import check
from tests.chaos.clients import Clients
from tests.chaos.faults import Faults
from tests.chaos.plan import DRAIN, Fault, Round
from tests.chaos.servers import Servers
from tests.chaos.site import Site
from tests.support.flavours import Flavour
from tests.support.server import NEVER
from tests.support.state import State
from tests.support.until import until

HANDLERS = Path(__file__).with_name("handlers.py")
QUIET = 100.0
"""Seconds after a round within which everything must have recovered and every task must have ended."""
TICK = 0.02
LOOK_INTERVAL = 0.3
"""Seconds between two looks at the sums while everything is at work."""


@dataclass(slots=True)
class Result:
    """What a run has come to. `numbers` add up over the rounds."""

    folder: Path
    faults: Counter[str] = field(default_factory=Counter)
    numbers: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    seconds: float = 0.0


class Conductor:
    """One run, in its own folder, on a server of its own. Use it in the process's main thread."""

    def __init__(
        self, flavour: Flavour, folder: Path, *, nodes: int, workers: int = 2, target: Path = HANDLERS
    ) -> None:
        self._folder = folder
        self._ledger = folder / "ledger"
        self._keys = Keys("chaos")
        self._servers = Servers(flavour, folder)
        self._sites = [
            Site(
                number, self._servers.name(), folder / f"node-{number}", target=target,
                namespace=self._keys.namespace, ledger=self._ledger, workers=workers, threads=1 + number % 3,
            )
            for number in range(nodes)
        ]  # fmt: skip
        self._faults = Faults(self._servers, self._sites)
        # Their link is a good one, and leads to the new primary like the nodes'.
        url = self._servers.name().url
        self._clients = Clients([site.node for site in self._sites], url, self._keys.namespace)
        self._redis = redis.Redis.from_url(url, socket_timeout=0.5, retry=NEVER)
        self._inspector = Inspector(self._redis, self._keys)
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._looked_at = 0.0
        self._totals: dict[str, int] = {}
        self._known: set[str] = set()
        self._result = Result(folder)

    def run(self, rounds: Sequence[Round], *, say: Callable[[str], None] = print) -> Result:
        """Carry the rounds out, until one ends badly."""
        began = time.monotonic()
        for site in self._sites:
            site.start()
        self._turn_until(self._are_whole, 40, "the nodes' start")
        for number, planned in enumerate(rounds, 1):
            if self._result.violations:
                break
            self._carry_out(planned)
            self._become_quiet()
            self._check()
            say(
                f"round {number} of {len(rounds)}: {self._faults.injected.total()} faults, "
                f"{self._result.numbers['accepted']} tasks, {len(self._result.violations)} violations"
            )
        self._stop()
        self._result.faults = self._faults.injected
        self._result.seconds = time.monotonic() - began
        return self._result

    def close(self) -> None:
        """End everything that runs, whatever its state."""
        self._clients.close()
        for site in self._sites:
            site.close()
        self._redis.close()
        self._servers.close()

    # -- a round

    def _carry_out(self, planned: Round) -> None:
        began = time.monotonic()
        for submission in planned.submissions:
            self._at(began + submission.at, partial(self._clients.go, submission))
        for fault in planned.faults:
            self._at(began + fault.at, partial(self._inject, fault))
        while time.monotonic() < began + planned.seconds:
            self._turn()

    def _inject(self, fault: Fault) -> None:
        end = self._faults.inject(fault)
        if end is not None:
            self._at(time.monotonic() + fault.duration, end)

    def _become_quiet(self) -> None:
        """End all faults and wait until nothing is left to be done."""
        # A failover takes up to two seconds, in which nothing else begins: after many the plan is late.
        self._turn_until(lambda: not self._due, QUIET, "the end of all faults")
        self._faults.make_whole()
        if not self._turn_until(lambda: self._clients.is_idle, QUIET, "an answer to every client"):
            return
        self._turn_until(self._is_all_done, QUIET, "the end of every task")
        self._turn_until(self._are_whole, QUIET, "nodes that are whole again")

    def _is_all_done(self) -> bool:
        try:
            counts = self._inspector.counts()
        except Unavailable:
            return False
        return counts.pending + counts.processing + counts.delayed == 0

    def _are_whole(self) -> bool:
        return not any(site.trouble() for site in self._sites)

    def _check(self) -> None:
        with self._servers.client(socket_timeout=10) as admin:
            found = check(
                State(admin, self._keys), self._clients, self._faults, self._ledger,
                [site.node.log_path for site in self._sites],
            )  # fmt: skip
        self._result.numbers = found.numbers
        self._result.violations += found.violations + self._clients.failures
        self._result.violations += self._late_exits()

    def _late_exits(self) -> list[str]:
        late = []
        for site in self._sites:
            for one in site.exits:
                if one.since is None:
                    continue
                stopped = sum(
                    stop.until - max(stop.since, one.since)
                    for stop in self._faults.stops
                    if stop.until > one.since and stop.since < one.at
                )
                # A second is promised; another is for a machine that is busy with all this.
                if one.at - one.since - stopped > DRAIN + 3:
                    late.append(f"node {site.number} took {one.at - one.since:.1f} s to drain")
            site.exits.clear()
        return late

    def _stop(self) -> None:
        """The end: an orderly one, after which nothing is left."""
        for site in self._sites:
            site.is_wanted = False
            if site.is_up:
                code = site.node.stop()
                if code != 0 and not self._result.violations:
                    self._result.violations.append(f"node {site.number} exited {code} at the end")
        if not self._result.violations:
            try:
                until(lambda: not any(site.left() for site in self._sites), 3, "the end of all processes")
            except AssertionError:
                self._result.violations += [line for site in self._sites for line in site.left()]

    # -- time

    def _at(self, when: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._due, (when, next(self._numbers), action))

    def _turn(self) -> None:
        now = time.monotonic()
        while self._due and self._due[0][0] <= now:
            heapq.heappop(self._due)[2]()
        for site in self._sites:
            site.supervise()
        self._faults.tick()
        self._clients.tick()
        if now - self._looked_at > LOOK_INTERVAL:
            self._looked_at = now
            self._look()
        time.sleep(TICK)

    def _look(self) -> None:
        """The numbers add up at any moment, and those that count never fall."""
        try:
            counts = self._inspector.counts()
        except Unavailable:
            return
        totals = dict(counts.totals)
        now = {"pending": counts.pending, "processing": counts.processing, "delayed": counts.delayed,
               "dead": counts.dead}  # fmt: skip
        ended = {name: totals.get(name, 0) for name in ("completed", "cancelled", "removed")}
        if totals.get("submitted", 0) != sum(now.values()) + sum(ended.values()):
            self._breach("at work the sums do not add up", f"{totals}, {now}")
        for name, value in self._totals.items():
            if totals.get(name, 0) < value:
                self._breach(f"the total of {name} fell", f"from {value} to {totals.get(name)}")
        self._totals = totals

    def _breach(self, what: str, how: str) -> None:
        """Note what was found at work; each kind once."""
        if what not in self._known:
            self._known.add(what)
            self._result.violations.append(f"{what}: {how}")

    def _turn_until(self, condition: Callable[[], bool], seconds: float, what: str) -> bool:
        """Go on until it is so; a violation if that does not come about in time."""
        deadline = time.monotonic() + seconds
        next_look = 0.0
        while True:
            self._turn()
            now = time.monotonic()
            if now >= next_look:
                next_look = now + 0.25
                if condition():
                    return True
            if now > deadline:
                troubles = [f"node {site.number}: {site.trouble() or 'whole'}" for site in self._sites]
                self._result.violations.append(f"{seconds:g} s passed without {what}: {'; '.join(troubles)}")
                return False
