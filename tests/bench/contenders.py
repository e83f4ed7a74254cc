"""Who is measured, and in which settings: the project, and each peer in its best and its default one."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

PROJECT = "prefork-q"


@dataclass(frozen=True, slots=True)
class Contender:
    """One setting of one library.

    `commands` start its workers, two processes in all; their words may hold {bin} (of its environment),
    {folder} (for its own files), {redis} and {port}. `tasks` is how many a drain is given, chosen for about
    two seconds on two cores. `slow_start` is the seconds that its idle state takes to settle.
    """

    name: str
    library: str
    commands: tuple[tuple[str, ...], ...]
    setting: str
    tasks: int
    module: str = ""
    environ: Mapping[str, str] = field(default_factory=dict)
    is_best: bool = False
    acknowledges: bool = True
    stores_results: bool = False
    has_bulk: bool = False
    is_node: bool = False

    @property
    def is_project(self) -> bool:
        return self.library == PROJECT

    @property
    def bin(self) -> Path:
        return Path(sys.executable).parent

    def described(self) -> str:
        """Say what it does with a task."""
        return ", ".join(
            (
                "acknowledges" if self.acknowledges else "no acknowledgement",
                "results stored" if self.stores_results else "no results",
            )
        )


def twice(*command: str) -> tuple[tuple[str, ...], ...]:
    return (command, command)


def project(*options: str, name: str = PROJECT, setting: str = "as shipped", **more: object) -> Contender:
    """Return the project with two workers and more options of `run`."""
    command = (
        "{bin}/prefork-q",
        "run",
        "prefork_app:app",
        "--redis-url",
        "{redis}",
        "--workers",
        "2",
        "--state-dir",
        "{folder}/state",
        "--ctl-socket",
        "{folder}/ctl.sock",
        "--log-file",
        "{folder}/log",
        "--http",
        "127.0.0.1:{port}",
        *options,
    )
    return Contender(
        name,
        PROJECT,
        (command,),
        setting,
        150_000,
        "prefork_app",
        stores_results=True,
        has_bulk=True,
        is_best=True,
        **more,  # type: ignore[arg-type]
    )


CONTENDERS = (
    project(setting="as shipped: 1 thread a worker, log, results, leases, API and metrics on"),
    project("--threads", "4", name="prefork-q, 4 threads", setting="4 processor threads a worker"),
    Contender(
        "taskiq, stream",
        "taskiq",
        (("{bin}/taskiq", "worker", "taskiq_app:broker", "--workers", "2", "--log-level", "WARNING"),),
        "RedisStreamBroker, its defaults",
        20_000,
        "taskiq_app",
        is_best=True,
    ),
    Contender(
        "taskiq, stream, results",
        "taskiq",
        (("{bin}/taskiq", "worker", "taskiq_app:broker", "--workers", "2", "--log-level", "WARNING"),),
        "RedisStreamBroker with RedisAsyncResultBackend",
        10_000,
        "taskiq_app",
        {"BENCH_VARIANT": "results"},
        stores_results=True,
    ),
    Contender(
        "taskiq, list",
        "taskiq",
        (("{bin}/taskiq", "worker", "taskiq_app:broker", "--workers", "2", "--log-level", "WARNING"),),
        "ListQueueBroker",
        20_000,
        "taskiq_app",
        {"BENCH_VARIANT": "list"},
        acknowledges=False,
    ),
    Contender(
        "Dramatiq",
        "dramatiq",
        (("{bin}/dramatiq", "--processes", "2", "dramatiq_app"),),
        "its defaults: 8 threads a process, prefetch 16",
        10_000,
        "dramatiq_app",
    ),
    Contender(
        "Dramatiq, prefetch 512",
        "dramatiq",
        (("{bin}/dramatiq", "--processes", "2", "dramatiq_app"),),
        "8 threads a process, prefetch 512",
        20_000,
        "dramatiq_app",
        {"dramatiq_queue_prefetch": "512"},
        is_best=True,
    ),
    Contender(
        "Dramatiq, prefetch 512, results",
        "dramatiq",
        (("{bin}/dramatiq", "--processes", "2", "dramatiq_app"),),
        "8 threads a process, prefetch 512, results in Redis",
        20_000,
        "dramatiq_app",
        {"dramatiq_queue_prefetch": "512", "BENCH_VARIANT": "results"},
        stores_results=True,
    ),
    Contender(
        "Huey, processes",
        "huey",
        (("{bin}/huey_consumer", "huey_app.huey", "-k", "process", "-w", "2", "-q"),),
        "one consumer, 2 processes",
        12_000,
        "huey_app",
        acknowledges=False,
    ),
    Contender(
        "Huey, 8 threads",
        "huey",
        twice("{bin}/huey_consumer", "huey_app.huey", "-k", "thread", "-w", "8", "-q"),
        "two consumers of 8 threads",
        16_000,
        "huey_app",
        acknowledges=False,
        is_best=True,
    ),
    Contender(
        "RQ",
        "rq",
        twice("{bin}/rq", "worker", "--url", "{redis}", "--quiet"),
        "its default: a fork a task",
        400,
        "rq_app",
        stores_results=True,
        has_bulk=True,
    ),
    Contender(
        "RQ, SimpleWorker",
        "rq",
        twice("{bin}/rq", "worker", "--url", "{redis}", "--quiet", "--worker-class", "rq.SimpleWorker"),
        "no fork",
        2_000,
        "rq_app",
        stores_results=True,
        has_bulk=True,
        is_best=True,
    ),
    Contender(
        "Celery",
        "celery",
        (("{bin}/celery", "--app", "celery_app", "worker", "--concurrency", "2", "--loglevel", "WARNING"),),
        "its default: prefetch 4, early acknowledgement, results in Redis",
        4_000,
        "celery_app",
        stores_results=True,
    ),
    Contender(
        "Celery, lean",
        "celery",
        (
            (
                "{bin}/celery",
                "--app",
                "celery_app",
                "worker",
                "--concurrency",
                "2",
                "--loglevel",
                "WARNING",
                "--without-gossip",
                "--without-mingle",
                "--without-heartbeat",
            ),
        ),
        "prefetch 64, no results, no gossip, mingle or heartbeat",
        4_000,
        "celery_app",
        {"BENCH_VARIANT": "lean"},
        is_best=True,
    ),
    Contender(
        "arq",
        "arq",
        twice("{bin}/arq", "arq_app.WorkerSettings"),
        "its defaults: poll every 0.5 s, 10 jobs",
        400,
        "arq_app",
        stores_results=True,
    ),
    Contender(
        "arq, tuned",
        "arq",
        twice("{bin}/arq", "arq_app.WorkerSettings"),
        "poll every 10 ms, 100 jobs",
        5_000,
        "arq_app",
        {"BENCH_VARIANT": "tuned"},
        stores_results=True,
        is_best=True,
    ),
    Contender(
        "SAQ",
        "saq",
        twice("{bin}/saq", "saq_app.settings", "--quiet"),
        "its default concurrency of 10",
        8_000,
        "saq_app",
        stores_results=True,
        is_best=True,
    ),
    Contender(
        "streaq",
        "streaq",
        twice("{bin}/streaq", "run", "streaq_app:worker"),
        "its defaults",
        6_000,
        "streaq_app",
        stores_results=True,
        has_bulk=True,
        is_best=True,
    ),
    Contender(
        "BullMQ for Python",
        "bullmq",
        twice("{bin}/python", "{peers}/bullmq_app.py"),
        "its default: 1 at a time",
        6_000,
        "bullmq_app",
        stores_results=True,
        has_bulk=True,
    ),
    Contender(
        "BullMQ for Python, 20 at once",
        "bullmq",
        twice("{bin}/python", "{peers}/bullmq_app.py"),
        "concurrency 20",
        8_000,
        "bullmq_app",
        {"BENCH_VARIANT": "tuned"},
        stores_results=True,
        has_bulk=True,
        is_best=True,
    ),
    Contender(
        "BullMQ on Node, 100 at once",
        "bullmq-node",
        twice("node", "{peers}/bullmq_node.mjs", "work"),
        "concurrency 100",
        40_000,
        "bullmq_node.mjs",
        {"BENCH_VARIANT": "tuned"},
        stores_results=True,
        has_bulk=True,
        is_best=True,
        is_node=True,
    ),
)


def chosen(words: list[str]) -> list[Contender]:
    """Return the contenders whose name or library is among `words`; `all`, `best` and `main` are groups.

    Raises:
        ValueError: a word names none.
    """
    found: list[Contender] = []
    for word in words:
        matching = [
            one
            for one in CONTENDERS
            if word in ("all", one.name, one.library) or (word == "best" and one.is_best)
        ]
        if not matching:
            names = ", ".join(sorted({one.library for one in CONTENDERS}))
            raise ValueError(f"no contender is called {word!r}: all, best, or of {names}")
        found += [one for one in matching if one not in found]
    return found
