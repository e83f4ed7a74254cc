"""A namespace of millions: no script keeps Redis for long, and what waits costs what runs nothing.

    .venv/bin/python -m tests.bench.size [--pending 1000000] [--delayed 1000000] [--binary redis-server]

It starts servers of its own on Unix sockets, without persistence; a task takes about half a kilobyte there,
so ten million need five gigabytes. A second, small one is there to compare with: the two take turns, since
the same work takes a quarter longer from one minute to the next where others share the machine's caches.
They are compared in two ways, with the same limit: by the throughput of a node, which has so much to do on
both that its workers never wait, and by that of a caller alone. It claims, completes and submits in a loop
and only waits for Redis, so it shows more of what Redis takes longer for memory that is in no cache.
Exit status 1 if a limit below was passed. Run it on an idle machine: a server that has to wait for a core
looks slow, and so does one whose memory is. What Redis takes to find a key that is in no cache is said beside
the rest: a task is looked for cold twice in its life, when it is submitted and when it is claimed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from prefork_q.broker import Broker
from prefork_q.connection import connect
from prefork_q.ids import new_id
from prefork_q.inspector import Inspector
from prefork_q.keeper.pruner import BATCH as TRIM_BATCH
from prefork_q.keys import Keys
from prefork_q.leases import ClaimRequest, Settlement
from prefork_q.scripts import scripts
from prefork_q.states import Status
from prefork_q.task import Submission
from tests.bench.scripts import running_server
from tests.support.node import Node
from tests.support.state import State
from tests.support.until import until

NAMESPACE = "size"
KEYS = Keys(NAMESPACE)
BODY = b'{"path":"' + b"x" * 91 + b'"}'

SLOW_MS = 20.0
LOSS = 0.15
"""How much slower it may be with all that waiting."""
TURNS, TURN, NODE_TURN = 7, 20_000, 100_000
"""How often the two are compared, and over how many tasks. The medians count."""
FORBIDDEN = ("keys", "scan", "smembers", "sort")
CLAIM_BATCH = 256
BESIDE_FEW, BESIDE_ALL = "a caller alone beside 1,000", "a caller alone beside all that"
NODE_BESIDE_FEW, NODE_BESIDE_ALL = "a node beside little else", "a node beside all that"
SUBMIT_BATCH = 500

HANDLERS = """
from prefork_q import App

app = App()

@app.task("thumbnail")
def thumbnail(path: str) -> int:
    return 1
"""


class Speed(NamedTuple):
    """`cost` in µs of Redis's main thread, which hardly depends on what else the machine does."""

    rate: float
    cost: float


