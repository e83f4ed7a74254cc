from __future__ import annotations

from typing import Any

import pytest

from tests.support.ledger import Ledger
from tests.support.node import Node

pytestmark = pytest.mark.either_server

DONE: dict[str, tuple[dict[str, Any], Any]] = {
    "return": ({"value": {"a": [1, None]}}, {"a": [1, None]}),
    "plain": ({"value": 7}, 7),
    "return_large": ({"size": 3}, "xxx"),
    "flaky": ({"failures": 1, "value": "at last"}, "at last"),
    "retry_after": ({"seconds": 0.05}, 2),
    "sleep": ({"seconds": 0.05}, 0.05),
    "hold_gil": ({"seconds": 0.2}, 0.2),
    "die": ({"times": 1}, "survived"),
    "eat": ({"mebibytes": 2}, 2 << 20),
    "stubborn": ({"seconds": 0.05}, 0),
    "watch_cancel": ({"seconds": 0.05}, False),
    "watch_lease": ({"seconds": 0.05}, True),
    "progress": ({"steps": 2, "seconds": 0.05}, 2),
    "add": ({"a": 2}, 3),
    "subprocess": ({"seconds": 0}, 0),
}
DEAD: dict[str, tuple[dict[str, Any], str]] = {
    "raise": ({"error": "KeyError"}, "KeyError"),
    "raise_never_retried": ({}, "ZeroDivisionError"),
    "reject": ({}, "Reject"),
}


def test_handlers_return_what_they_are_told(node: Node, ledger: Ledger) -> None:
    ids = {type: node.submit(type, payload) for type, (payload, _) in DONE.items()}

    tasks = {type: node.ended(id) for type, id in ids.items()}

    assert {type: task.get("result") for type, task in tasks.items()} == {
        type: result for type, (_, result) in DONE.items()
    }
    outcomes = [run.outcome for run in ledger.runs(type="flaky")]
    assert outcomes == ["RuntimeError", "returned"]
    assert [run.outcome for run in ledger.runs(type="die")] == [None, "returned"]


def test_handlers_raise_what_they_are_told(node: Node) -> None:
    ids = {type: node.submit(type, payload) for type, (payload, _) in DEAD.items()}

    tasks = {type: node.ended(id) for type, id in ids.items()}

    assert {type: task["error"]["type"] for type, task in tasks.items()} == {
        type: error for type, (_, error) in DEAD.items()
    }


def test_a_handler_forks_and_its_child_commits_nothing(node: Node, ledger: Ledger) -> None:
    task = node.ended(node.submit("fork"))

    assert task["status"] == "succeeded"
    assert task["result"] > 0  # the parent's; the child's would be 0
    assert task["attempts"] == 1
