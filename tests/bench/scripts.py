"""What the scripts cost Redis: µs of its main thread a task, and bytes a queued task.

    .venv/bin/python -m tests.bench.scripts [--binary redis-server] [--tasks 20000] [--rounds 3]

It starts a server of its own on a Unix socket, without persistence, and prints the best of some rounds.
`thread` is the whole main thread (reading, parsing, the script, answering), `script` the script alone.
Then, for each verb, how long the largest call that is ever made keeps the server from anything else.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prefork_q.broker import Broker, HandBack, Renewal
from prefork_q.connection import connect
from prefork_q.ids import new_id
from prefork_q.keys import Keys
from prefork_q.leases import ClaimRequest, Settlement
from prefork_q.task import Submission
from tests.support.state import LEASE, State, request
from tests.support.until import until

PAYLOAD = b'{"path":"' + b"x" * 87 + b'"}'
RESULT = b'{"size":12345}'
KEYS = Keys("bench")


@dataclass(frozen=True, slots=True)
class Cost:
    """µs a task."""

    thread: float
    script: float


@contextmanager
def running_server(binary: str) -> Iterator[str]:
    """Run a server; yield its URL."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "redis.sock"
        process = subprocess.Popen(
            [binary, "--port", "0", "--unixsocket", str(path), "--save", "", "--appendonly", "no"],
            stdout=subprocess.DEVNULL,
        )
        try:
            until(path.exists, what="the server's socket")
            yield f"unix://{path}"
        finally:
            process.terminate()
            process.wait(10)


def measured(redis: Any, tasks: int, work: Callable[[], None]) -> Cost:
    """Run `work`, which handles `tasks` tasks, and return what it cost Redis."""
    redis.config_resetstat()
    before = redis.info("cpu")
    work()
    after = redis.info("cpu")
    fields = ("used_cpu_user_main_thread", "used_cpu_sys_main_thread")
    spent = sum(after[field] - before[field] for field in fields)
    calls = redis.info("commandstats")
    inside = sum(calls.get(f"cmdstat_{name}", {"usec": 0})["usec"] for name in ("eval", "evalsha"))
    return Cost(spent * 1e6 / tasks, inside / tasks)


