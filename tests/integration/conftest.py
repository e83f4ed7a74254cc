"""The verbs and the state of a namespace on a shared server; after each test the sums must add up."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from prefork_q.broker import Broker
from prefork_q.keys import Keys
from tests.support.handlers import LEDGER
from tests.support.ledger import Ledger
from tests.support.server import Server
from tests.support.state import State
from tests.support.tasks import Tasks
from tests.support.worker import Worker, Workshop


@pytest.fixture
def broker(redis_client: redis.Redis, keys: Keys) -> Broker:
    return Broker(redis_client, keys)


@pytest.fixture
def state(redis_client: redis.Redis, keys: Keys) -> Iterator[State]:
    state = State(redis_client, keys)
    yield state
    state.assert_sums()


@pytest.fixture
def tasks(redis_client: redis.Redis, keys: Keys) -> Tasks:
    return Tasks(redis_client, keys)


@pytest.fixture(scope="session")
def workshop(no_process_left: None) -> Iterator[Workshop]:
    """Where workers without a master are forked."""
    workshop = Workshop()
    yield workshop
    workshop.close()


@pytest.fixture
def start_worker(
    workshop: Workshop, server: Server, keys: Keys, ledger: Ledger, tmp_path: Path, state: State
) -> Iterator[Callable[..., Worker]]:
    """Return a function that forks a worker on the shared server: `start_worker(threads=4, lease=2)`.

    (`state` is asked for here so that the sums are taken once no worker changes them any more.)
    Its arguments are those of `Workshop.start`; `wait_ready=False` returns at once. What is left of the
    workers is killed after the test, and their logs are shown if it failed.
    """
    logs: list[Path] = []

    def start(*, wait_ready: bool = True, **options: Any) -> Worker:
        logs.append(tmp_path / f"worker-{len(logs) + 1}.log")
        common = {
            "log": logs[-1], "url": server.url, "namespace": keys.namespace,
            "environ": {LEDGER: str(ledger.path)},
        }  # fmt: skip
        worker = workshop.start(**(common | options))
        return worker.wait_ready() if wait_ready else worker

    yield start
    workshop.end_workers()
    for log in logs:
        print(log.read_text()[-5_000:])
