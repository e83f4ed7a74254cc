"""Short runs of the fault suite; bin/chaos makes longer ones. A seed gives the same plan again."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.chaos.__main__ import UNFENCED, report
from tests.chaos.conductor import HANDLERS, Conductor, Result
from tests.chaos.plan import FAULTS, LEASE, Fault, Round, Submission, rounds
from tests.support.fixtures import flavours

pytestmark = pytest.mark.timeout(300)

Perform = Callable[..., Result]


@pytest.fixture
def perform(tmp_path: Path, pytestconfig: pytest.Config) -> Iterator[Perform]:
    """Carry out a plan on two nodes; the report is shown if the test fails."""
    kinds = [one for one in flavours(pytestconfig) if one.binary]
    if not kinds:
        pytest.skip("the server has to be a process, to be killed and stopped")
    begun: list[Conductor] = []

    def perform(plan: Sequence[Round], *, seed: int = 0, target: Path = HANDLERS) -> Result:
        print(f"seed {seed}")
        conductor = Conductor(kinds[-(seed % len(kinds))], tmp_path, nodes=2, target=target)
        begun.append(conductor)
        result = conductor.run(plan)
        report(result, seed)
        return result

    yield perform
    for conductor in begun:
        conductor.close()


@pytest.mark.parametrize("seed", [20261129, random.SystemRandom().randrange(1 << 31)], ids=["known", "new"])
def test_nothing_is_lost_or_done_twice_whatever_breaks(perform: Perform, seed: int) -> None:
    plan = rounds(seed, nodes=2, seconds=15, rate=10, faults=list(FAULTS), every=0.7, length=15)

    result = perform(plan, seed=seed)

    assert result.violations == [], f"seed {seed}"
    assert result.numbers["accepted"] > 50
    assert result.faults.total() > 5


@pytest.mark.parametrize("seed", [0, 1], ids=["first-flavour", "last-flavour"])
def test_the_server_fails_over_in_every_way_then_dies_and_nothing_is_lost(
    perform: Perform, seed: int
) -> None:
    [work] = rounds(seed, nodes=2, seconds=8, rate=10, faults=["fail_over"], every=1, length=8)
    faults = [Fault(1.0 + 2 * way, "fail_over", 0, (way + 0.5) / 3, 0.7) for way in range(3)]
    # What the last primary took over it has on its disk.
    faults.append(Fault(7.2, "kill_server", 0, 0.0, 0.1))

    result = perform([replace(work, faults=faults)], seed=seed)

    assert result.violations == []
    assert result.faults == {"fail_over": 3, "kill_server": 1}
    assert result.numbers["accepted"] > 30


def test_without_the_fence_of_tokens_a_breach_is_found(perform: Perform) -> None:
    tasks = [Submission(0.1 * n, n, "sleep", "sleep", {"label": n, "seconds": 1.0}, -1) for n in range(40)]
    # All workers are stopped for more than a lease while they run something, one of each node at a time.
    stops = [
        Fault(2 + 2 * LEASE * turn, "stop_worker", node, 0.6 * turn, 1.8 * LEASE)
        for turn in (0, 1)
        for node in (0, 1)
    ]

    result = perform([Round(4 * LEASE, stops, tasks)], target=UNFENCED)

    assert any("the result is that of token" in line for line in result.violations)


def test_a_seed_gives_the_same_plan_again() -> None:
    def plan(seed: int) -> object:
        return rounds(seed, nodes=3, seconds=60, rate=20, faults=list(FAULTS), every=1, length=20)

    assert plan(7) == plan(7)
    assert plan(7) != plan(8)