def submit(broker: Broker, tasks: int, batch: int) -> None:
    for _ in range(tasks // batch):
        broker.submit([Submission(id=new_id(), type="thumbnail", body=PAYLOAD) for _ in range(batch)])


def drain(broker: Broker, batch: int) -> None:
    """The worker's loop: complete what was claimed and claim the next, in one call."""
    done: list[Settlement] = []
    seq = 0
    while True:
        seq += 1
        _, claimed = broker.commit(
            done,
            ClaimRequest("bench.0.1", seq, 30_000, batch, batch, 100_000, ["default"], [(b"thumbnail", 50)]),
        )
        done = [Settlement("complete", lease.id, lease.token, 3, RESULT) for lease in claimed.leases]
        if not done:
            return


def largest_calls(redis: Any, keys: Keys) -> Iterator[tuple[str, float]]:
    """Yield each verb with the ms of its largest call."""
    broker, state, done = Broker(redis, keys), State(redis, keys), 1_000

    def timed(name: str, call: Callable[[], Any]) -> tuple[str, float]:
        redis.config_resetstat()
        call()
        return name, redis.info("commandstats")["cmdstat_evalsha"]["usec"] / 1000

    def tasks(n: int, **options: Any) -> list[Submission]:
        return [Submission(id=new_id(), type="thumbnail", body=PAYLOAD, **options) for _ in range(n)]

    def claim(n: int, worker: str = "bench.0.2") -> list[Any]:
        return broker.claim(request(worker, room=n)).leases

    def settlements(verb: str) -> list[Settlement]:
        return [Settlement(verb, lease.id, lease.token, 3, RESULT, "") for lease in claim(done)]

    def prepare() -> None:
        redis.flushall(asynchronous=False)
        for _ in range(2):  # the second time the server knows the scripts
            broker.submit(tasks(done))
            broker.settle(settlements("complete"))
        broker.submit(tasks(done))

    prepare()
    yield timed("submit 1,000", lambda: broker.submit(tasks(done)))
    yield timed("submit 1,000, delayed", lambda: broker.submit(tasks(done, delay=3_600.0)))
    yield timed("claim 1,000", lambda: claim(done))
    for verb in ("complete", "fail", "release"):
        prepare()
        given = settlements(verb)
        broker.settle(given[:1])
        yield timed(f"{verb} 1,000", lambda: broker.settle(given))  # noqa: B023
    prepare()
    given = settlements("complete")
    broker.submit(tasks(done))
    broker.commit([], request(room=0))
    yield timed("commit 1,000 + 1,000", lambda: broker.commit(given, request(room=done)))
    prepare()
    renewals = [Renewal(lease.id.decode(), lease.token, True) for lease in claim(done)]
    broker.renew(renewals[:1], lease=LEASE)
    yield timed("renew 1,000", lambda: broker.renew(renewals, lease=LEASE))
    broker.hand_back("bench.0.3", [], lease=LEASE)
    held = [HandBack(one.id, one.token) for one in renewals]
    yield timed("hand_back 1,000", lambda: broker.hand_back("bench.0.4", held, lease=LEASE))
    leases = claim(done, "bench.0.5")
    for lease in leases:
        state.age(lease.id.decode())
    broker.reap(lease=LEASE)
    state.keepers_are_heard_of()
    yield timed("reap 500", lambda: broker.reap(lease=LEASE))
    broker.promote()
    broker.submit(tasks(500, delay=0.001))
    yield timed("promote 500", broker.promote)
    redis.flushall(asynchronous=False)
    dead = [state.seed("dead") for _ in range(2 * done)]
    broker.retry(dead[:1], nonce="n")
    yield timed("retry 1,000", lambda: broker.retry(dead[:done], nonce="n"))
    broker.trim(dead_limit=done, dead_retention=1e6)
    yield timed("trim 500", lambda: broker.trim(dead_limit=0, dead_retention=1e6))
    broker.purge("default", limit=1)
    yield timed("purge 500", lambda: broker.purge("default"))
    for id in state.pending() + [state.seed("pending") for _ in range(done)]:
        broker.cancel(id)
    yield timed("claim through 1,000 ghosts", lambda: claim(1))


def bytes_per_task(redis: Any, broker: Broker, tasks: int) -> tuple[float, float]:
    """Return the sum of MEMORY USAGE and the growth of used_memory, each a queued task."""
    redis.flushall(asynchronous=False)
    broker.submit([Submission(id=new_id(), type="thumbnail", body=PAYLOAD)])
    before = redis.info("memory")["used_memory"]
    submit(broker, tasks, 500)
    grown = redis.info("memory")["used_memory"] - before
    sizes = redis.memory_usage(KEYS.pending("default"), samples=0)
    for key in redis.scan_iter(f"{KEYS.root}*", count=1000):
        if key.startswith((KEYS.task("").encode(), KEYS.body("").encode())):
            sizes += redis.memory_usage(key)
    return sizes / (tasks + 1), grown / tasks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--binary", default=shutil.which("redis-server"))
    parser.add_argument("--tasks", type=int, default=20_480)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with running_server(options.binary) as url:
        redis = connect(url)
        broker = Broker(redis, KEYS)
        info = redis.info("server")
        print(info.get("server_name", "redis"), info.get("valkey_version") or info["redis_version"])

        def best(tasks: int, work: Callable[[], None], prepare: Callable[[], None]) -> Cost:
            costs = []
            for _ in range(options.rounds):
                redis.flushall(asynchronous=False)
                prepare()
                costs.append(measured(redis, tasks, work))
            return min(costs, key=lambda cost: cost.thread)

        print(f"{'':24}{'thread µs/task':>16}{'script µs/task':>16}")
        total: dict[str, Cost] = {}
        for batch in (1, 64, 500):
            tasks = options.tasks // batch * batch // (4 if batch == 1 else 1)
            total[f"submit {batch}"] = best(tasks, lambda: submit(broker, tasks, batch), lambda: None)  # noqa: B023
        for batch in (1, 16, 64, 256):
            tasks = options.tasks // (4 if batch == 1 else 1)
            total[f"commit {batch}"] = best(
                tasks, lambda: drain(broker, batch), lambda: submit(broker, tasks, 64)  # noqa: B023
            )
        for name, cost in total.items():
            print(f"{name:24}{cost.thread:16.2f}{cost.script:16.2f}")
        first, then = total["submit 64"], total["commit 64"]
        thread, script = first.thread + then.thread, first.script + then.script
        print(f"{'submit + commit 64':24}{thread:16.2f}{script:16.2f}")
        sizes, grown = bytes_per_task(redis, broker, options.tasks)
        for name, ms in largest_calls(redis, KEYS):
            print(f"{name:32}{ms:8.1f} ms")
        print(f"bytes a queued task: {sizes:.0f} by MEMORY USAGE, {grown:.0f} by used_memory")


if __name__ == "__main__":
    main()
