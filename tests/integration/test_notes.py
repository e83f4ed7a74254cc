"""progress, watch, register: notes about tasks and nodes."""

from __future__ import annotations

import pytest
import redis

from prefork_q.broker import LAYOUT, Broker
from tests.support.state import State

# -- progress


def test_the_holder_may_report_progress(broker: Broker, state: State) -> None:
    id = state.seed("processing", token=7)

    assert broker.progress([(id, 7, b'{"fraction":0.5}')]) == ["ok"]

    assert state.task(id)["progress"] == '{"fraction":0.5}'


@pytest.mark.parametrize("status", ["pending", "delayed", "processing", "succeeded", "dead", "cancelled"])
def test_stale_progress_changes_nothing(broker: Broker, state: State, status: str) -> None:
    id = state.seed(status, token=7)
    before = state.snapshot()

    assert broker.progress([(id, 6, b"{}"), ("nobody", 6, b"{}")]) == ["stale", "stale"]

    assert state.snapshot() == before


# -- watch


@pytest.mark.parametrize("status", ["pending", "delayed", "processing"])
def test_a_watched_open_task_is_marked_once(broker: Broker, state: State, status: str) -> None:
    id = state.seed(status)

    assert broker.watch(id) == status
    before = state.snapshot()
    assert broker.watch(id) == status

    assert state.task(id)["waited"] == "1"
    assert state.snapshot() == before


@pytest.mark.parametrize("status", ["succeeded", "dead", "cancelled"])
def test_what_has_ended_is_only_looked_at(broker: Broker, state: State, status: str) -> None:
    id = state.seed(status)
    before = state.snapshot()

    assert broker.watch(id) == status
    assert broker.watch("nobody") == "missing"

    assert state.snapshot() == before


@pytest.mark.parametrize(
    ("ending", "word"), [("fail", b"dead"), ("cancel", b"cancelled"), ("complete", b"succeeded")]
)
def test_who_watches_is_told_of_the_end_once(
    broker: Broker, state: State, redis_client: redis.Redis, ending: str, word: bytes
) -> None:
    id = state.seed("pending" if ending == "cancel" else "processing", token=7)
    with redis_client.pubsub(ignore_subscribe_messages=True) as channel:
        channel.subscribe(state.keys.ended(id))
        channel.get_message(timeout=5)
        broker.watch(id)

        for _ in range(2):
            match ending:
                case "fail":
                    broker.fail(id, 7, b"{}", delay=None)
                case "cancel":
                    broker.cancel(id)
                case _:
                    broker.complete(id, 7, b"1")

        message = channel.get_message(timeout=5)
        assert message is not None
        assert message["data"] == word
        assert channel.get_message(timeout=0.05) is None


# -- register


def test_a_node_is_known_until_it_has_long_been_silent(
    broker: Broker, state: State, redis_client: redis.Redis
) -> None:
    assert broker.register("a", {"workers": 2}) == LAYOUT
    old = state.now_ms() - 61_000
    redis_client.hset(state.keys("nodes"), "old", f"{old} {{}}")
    redis_client.hset(state.keys("nodes"), "unreadable", "nonsense")

    broker.register("b", {}, silence=60)

    nodes = state.snapshot()["nodes"][0]
    assert set(nodes) == {"a", "b"}
    said_at, info = nodes["a"].split(" ", 1)
    assert abs(int(said_at) - state.now_ms()) < 10_000
    assert info == '{"workers":2}'


def test_the_layout_is_that_of_the_first(broker: Broker, state: State, redis_client: redis.Redis) -> None:
    redis_client.set(state.keys("layout"), "0")

    assert broker.register("a", {}) == "0"
