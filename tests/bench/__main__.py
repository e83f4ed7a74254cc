"""The benchmark: the project beside its peers and the limit, in one run on one server of its own.

    bin/bench [--quick] [--only NAME…] [--peers NAME…] [--server redis|valkey] [--rounds N]
              [--minutes N] [--scale X] [--backlog 10000000] [--json FILE] [--report FOLDER]

What is measured is chosen with --only: submission, drain, pickup, cpu, memory, idle, backlog, recovery,
start, limit. --peers takes names of libraries, `best` (one setting each), `all` or `none`. The rounds of all
contenders are interleaved, so that what else the machine does hits all alike. Figures are medians with the
lowest and highest of the rounds. --quick makes everything tiny: for trying the harness, not for figures.
--scale multiplies how many tasks a drain is given, for slower or busier machines than two quiet cores.
--minutes bounds the run: what is left then is not measured, and the report says of what it has fewer rounds.

With --report it writes benchmarks.md and its pictures there; --from FILE makes the report anew from the
figures of an earlier run.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.bench import environments, limit, measures, product, report
from tests.bench.contenders import CONTENDERS, PROJECT, Contender, chosen
from tests.bench.stand import Stand

WHAT = ("limit", "drain", "submission", "pickup", "recovery", "start", "memory", "backlog", "cpu", "idle")
FOUR_THREADS = "prefork-q, 4 threads"


class Run:
    """One run: measures, prints as it goes, and keeps what it has found."""

    def __init__(self, stand: Stand, options: argparse.Namespace, contenders: list[Contender]) -> None:
        self.stand = stand
        self.options = options
        self.contenders = contenders
        self.found: dict[str, Any] = {}
        self.failed: list[str] = []
        self.late: set[str] = set()
        self.deadline = None if options.minutes is None else time.monotonic() + options.minutes * 60
        self._given_up: set[tuple[str, str]] = set()

    def rounds(self, what: str, names: list[str], measure: Callable[[str], dict[str, float]], n: int) -> None:
        """Measure each of `names` in turn, `n` times over."""
        seen: dict[str, list[dict[str, float]]] = {}
        for number in range(n):
            for name in names:
                if (what, name) in self._given_up:
                    continue
                began = time.monotonic()
                if self.deadline is not None and began > self.deadline:
                    self.late.add(what)
                    continue
                try:
                    one = measure(name)
                except (RuntimeError, OSError, AssertionError) as error:
                    self._given_up.add((what, name))
                    self.failed.append(f"{what}, {name}: {str(error).splitlines()[0]}")
                    say(f"{what} · {name}: failed: {error}")
                    continue
                seen.setdefault(name, []).append(one)
                shown = " ".join(f"{key}={value:,.6g}" for key, value in one.items())
                say(f"{what} · {name} · {number + 1}/{n} ({time.monotonic() - began:.1f} s): {shown}")
        self.found[what] = {name: measures.figures(rounds) for name, rounds in seen.items()}

    def everything(self) -> None:
        for what in self.options.only:
            getattr(self, what)()

    # -- what is measured

    def limit(self) -> None:
        quick = self.options.quick
        loops = {
            f"bare loop, {batch} a call, {n} process{'es' * (n > 1)}": (limit.bare_loop, batch, n, tasks)
            for batch, tasks in ((1, 8_000), (16, 60_000), (64, 100_000))
            for n in (1, 2)
        } | {
            f"our scripts, {batch} a call, {n} process{'es' * (n > 1)}": (limit.script_loop, batch, n, tasks)
            for batch, tasks in ((64, 60_000), (256, 60_000))
            for n in (1, 2)
        }

        def measure(name: str) -> dict[str, float]:
            if name == "PING":
                return limit.ping(self.stand, 2_000 if quick else 10_000)
            loop, batch, processes, tasks = loops[name]
            return loop(self.stand, batch, processes, int(tasks * (0.1 if quick else self.options.scale)))

        self.rounds("limit", ["PING", *loops], measure, self.options.rounds)

    def submission(self) -> None:
        quick = self.options.quick

        def measure(name: str) -> dict[str, float]:
            if name == "bare EVALSHA":
                return limit.submission(
                    self.stand, one=500 if quick else 5_000, bulk=5_000 if quick else 50_000
                )
            contender = self.by_name(name)
            one = 500 if quick else 5_000
            bulk = 50_000 if contender.is_project else 20_000 if contender.has_bulk else 5_000
            return measures.submission(self.stand, contender, one=one, bulk=bulk // 10 if quick else bulk)

        self.rounds(
            "submission",
            ["bare EVALSHA", *self.one_a_library()],
            measure,
            self.options.rounds,
        )

    def drain(self) -> None:
        def measure(name: str) -> dict[str, float]:
            one = self.by_name(name)
            tasks = max(200, one.tasks // 10) if self.options.quick else int(one.tasks * self.options.scale)
            return measures.drain(self.stand, one, tasks)

        self.rounds("drain", self.names(), measure, self.options.rounds)

    def pickup(self) -> None:
        n = 20 if self.options.quick else 150
        self.rounds(
            "pickup",
            self.one_a_library(is_node=False),
            lambda name: measures.pickup(self.stand, self.by_name(name), n),
            self.options.rounds,
        )

    def cpu(self) -> None:
        # Of few, the last one that runs alone at the end would be a part of the figure.
        n = 40 if self.options.quick else 500
        self.rounds(
            "cpu",
            [*self.one_a_library(is_node=False), *self.names(lambda one: one.name == FOUR_THREADS)],
            lambda name: measures.cpu_bound(self.stand, self.by_name(name), n),
            self.options.rounds,
        )

    def memory(self) -> None:
        quick = self.options.quick
        forking = [
            one.name
            for one in self.contenders
            if one.name in (PROJECT, "Huey, processes", "Celery", "Celery, lean")
        ]
        self.rounds(
            "memory",
            forking,
            lambda name: measures.memory(
                self.stand,
                self.by_name(name),
                megabytes=20 if quick else 200,
                workers=4 if quick else 8,
                tasks=50 if quick else 1_000 if name == PROJECT else 100,
            ),
            self.options.rounds,
        )

    def idle(self) -> None:
        self.rounds(
            "idle",
            self.one_a_library(is_node=False),
            lambda name: measures.idle(self.stand, self.by_name(name), 4 if self.options.quick else 15),
            self.options.rounds,
        )

    def backlog(self) -> None:
        sizes = [1_000, 10_000] if self.options.quick else [1_000, 10_000, 100_000, 1_000_000]
        sizes += [n for n in self.options.backlog if n not in sizes]
        self.rounds(
            "backlog",
            [str(size) for size in sizes],
            lambda name: product.backlog(self.stand, int(name), seconds=3),
            1 if self.options.quick else 3,
        )

    def recovery(self) -> None:
        self.rounds(
            "recovery", [PROJECT], lambda _: product.recovery(self.stand, 2 if self.options.quick else 7), 1
        )

    def start(self) -> None:
        self.rounds(
            "start",
            [PROJECT],
            lambda _: product.start(self.stand.folder, asks=3 if self.options.quick else 15),
            self.options.rounds,
        )

    # --

    def one_a_library(self, *, is_node: bool = True) -> list[str]:
        """Return the best setting of each library: submission and pickup are alike in all of them."""
        found: dict[str, Contender] = {}
        for one in self.contenders:
            known = found.get(one.library)
            if known is None or (one.is_best and not known.is_best):
                found[one.library] = one
        return [one.name for one in found.values() if is_node or not one.is_node]

    def names(self, wanted: Callable[[Contender], bool] = lambda one: True) -> list[str]:
        return [one.name for one in self.contenders if wanted(one)]

    @staticmethod
    def by_name(name: str) -> Contender:
        return next(one for one in CONTENDERS if one.name == name)


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def machine() -> dict[str, Any]:
    """Describe the machine, without names or paths."""
    model = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    return {
        "processor": f"{os.cpu_count()} cores, {model}",
        "memory_gib": round(memory),
        "system": f"Linux {platform.release().split('-')[0]}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="bin/bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=WHAT, default=list(WHAT), metavar="NAME")
    parser.add_argument("--peers", nargs="+", default=["all"], metavar="NAME")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--server", choices=("redis", "valkey"), default="redis")
    parser.add_argument("--backlog", type=int, nargs="+", default=[])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--report", type=Path)
    parser.add_argument("--from", dest="earlier", type=Path)
    options = parser.parse_args()
    if options.earlier is not None:
        report.write(json.loads(options.earlier.read_text()), options.report or Path("docs"))
        return
    options.rounds = options.rounds or (1 if options.quick else 3)
    wanted = chosen([PROJECT, *(word for word in options.peers if word != "none")])
    contenders = []
    for one in wanted:
        try:
            environments.environment(one.library)
        except Exception as error:
            say(f"{one.name} is left out: it cannot be installed here: {error}")
            continue
        contenders.append(one)
    load = os.getloadavg()[0]
    started = time.time()
    with tempfile.TemporaryDirectory(prefix="prefork-q-bench-") as folder:
        stand = Stand(Path(folder), options.server)
        run = Run(stand, options, contenders)
        try:
            run.everything()
        finally:
            stand.close()
            found = {
                "date": time.strftime("%Y-%m-%d", time.gmtime(started)),
                "minutes": (time.time() - started) / 60,
                "load": {"before": load, "after": os.getloadavg()[0]},
                "machine": machine(),
                "server": stand.version,
                "quick": options.quick,
                "rounds": options.rounds,
                "versions": {one.library: environments.versions(one.library) for one in contenders},
                "settings": {one.name: [one.setting, one.described()] for one in contenders},
                "found": run.found,
                "late": sorted(run.late),
                "failed": run.failed,
            }
            if options.json is not None:
                options.json.write_text(json.dumps(found, indent=1))
    if options.report is not None:
        report.write(found, options.report)
    sys.exit(1 if run.failed else 0)


if __name__ == "__main__":
    main()
