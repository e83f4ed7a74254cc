"""Scripts go by SHA; a server that has forgotten them gets the whole text, inside pipelines too."""

from __future__ import annotations

from typing import Any

import redis

from prefork_q.broker import Broker
from prefork_q.ids import new_id
from prefork_q.leases import Settlement
from prefork_q.states import Status
from prefork_q.task import Submission
from tests.support.state import State, request


def test_every_call_works_on_a_server_that_has_forgotten_the_scripts(
    broker: Broker, state: State, redis_client: redis.Redis
) -> None:
    task = Submission(new_id(), "t", b"{}")

    redis_client.script_flush()
    broker.submit([task])
    redis_client.script_flush()
    (lease,) = broker.claim(request()).leases
    redis_client.script_flush()
    broker.complete(lease.id, lease.token, b"1")

    assert state.status(task.id) is Status.SUCCEEDED


def test_a_script_is_sent_once_and_known_from_then_on(
    broker: Broker, state: State, redis_client: redis.Redis
) -> None:
    redis_client.script_flush()
    for _ in range(3):
        broker.submit([Submission(new_id(), "t", b"{}")])
        redis_client.config_resetstat()

    assert "cmdstat_eval" not in redis_client.info("commandstats")


def outcomes(state: State) -> list[Settlement]:
    done, failed, back = (state.seed("processing", token=7) for _ in range(3))
    return [
        Settlement("release", back.encode(), 7),
        Settlement("complete", done.encode(), 7, 5, b"1"),
        Settlement("fail", failed.encode(), 7, 5, b"{}", 60_000),
        Settlement("complete", b"nobody", 7, 5, b"1"),
    ]


def test_a_pipeline_works_on_a_server_that_has_forgotten_the_scripts(
    broker: Broker, state: State, redis_client: redis.Redis
) -> None:
    redis_client.script_flush()

    assert broker.settle(outcomes(state)) == ["ok", "ok", "ok", "stale"]


def test_a_pipeline_works_when_the_server_forgets_in_the_middle_of_it(
    broker: Broker, state: State, redis_client: redis.Redis
) -> None:
    broker.settle(outcomes(state))  # the scripts are known
    forgetful = Broker(Forgetful(redis_client), state.keys)  # type: ignore[arg-type]

    assert forgetful.settle(outcomes(state)) == ["ok", "ok", "ok", "stale"]


class Forgetful:
    """A client whose pipelines have the server forget its scripts after their first command."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def pipeline(self, **options: Any) -> Any:
        pipeline = self._client.pipeline(**options)
        execute, answers = pipeline.execute_command, pipeline.execute
        sent: list[tuple[Any, ...]] = []

        def with_flush(*command: Any) -> Any:
            execute(*command)
            sent.append(command)
            if len(sent) == 1:
                execute("SCRIPT", "FLUSH")
            return pipeline

        def without_flush(**options: Any) -> Any:
            found = answers(**options)
            del found[1]
            return found

        pipeline.execute_command, pipeline.execute = with_flush, without_flush
        return pipeline
