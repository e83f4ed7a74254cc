"""The link that never waits: connecting in the background, whole answers out of pieces, ends of all kinds."""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from prefork_q.connection import NoScriptError
from prefork_q.errors import ConfigurationError, Unavailable
from prefork_q.nonblocking import PENDING, NonblockingLink
from tests.support.proxy import TO_CLIENT, Proxy
from tests.support.server import Server, free_port
from tests.support.until import until


class Loop:
    """As much of a loop as a link needs."""

    def __init__(self, url: str, timeout: float = 2.0) -> None:
        self.woken = threading.Event()
        self.link = NonblockingLink(url, timeout=timeout, wake=self.woken.set)

    def connect(self) -> None:
        while not self.link.connect():
            assert self.woken.wait(5)
            self.woken.clear()

    def call(self, *command: object, within: float = 5.0) -> Any:
        self.link.send(command)
        return self.answer(within)

    def answer(self, within: float = 5.0) -> Any:
        deadline = time.monotonic() + within
        while time.monotonic() < deadline:
            poller = select.poll()
            poller.register(self.link.fileno, self.link.events)
            poller.poll(100)
            self.link.flush()
            answer = self.link.receive()
            if answer is not PENDING:
                return answer
        return PENDING


@pytest.fixture
def loop(server: Server) -> Iterator[Loop]:
    loop = Loop(server.url)
    loop.connect()
    yield loop
    loop.link.close()


def test_connecting_does_not_wait_and_tells_when_it_is_done(server: Server) -> None:
    with Proxy(server.url) as proxy:
        proxy.pause()
        # With a database to select it waits for an answer.
        loop = Loop(proxy.url.removesuffix("/0") + "/1")

        assert loop.link.connect() is False
        assert (loop.link.is_connected, loop.link.fileno) == (False, -1)
        proxy.heal()
        assert loop.woken.wait(5)
        assert loop.link.connect() is True
        assert loop.link.fileno >= 0
        assert loop.call("PING") == b"PONG"
        loop.link.close()
        assert loop.link.fileno == -1


def test_commands_and_answers_of_every_shape(loop: Loop) -> None:
    assert loop.call("SET", "{x}a", b"\0\xff") == b"OK"
    assert loop.call("GET", "{x}a") == b"\0\xff"
    assert loop.call("GET", "{x}none") is None
    assert loop.call("INCR", "{x}n") == 1
    assert loop.call("EVAL", "return {1, 'a', {false, {}}}", 0) == [1, b"a", [None, []]]


def test_a_connection_that_cannot_be_made_says_so(server: Server) -> None:
    loop = Loop(f"redis://127.0.0.1:{free_port()}/0")

    with pytest.raises(Unavailable) as failed:
        loop.connect()

    assert failed.value.kind == "connection"
    assert not loop.link.is_connected


def test_a_host_name_that_nobody_can_encode_is_a_failure_like_others() -> None:
    with pytest.raises(Unavailable):
        Loop(f"redis://{'x' * 70}.example:6379/0").connect()


def test_a_wrong_url_is_told_at_once() -> None:
    with pytest.raises(ConfigurationError):
        Loop("http://localhost")


def test_a_connecting_that_is_given_up_leaves_nothing(server: Server) -> None:
    with Proxy(server.url) as proxy:
        proxy.pause()
        # With a database to select it waits for an answer.
        loop = Loop(proxy.url.removesuffix("/0") + "/1", timeout=1.0)
        assert loop.link.connect() is False
        until(lambda: proxy.connections == 1)

        loop.link.close()
        proxy.heal()

        until(lambda: proxy.connections == 0)
        loop.connect()
        assert loop.call("PING") == b"PONG"
        loop.link.close()


def test_an_answer_that_has_not_come_is_pending(loop: Loop) -> None:
    loop.link.send(("BLPOP", "{x}wake", 1))

    assert loop.link.receive() is PENDING
    assert loop.link.is_waiting
    assert loop.answer() is None
    assert not loop.link.is_waiting


def test_megabytes_go_both_ways_piece_by_piece(server: Server) -> None:
    with Proxy(server.url) as proxy:
        proxy.delay(0.01)
        loop = Loop(proxy.url)
        loop.connect()
        data = b"x" * 12_000_000

        loop.link.send(("SET", "{x}large", data))
        assert loop.link.events & select.POLLOUT, "the kernel does not take all of it at once"
        assert loop.answer(20.0) == b"OK"
        assert not loop.link.events & select.POLLOUT
        assert loop.call("GET", "{x}large", within=20.0) == data
        loop.link.close()


def test_a_script_that_is_not_known_leaves_the_connection(loop: Loop) -> None:
    with pytest.raises(NoScriptError):
        loop.call("EVALSHA", "0" * 40, 0)

    assert loop.call("PING") == b"PONG"


def test_a_refusal_ends_the_connection(loop: Loop) -> None:
    with pytest.raises(Unavailable, match="unknown command"):
        loop.call("NOSUCHCOMMAND")

    assert not loop.link.is_connected
    loop.connect()
    assert loop.call("PING") == b"PONG"


def test_a_connection_that_ends_with_a_call_under_way_is_a_failure(server: Server) -> None:
    with Proxy(server.url) as proxy:
        loop = Loop(proxy.url)
        loop.connect()
        assert loop.call("PING") == b"PONG"
        proxy.swallow(TO_CLIENT)
        loop.link.send(("PING",))
        time.sleep(0.05)
        proxy.reset()

        with pytest.raises(Unavailable) as failed:
            loop.answer()

        assert failed.value.kind == "connection"
        assert (loop.link.is_connected, loop.link.is_waiting) == (False, False)


def test_a_connection_that_ends_while_idle_is_noticed_when_its_descriptor_is_ready(
    loop: Loop, redis_client: redis.Redis
) -> None:
    own = redis_client.client_id()
    for client in redis_client.client_list():
        if int(client["id"]) != own:
            redis_client.client_kill_filter(_id=client["id"])

    with pytest.raises(Unavailable):
        until(lambda: loop.link.receive() is not PENDING)

    assert not loop.link.is_connected


def test_sending_to_a_connection_that_has_ended_is_a_failure(server: Server) -> None:
    with Proxy(server.url) as proxy:
        loop = Loop(proxy.url)
        loop.connect()
        assert loop.call("PING") == b"PONG"
        proxy.reset()

        def send() -> bool:
            loop.link.send(("PING",))
            return False

        with pytest.raises(Unavailable):
            until(send)
        assert loop.link.fileno == -1


def test_what_was_given_up_is_not_sent_later(server: Server, redis_client: redis.Redis) -> None:
    """Bytes that the peer has not taken would go on their way after a mere close."""
    with Proxy(server.url) as proxy:
        loop = Loop(proxy.url)
        loop.connect()
        assert loop.call("PING") == b"PONG"
        proxy.pause()
        loop.link.send(("SET", "{x}late", b"x" * 30_000_000))

        loop.link.give_up()
        proxy.heal()

        until(lambda: proxy.connections == 0)
        assert redis_client.get("{x}late") is None
