"""The verbs and the state of a namespace on a shared server; after each test the sums must add up."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from prefork_q.broker import Broker
from prefork_q.keys import Keys
from tests.support.state import State


@pytest.fixture
def broker(redis_client: redis.Redis, keys: Keys) -> Broker:
    return Broker(redis_client, keys)


@pytest.fixture
def state(redis_client: redis.Redis, keys: Keys) -> Iterator[State]:
    state = State(redis_client, keys)
    yield state
    state.assert_sums()