class Bench:
    """The namespace and what was measured in it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.redis: Any = connect(url)
        self.broker = Broker(self.redis, KEYS)
        self.inspector = Inspector(self.redis, KEYS)
        self.state = State(self.redis, KEYS)
        self.rows: list[tuple[str, ...]] = []
        self.failures: list[str] = []
        self.speeds: dict[str, list[Speed]] = {}
        self._names = {script.sha.decode(): verb for verb, script in scripts().items()}
        self._seq = 0
        self.redis.config_set("slowlog-log-slower-than", 1_000)
        self.redis.config_set("slowlog-max-len", 100_000)

    def measure(self, what: str, n: int, work: Callable[[], None]) -> None:
        """Do `work` on `n` things; note how long that and its slowest scripts took.

        The middle is that of the scripts that took over a millisecond.
        """
        self.redis.slowlog_reset()
        began, spent = time.perf_counter(), self._cpu_seconds()
        work()
        seconds = time.perf_counter() - began
        cost = (self._cpu_seconds() - spent) * 1e6 / n
        slow = self.redis.slowlog_get(100_000)
        # Not the bench's own commands: to empty a slow log of ten thousand lines takes Redis 50 ms.
        times = sorted(
            (entry["duration"] / 1000, self._name(entry["command"]))
            for entry in slow
            if entry["command"].startswith(b"EVAL")
        )
        slowest, middle = (times[-1], times[len(times) // 2]) if times else ((0.0, ""), (0.0, ""))
        if slowest[0] > SLOW_MS:
            self.failures.append(f"{what}: {slowest[1]} took {slowest[0]:.1f} ms")
        rate = n / seconds
        over = sum(duration > SLOW_MS for duration, _ in times)
        self.rows.append(
            (
                what, f"{n:,}", f"{rate:,.0f}", f"{cost:.1f}", f"{middle[0]:.1f}",
                f"{slowest[0]:.1f} {slowest[1]}", f"{over}",
            )
        )
        print(*self.rows[-1], sep="  ", flush=True)
        self.speeds.setdefault(what, []).append(Speed(rate, cost))

    def median(self, what: str) -> Speed:
        rates, costs = zip(*self.speeds[what], strict=True)
        return Speed(median(rates), median(costs))

    def _cpu_seconds(self) -> float:
        used = self.redis.info("cpu")
        return float(used["used_cpu_user_main_thread"] + used["used_cpu_sys_main_thread"])

    def _name(self, command: bytes) -> str:
        words = command.decode("utf-8", "replace").split()
        return self._names.get(words[1], words[0]) if len(words) > 1 else " ".join(words)

    # -- work

    def submit(self, n: int, *, queue: str = "default", run_at: float | None = None) -> None:
        for start in range(0, n, SUBMIT_BATCH):
            self.broker.submit(
                [
                    Submission(id=new_id(), type="thumbnail", body=BODY, queue=queue, run_at=run_at)
                    for _ in range(min(SUBMIT_BATCH, n - start))
                ]
            )

    def claim(
        self, done: list[Settlement], room: int, *, queue: str = "default", lease_ms: int = 600_000
    ) -> list[Any]:
        self._seq += 1
        request = ClaimRequest("bench.0.1", self._seq, lease_ms, room, room, 0, [queue])
        _, claimed = self.broker.commit(done, request)
        return claimed.leases

    def work(self, n: int, *, refill: bool) -> None:
        """A worker's loop for `n` tasks; with `refill` as many are submitted as are done."""
        done: list[Settlement] = []
        handled = 0
        while handled < n:
            leases = self.claim(done, 64)
            done = [Settlement("complete", lease.id, lease.token, 3, b"1") for lease in leases]
            handled += len(leases)
            if refill:
                self.submit(len(leases))
        self.claim(done, 0)

    def price_of_cold(self) -> tuple[float, float]:
        """Return what it takes Redis to find a key that is in no cache, and one that is in, in µs."""
        ids = self.redis.lrange(KEYS("pending:default"), -50_000, -49_501)
        keys = [KEYS("task:") + id.decode() for id in ids]
        return self._price_of_keys(keys), min(self._price_of_keys(keys) for _ in range(5))

    def _price_of_keys(self, keys: list[str]) -> float:
        spent = self._exists_us()
        self.redis.exists(*keys)
        return (self._exists_us() - spent) / len(keys)

    def _exists_us(self) -> float:
        return float(self.redis.info("commandstats").get("cmdstat_exists", {"usec": 0})["usec"])

    def let_drain(self, n: int) -> None:
        """Let a node end `n` tasks."""
        self.broker.resume("default")
        end = self._completed() + n
        until(lambda: self._completed() >= end, 120, f"an end of {n:,} tasks", every=0.0005)
        self.broker.pause("default")

    def _completed(self) -> int:
        return int(self.redis.hget(KEYS("totals"), "completed") or 0)

    def let_die(self, n: int, queue: str) -> None:
        done: list[Settlement] = []
        for _ in range(0, n, CLAIM_BATCH):
            leases = self.claim(done, CLAIM_BATCH, queue=queue)
            error = b'{"type":"ValueError","message":"no","traceback":"' + b"x" * 500 + b'"}'
            done = [Settlement("fail", lease.id, lease.token, 0, error) for lease in leases]
        self.claim(done, 0)

    def let_expire(self, n: int, queue: str) -> None:
        for _ in range(0, n, CLAIM_BATCH):
            self.claim([], CLAIM_BATCH, queue=queue, lease_ms=1)

    def reap(self) -> None:
        self.state.keepers_are_heard_of()
        while self.broker.reap(lease=30).expired:
            continue

    def promote(self) -> None:
        while self.broker.promote().moved:
            continue

    def look(self) -> None:
        self.inspector.counts()
        for status in Status:
            self.inspector.page(status)
        self.inspector.page(None)
        self.broker.remind()
        self.broker.trim(dead_limit=100_000_000, dead_retention=1e9)

    def trim(self, limit: int) -> None:
        while self.broker.trim(dead_limit=limit, dead_retention=1e9, limit=TRIM_BATCH) >= TRIM_BATCH:
            continue

    def purge(self, queue: str) -> None:
        while self.broker.purge(queue)[0]:
            continue


