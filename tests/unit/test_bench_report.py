"""The benchmark's report: what it says of figures, and what it keeps of what was written by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.bench import report
from tests.bench.contenders import CONTENDERS, chosen
from tests.bench.measures import Figure, figures


def rounds(**numbers: float) -> dict[str, Any]:
    return figures([numbers, {name: value * 1.1 for name, value in numbers.items()}])


def run(found: dict[str, Any]) -> dict[str, Any]:
    return {
        "date": "2026-01-02",
        "minutes": 3.0,
        "load": {"before": 0.1, "after": 1.0},
        "machine": {"processor": "2 cores", "memory_gib": 4, "system": "Linux", "python": "CPython"},
        "server": "redis 7",
        "quick": False,
        "rounds": 2,
        "versions": {"prefork-q": "prefork-q 1"},
        "settings": {one.name: [one.setting, one.described()] for one in CONTENDERS},
        "found": found,
        "failed": ["drain, RQ: its workers ended"],
        "late": [],
    }


FOUND = {
    "drain": {
        "prefork-q": rounds(rate=100_000, steady=110_000, worker_us=8, redis_us=9, redis_calls=7),
        "taskiq, stream": rounds(rate=9_000, steady=9_100, worker_us=190, redis_us=24, redis_calls=1),
        "BullMQ on Node, 100 at once": rounds(
            rate=40_000, steady=41_000, worker_us=57, redis_us=30, redis_calls=24
        ),
    },
    "limit": {"PING": rounds(rate=19_000), "bare loop, 64 a call, 2 processes": rounds(rate=220_000)},
    "pickup": {
        "prefork-q": rounds(p50=1.0, p99=1.2, max=2),
        "Huey, 8 threads": rounds(p50=0.9, p99=1.3, max=3),
    },
}


def test_a_figure_is_the_median_with_the_lowest_and_highest() -> None:
    assert Figure.of([3, 1, 2]) == Figure(2, 1, 3, 3)


def test_the_report_says_which_aims_are_met(tmp_path: Path) -> None:
    report.write(run(FOUND), tmp_path)

    lines = (tmp_path / "benchmarks.md").read_text().splitlines()
    verdicts = {line.split(" | ")[0].strip("| "): line.split(" | ")[-1].strip("| ") for line in lines}
    assert verdicts["drain, to the fastest Python peer"] == "met"
    assert verdicts["drain, to BullMQ on Node"] == "**short**"
    assert verdicts["drain, to the bare loop"] == "met"
    assert verdicts["pickup p50, ms, to the best peer"] == "**short**"
    assert verdicts["pickup p99, ms, to the best peer"] == "met"
    assert "- drain, RQ: its workers ended" in lines


def test_what_was_written_by_hand_is_kept(tmp_path: Path) -> None:
    report.write(run({}), tmp_path)
    path = tmp_path / "benchmarks.md"
    path.write_text(path.read_text() + "\nWhy it is so.\n")

    report.write(run(FOUND), tmp_path)

    assert path.read_text().endswith(f"{report.BY_HAND}\n\nWhy it is so.\n")


def test_pictures_are_well_formed(tmp_path: Path) -> None:
    report.write(run(FOUND), tmp_path)

    pictures = sorted(path.name for path in tmp_path.glob("*.svg"))
    assert pictures == ["drain.svg", "limit.svg", "pickup.svg"]
    for name in pictures:
        assert ElementTree.parse(tmp_path / name).getroot().tag.endswith("svg")


def test_contenders_are_chosen_by_name_library_or_group() -> None:
    assert [one.name for one in chosen(["rq", "Celery"])] == ["RQ", "RQ, SimpleWorker", "Celery"]
    assert len(chosen(["all"])) == len(CONTENDERS)
    with pytest.raises(ValueError, match="no contender is called 'nobody'"):
        chosen(["nobody"])


def test_every_name_is_one_contender() -> None:
    assert len({one.name for one in CONTENDERS}) == len(CONTENDERS)
