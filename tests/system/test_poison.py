"""Whatever a handler raises or returns becomes a recorded outcome of bounded size, and its worker lives."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support import poison
from tests.support.node import Node

pytestmark = pytest.mark.either_server

TARGET = f"{Path(poison.__file__)}:app"


@pytest.fixture
def node(start_node: Callable[..., Node]) -> Node:
    return start_node(workers=1, target=TARGET, lease="30s")


def all_of(node: Node, type_: str, names: list[str]) -> dict[str, dict[str, Any]]:
    """Run them in turn in the one worker, which has to be the same before and after."""
    before = node.ended(node.submit("pid"))["result"]
    ids = node.submit_many(type_, [{"name": name} for name in names], max_attempts=1)
    found = {name: node.ended(id) for name, id in zip(names, ids, strict=True)}
    assert node.ended(node.submit("pid"))["result"] == before
    assert node.status()["workers"][0]["restarts"] == 0
    return found


def test_whatever_a_handler_raises_is_a_recorded_failure(node: Node) -> None:
    for name, task in all_of(node, "raise", list(poison.RAISES)).items():
        assert (task["status"], task["attempts"], task["crashes"]) == ("dead", 1, 0), (name, task)
        error = task["error"]
        assert len(error["type"]) <= 200, name
        assert len(error["message"]) <= 1_000, name
        assert len(error["traceback"]) <= 8_000, name
        assert error["type"], name
        for text in error.values():
            text.encode()
    for line in node.log().splitlines():
        assert len(line.encode()) <= 4_096


def test_whatever_cannot_be_stored_is_a_recorded_failure(node: Node) -> None:
    for name, task in all_of(node, "return", list(poison.RETURNS)).items():
        assert (task["status"], task["attempts"], task["crashes"]) == ("dead", 1, 0), (name, task)
        assert task["error"]["type"].endswith(("UnserializableResult", "ResultTooLarge")), (name, task)
        assert len(task["error"]["message"]) <= 1_000, name


def test_what_can_be_stored_is_stored_as_it_was(node: Node) -> None:
    for name, task in all_of(node, "return", list(poison.KEPT)).items():
        assert (task["status"], task["result"]) == ("succeeded", poison.KEPT[name][1]), (name, task)


def test_what_asks_to_run_again_at_no_time_runs_again(node: Node) -> None:
    names = [name for name in poison.RAISES if name.startswith("retry after")]
    ids = node.submit_many("raise", [{"name": name} for name in names], max_attempts=2)

    for name, id in zip(names, ids, strict=True):
        task = node.task(id, wait=15)
        assert (task["status"], task["attempts"]) in (("dead", 2), ("delayed", 1)), (name, task)
    assert node.ended(node.submit("pid"))["status"] == "succeeded"
    assert node.status()["workers"][0]["restarts"] == 0


def test_every_deadly_signal_is_deadly_and_named(start_node: Callable[..., Node]) -> None:
    node = start_node(workers=1)
    for name in ("ABRT", "SEGV", "BUS", "FPE", "ILL", "KILL"):
        number = signal.Signals[f"SIG{name}"]
        task = node.ended(node.submit("die", {"number": number, "times": 1}))
        assert (task["status"], task["crashes"]) == ("succeeded", 1), (number.name, task)
        node.wait_event("exited", worker=0, cause=f"killed by signal {number} ({number.name})")
