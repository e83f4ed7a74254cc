"""Runs the fault suite: bin/chaos [--minutes M] [--nodes N] [--seed S] [--faults kill_worker,...].

Exit status: 0 all held; 1 something did not: what, the seed, and where the logs are is printed.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.chaos.conductor import HANDLERS, Conductor, Result
from tests.chaos.plan import FAULTS, rounds
from tests.support.flavours import choose

UNFENCED = Path(__file__).with_name("unfenced.py")


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="bin/chaos",
        description="Breaks a service at work in every way at random, and checks that nothing is lost.",
    )
    parser.add_argument("--minutes", type=float, default=2.0, help="of faults; more pass in between")
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2, help="of each node")
    parser.add_argument("--seed", type=int, help="of the plan; printed, and taken at random unless given")
    parser.add_argument("--faults", help=f"only these, by commas: {', '.join(FAULTS)}")
    parser.add_argument("--rate", type=float, default=15.0, help="tasks a second")
    parser.add_argument("--every", type=float, default=0.8, help="mean seconds between two faults")
    parser.add_argument("--round", type=float, default=30.0, help="seconds of faults between two checks")
    parser.add_argument("--server", help="redis or valkey; the first there is unless given")
    parser.add_argument("--unfenced", action="store_true", help="show that a breach is found")
    parser.add_argument("--keep", action="store_true", help="keep the folder with the logs")
    given = parser.parse_args()
    kinds = given.faults.split(",") if given.faults else list(FAULTS)
    unknown = sorted(set(kinds) - set(FAULTS))
    if unknown:
        parser.error(f"no such faults: {', '.join(unknown)}")
    seed = random.randrange(1 << 31) if given.seed is None else given.seed
    servers = choose(os.environ | {"PREFORK_Q_TEST_DOCKER": "0"}).flavours
    chosen = [one for one in servers if one.name.startswith(given.server or "")]
    if not chosen:
        parser.error("no such server on this machine")

    folder = Path(tempfile.mkdtemp(prefix="prefork-q-chaos-"))
    print(f"seed {seed}, {given.nodes} nodes, {chosen[0]}, logs in {folder}", flush=True)
    plan = rounds(
        seed, nodes=given.nodes, seconds=given.minutes * 60, rate=given.rate, faults=kinds,
        every=given.every, length=given.round,
    )  # fmt: skip
    conductor = Conductor(
        chosen[0], folder, nodes=given.nodes, workers=given.workers,
        target=UNFENCED if given.unfenced else HANDLERS,
    )  # fmt: skip
    try:
        result = conductor.run(plan, say=lambda line: print(line, flush=True))
    finally:
        conductor.close()
    report(result, seed)
    if result.violations:
        return 1
    if not given.keep:
        shutil.rmtree(folder)
    return 0


def report(result: Result, seed: int) -> None:
    """Print what was done and what came of it."""
    console = Console(width=100)
    table = Table(title=f"seed {seed}, {result.seconds:.0f} s", show_header=True)
    for name in ("fault", "times", "", "what", "number"):
        table.add_column(name, justify="right" if name in ("times", "number") else "left")
    faults = [(name, str(n)) for name, n in sorted(result.faults.items())]
    numbers = [(name, f"{n:,}") for name, n in result.numbers.items()]
    for row in range(max(len(faults), len(numbers))):
        left = faults[row] if row < len(faults) else ("", "")
        right = numbers[row] if row < len(numbers) else ("", "")
        table.add_row(*left, "", *right)
    console.print(table)
    for line in result.violations[:50]:
        console.print(f"VIOLATED: {line}", markup=False, highlight=False, soft_wrap=True)
    if result.violations:
        again = f"bin/chaos --seed {seed} with the same options makes the same plan"
        console.print(
            f"{len(result.violations)} violations; seed {seed}; logs, ledger and the server's data are in "
            f"{result.folder}; {again}",
            soft_wrap=True, highlight=False,
        )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
