"""A user of Redis that lacks one right: each call is refused before it has changed anything."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import redis

from prefork_q.acl import OUTSIDE_OF_SCRIPTS, commands, rule
from prefork_q.broker import Broker
from prefork_q.connection import connect
from prefork_q.errors import Unavailable
from prefork_q.keys import Keys
from prefork_q.scripts import scripts
from tests.integration.test_spoilt_keys import VERBS, Call
from tests.support.server import Server
from tests.support.state import State

NEEDED = sorted(set(commands()) - set(OUTSIDE_OF_SCRIPTS))


@pytest.fixture
def user(server: Server, redis_client: redis.Redis) -> Iterator[str]:
    """The name of a user that may do nothing yet, with its own name for a password."""
    name = "restricted"
    redis_client.execute_command("ACL", "SETUSER", name, "on", f">{name}")
    yield name
    redis_client.execute_command("ACL", "DELUSER", name)


def url_of(server: Server, user: str) -> str:
    scheme, _, rest = server.url.partition("://")
    return f"{scheme}://{user}:{user}@{rest}"


@pytest.mark.parametrize("missing", NEEDED)
@pytest.mark.parametrize("prepare", VERBS, ids=lambda verb: verb.__name__)
def test_nothing_is_half_done_without_a_right(
    broker: Broker,
    state: State,
    keys: Keys,
    redis_client: redis.Redis,
    server: Server,
    user: str,
    prepare: Callable[[Broker, State], Call],
    missing: str,
) -> None:
    redis_client.execute_command("ACL", "SETUSER", user, *rule(keys).split(), f"-{missing}")
    call = prepare(Broker(connect(url_of(server, user)), keys), state)
    before = state.snapshot()

    refused: Unavailable | None = None
    try:
        call()
    except Unavailable as error:
        refused = error

    if refused is not None:
        assert refused.kind == "denied"
        assert state.snapshot() == before
        redis_client.execute_command("ACL", "SETUSER", user, f"+{missing}")
        call()
    state.assert_sums()


def test_what_a_script_calls_is_known() -> None:
    assert "PEXPIREAT" in scripts()["complete"].commands
    assert {"WRONGTYPE", "PX"}.isdisjoint(scripts()["claim"].commands)
    assert len(NEEDED) > 30
