"""The order in which queues are asked: strict as listed, or drawn by weight."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from prefork_q.ipc.stats import MAX_QUEUES
from prefork_q.worker.queues import QueueOrder


def order(*queues: tuple[str, int | None]) -> QueueOrder:
    names, weights = zip(*queues, strict=True)
    return QueueOrder(names, weights, random.Random(7))


def test_without_weights_the_order_is_as_listed() -> None:
    queues = order(("a", None), ("b", None), ("c", None))

    assert {tuple(queues.next()) for _ in range(20)} == {("a", "b", "c")}


def test_one_queue_is_always_first() -> None:
    assert {tuple(order(("a", 3)).next()) for _ in range(20)} == {("a",)}


def test_by_weight_each_comes_first_in_proportion() -> None:
    queues = order(("a", 1), ("b", 3), ("c", 6))
    n = 20_000

    first = Counter(queues.next()[0] for _ in range(n))

    for name, share in (("a", 0.1), ("b", 0.3), ("c", 0.6)):
        assert first[name] / n == pytest.approx(share, abs=0.02)


def test_by_weight_the_second_is_drawn_among_the_rest() -> None:
    queues = order(("a", 1), ("b", 3), ("c", 6))

    second = Counter(names[1] for names in (queues.next() for _ in range(20_000)) if names[0] == "c")

    assert second["b"] / second.total() == pytest.approx(0.75, abs=0.02)


def test_every_queue_is_asked_each_time() -> None:
    queues = order(("a", 1), ("b", 1_000_000), ("c", 1))

    assert all(sorted(queues.next()) == ["a", "b", "c"] for _ in range(200))


def test_queues_beyond_the_scoreboards_share_its_last_place() -> None:
    queues = order(*((f"q{n}", None) for n in range(MAX_QUEUES + 5)))

    assert queues.index(b"q0") == 0
    assert queues.index(f"q{MAX_QUEUES - 1}".encode()) == queues.index(b"of another") == MAX_QUEUES - 1
