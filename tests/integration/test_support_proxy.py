"""The proxy does to connections what it says."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
import redis

from tests.support.proxy import TO_CLIENT, TO_SERVER, Proxy
from tests.support.server import NEVER, Server
from tests.support.until import until

pytestmark = pytest.mark.either_server


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    with Proxy(server.url) as proxy:
        yield proxy


@pytest.fixture
def client(proxy: Proxy) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(proxy.url, socket_timeout=1.5, retry=NEVER) as client:
        yield client


def test_it_passes_on_what_is_sent_whatever_its_size(client: redis.Redis) -> None:
    client.set("a", b"x" * 3_000_000)
    assert client.get("a") == b"x" * 3_000_000


def test_a_swallowed_answer_is_lost_and_its_command_is_not(proxy: Proxy, client: redis.Redis) -> None:
    client.ping()
    proxy.swallow(TO_CLIENT)
    with pytest.raises(redis.TimeoutError):
        client.set("a", 1)
    proxy.heal()
    assert client.get("a") == b"1"


def test_a_swallowed_command_does_nothing(proxy: Proxy, client: redis.Redis) -> None:
    client.ping()
    proxy.swallow(TO_SERVER)
    with pytest.raises(redis.TimeoutError):
        client.set("a", 1)
    proxy.heal()
    assert client.get("a") is None


def test_what_was_paused_arrives_later(proxy: Proxy, client: redis.Redis, server: Server) -> None:
    client.ping()
    proxy.pause(TO_SERVER)
    with pytest.raises(redis.TimeoutError):
        client.set("a", 1)
    proxy.heal()
    assert client.ping()  # over a new connection: the library closes one whose answer is late


def test_a_delay_holds_every_byte_back(proxy: Proxy, client: redis.Redis) -> None:
    client.ping()
    proxy.delay(0.05)
    took = []
    for _ in range(5):
        began = time.monotonic()
        client.ping()
        took.append(time.monotonic() - began)
    # What the machine holds up is not every one.
    assert 0.1 <= min(took) < 0.3


def test_a_reset_ends_what_is_open(proxy: Proxy, client: redis.Redis) -> None:
    client.ping()
    proxy.reset()
    until(lambda: proxy.connections == 0)
    assert client.ping()  # the library notices, and connects anew
    assert proxy.accepted == 2


def test_a_frozen_connection_is_dead_without_a_word_and_new_ones_pass(
    proxy: Proxy, client: redis.Redis
) -> None:
    client.ping()
    proxy.freeze()
    with pytest.raises(redis.TimeoutError):
        client.ping()
    assert client.ping()
    assert proxy.accepted == 2


def test_a_forgotten_connection_is_reset_once_something_is_said_on_it(
    proxy: Proxy, client: redis.Redis
) -> None:
    client.ping()
    proxy.forget()
    assert proxy.connections == 1
    with pytest.raises(redis.ConnectionError):
        client.ping()
    assert client.ping()
    assert proxy.accepted == 2


def test_a_cut_refuses_new_connections_until_it_heals(proxy: Proxy, client: redis.Redis) -> None:
    client.ping()
    proxy.cut()
    for _ in range(2):
        with pytest.raises(redis.ConnectionError):
            client.ping()
    proxy.heal()
    assert client.ping()