def run(bench: Bench, small: Bench, pending: int, delayed: int, dead: int, expired: int) -> None:
    bench.measure("submit", pending, lambda: bench.submit(pending))
    bench.submit(dead + expired, queue="others")
    bench.measure("fail, for the last time", dead, lambda: bench.let_die(dead, "others"))
    due = time.time() + 3600
    bench.measure("submit for later", delayed, lambda: bench.submit(delayed, queue="later", run_at=due))
    bench.let_expire(expired, "others")
    bench.measure("reap expired leases", expired, bench.reap)

    small.submit(1_000)
    for _ in range(TURNS):
        for one, what in ((small, BESIDE_FEW), (bench, BESIDE_ALL)):
            one.measure(what, TURN, lambda one=one: one.work(TURN, refill=True))
    small.purge("default")
    cold, warm = bench.price_of_cold()
    print(f"a key that is in no cache is found in {cold:.2f} µs, one that is in {warm:.2f}")
    compare_nodes(bench, small)
    bench.measure("sums, pages, reminders", 20, lambda: [bench.look() for _ in range(20)] and None)

    # All become due in one second: their times are moved, a part at a time, as no script could.
    ids = bench.redis.zrange(KEYS("delayed"), 0, -1)
    for start in range(0, len(ids), 10_000):
        bench.redis.zadd(KEYS("delayed"), dict.fromkeys(ids[start : start + 10_000], 1))
    del ids
    bench.measure("promote what is due at once", delayed, bench.promote)
    bench.measure("trim the dead", dead, lambda: bench.trim(0))
    bench.measure("purge a queue", delayed, lambda: bench.purge("later"))

    for what, few in ((BESIDE_ALL, BESIDE_FEW), (NODE_BESIDE_ALL, NODE_BESIDE_FEW)):
        lost = loss(bench, what, small.median(few))
        if lost > LOSS:
            bench.failures.append(f"{what} is {lost:.0%} slower than {few}")
    used = bench.redis.info("commandstats")
    # These are the bench's own: one zrange of all that was delayed.
    bench.failures += [f"{name.upper()} was used" for name in FORBIDDEN if f"cmdstat_{name}" in used]
    memory = bench.redis.info("memory")
    print(f"peak memory {memory['used_memory_peak_human']}")


def loss(bench: Bench, what: str, few: Speed) -> float:
    large = bench.median(what)
    lost, dearer = 1 - large.rate / few.rate, large.cost / few.cost - 1
    print(
        f"{what}, medians of {TURNS} turns: {large.rate:,.0f} a second, "
        f"{lost:.1%} fewer than {few.rate:,.0f}; "
        f"{large.cost:.1f} µs of Redis, {dearer:.1%} more than {few.cost:.1f}"
    )
    return lost


def compare_nodes(bench: Bench, small: Bench) -> None:
    """Let a node work on either server in turn; the other's is paused meanwhile."""
    with working_node(bench), working_node(small):
        for _ in range(TURNS):
            for one, what in ((small, NODE_BESIDE_FEW), (bench, NODE_BESIDE_ALL)):
                one.submit(2 * NODE_TURN if one is small else NODE_TURN)
                one.measure(what, NODE_TURN, lambda one=one: one.let_drain(NODE_TURN))
                until(lambda one=one: not one.redis.zcard(KEYS("processing")), 30, "an end of all claimed")
            small.purge("default")


@contextmanager
def working_node(bench: Bench) -> Iterator[Node]:
    """Run a node as it is shipped, with two workers. Its queue is paused."""
    bench.broker.pause("default")
    with tempfile.TemporaryDirectory() as folder:
        handlers = Path(folder, "handlers.py")
        handlers.write_text(HANDLERS)
        # It must leave the dead and the delayed as they are for what is measured after it.
        node = Node(
            bench.url, Path(folder, "node"), namespace=NAMESPACE, target=f"{handlers}:app", workers=2,
            no_http=True, dead_limit=100_000_000,
        )
        try:
            yield node.start()
            node.stop()
        finally:
            node.close()
    bench.broker.resume("default")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--binary", default="redis-server")
    parser.add_argument("--pending", type=int, default=1_000_000)
    parser.add_argument("--delayed", type=int, default=1_000_000)
    parser.add_argument("--dead", type=int, default=200_000)
    parser.add_argument("--expired", type=int, default=50_000)
    given = parser.parse_args()
    with running_server(given.binary) as url, running_server(given.binary) as small_url:
        bench, small = Bench(url), Bench(small_url)
        run(bench, small, given.pending, given.delayed, given.dead, given.expired)
    table = Table(title=f"{given.pending:,} pending, {given.delayed:,} delayed, {given.dead:,} dead")
    for name in ("what", "tasks", "a second", "µs of Redis each", "middle, ms", "slowest, ms", "over 20"):
        table.add_column(name, justify="left" if name == "what" else "right")
    for row in small.rows + bench.rows:
        table.add_row(*row)
    Console(width=120).print(table)
    for failure in small.failures + bench.failures:
        print(f"TOO MUCH: {failure}")
    return 1 if small.failures or bench.failures else 0


if __name__ == "__main__":
    sys.exit(main())
