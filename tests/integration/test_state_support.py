"""The support `State` seeds what the scripts store."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import redis

from prefork_q.broker import Broker
from prefork_q.keys import Keys
from prefork_q.task import Submission
from tests.support.state import State, request

ID = "01a227de-f58a-705f-8f6c-184f97b612fe"


def by_scripts(broker: Broker, status: str) -> None:
    """Bring one task to a status by the verbs alone."""
    delay = 60.0 if status == "delayed" else None
    broker.submit([Submission(ID, "thumbnail", b'{"width":128}', delay=delay)])
    if status in ("pending", "delayed"):
        return
    if status == "cancelled":
        broker.cancel(ID)
        broker.claim(request())
        return
    (lease,) = broker.claim(request()).leases
    if status == "succeeded":
        broker.complete(ID, lease.token, b"null")
    elif status == "dead":
        broker.fail(ID, lease.token, b'{"type":"ValueError","message":"no"}', delay=None)


@pytest.mark.parametrize("status", ["pending", "delayed", "processing", "succeeded", "dead", "cancelled"])
def test_what_is_seeded_is_what_the_scripts_store(
    broker: Broker, state: State, status: str
) -> None:
    by_scripts(broker, status)
    stored = comparable(state)
    for name in state.snapshot():
        state.lose(name)

    state.seed(status, id=ID, token=7 if status in ("processing", "succeeded", "dead") else None)

    assert comparable(state) == stored


def comparable(state: State) -> dict[str, object]:
    """What is stored, without times, tokens and what is told to workers and keepers."""
    found: dict[str, object] = {}
    for name, (value, has_ttl) in state.snapshot().items():
        if name.startswith(("wake:", "claim", "mover", "token", "rate:")):
            continue
        if name == "totals":
            value.pop("failed", None)
        if name == f"task:{ID}":
            value = {field: _plain(field, text) for field, text in value.items()}
            value.pop("attempts" if value["status"] == "cancelled" else "", None)
        elif name in ("processing", "delayed", "dead"):
            value = set(value)
        elif name == "ghosts":
            value = {queue: n for queue, n in value.items() if n != "0"}
        if value:
            found[name] = (value, has_ttl)
    return found


def _plain(field: str, text: str) -> str:
    return "some" if field.endswith("_at") or field == "token" else text


@pytest.mark.parametrize(
    "break_it",
    [
        lambda state, id: state.list_again(id),
        lambda state, id: state.lose(f"task:{id}"),
        lambda state, id: state.lose_body(id),
        lambda state, id: state.lose("pending:default"),
        lambda state, id: state.lose("totals"),
        lambda state, id: state.spoil(id, "status", "delayed"),
        lambda state, id: state.put_in_place_of("unheard-of"),
        lambda state, id: state.put_in_place_of("processing"),
    ],
)
def test_sums_that_do_not_add_up_are_noticed(
    redis_client: redis.Redis, keys: Keys, break_it: Callable[[State, str], None]
) -> None:
    state = State(redis_client, keys)
    id = state.seed("pending")
    state.assert_sums()

    break_it(state, id)

    with pytest.raises(AssertionError):
        state.assert_sums()
