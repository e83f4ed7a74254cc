from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from prefork_q.keys import Keys
from tests.support.flavours import Flavour
from tests.support.server import ContainerServer, ProcessServer, Server
from tests.support.until import until


def test_the_shared_server_is_of_its_flavour_and_empty(
    server: Server, redis_client: redis.Redis, flavour: Flavour
) -> None:
    info = redis_client.info("server")

    version = info.get("valkey_version", info["redis_version"])
    assert version == flavour.version
    assert ("valkey_version" in info) == flavour.name.startswith("valkey")
    assert redis_client.dbsize() == 0
    redis_client.set("left by one test", "not seen by the next")


def test_the_shared_server_goes_through_testcontainers_where_an_engine_answers(
    server: Server, flavour: Flavour
) -> None:
    expected = ContainerServer if flavour.image else ProcessServer
    assert type(server) is expected


def test_each_test_has_a_namespace_of_its_own(keys: Keys) -> None:
    assert keys.root != Keys().root


def test_a_killed_server_is_gone_and_comes_back_with_its_data(own_server: Server) -> None:
    client = own_server.client()
    client.set("kept", "yes")
    url = own_server.url

    own_server.kill()

    assert not own_server.answers()
    with pytest.raises(redis.ConnectionError):
        client.get("kept")

    own_server.restart()

    assert own_server.url == url
    assert client.get("kept") == b"yes"


def test_a_server_is_restarted_in_order_with_its_data(own_server: Server) -> None:
    own_server.client().set("kept", "yes")

    own_server.restart()

    assert own_server.client().get("kept") == b"yes"


def test_a_paused_server_answers_nothing_until_it_goes_on(own_server: Server) -> None:
    client = own_server.client(socket_timeout=1)
    client.ping()

    own_server.pause()

    with pytest.raises(redis.TimeoutError):
        client.ping()

    own_server.resume()

    assert until(own_server.answers)


def test_a_paused_server_can_be_stopped(new_server: Callable[..., Server]) -> None:
    server = new_server()
    server.pause()

    server.stop()

    assert not server.is_running


def test_a_server_may_listen_on_a_unix_socket(new_server: Callable[..., Server], flavour: Flavour) -> None:
    if not flavour.binary:
        pytest.skip("no program on this machine")

    server = new_server(is_unix=True)

    assert server.url.startswith("unix:///")
    assert server.client().ping()


def test_a_server_takes_arguments(new_server: Callable[..., Server]) -> None:
    server = new_server(arguments=["--maxmemory", "7mb"])

    assert server.client().config_get("maxmemory") == {"maxmemory": str(7 << 20)}


def test_a_server_that_a_thread_started_outlives_the_thread(new_server: Callable[..., Server]) -> None:
    server = new_server()
    server.kill()
    thread = threading.Thread(target=server.start)
    thread.start()
    thread.join()

    assert server.client().ping()


def test_a_server_that_cannot_start_says_why(flavour: Flavour, tmp_path: Path) -> None:
    if not flavour.binary:
        pytest.skip("no program on this machine")
    server = ProcessServer(flavour, tmp_path / "s", arguments=["--no-such-option", "1"])

    with pytest.raises(Exception, match="no-such-option"):
        server.start()

    assert not server.is_running


def test_a_container_is_killed_and_restarted_like_a_process(
    flavour: Flavour, pytestconfig: pytest.Config
) -> None:
    if not flavour.image:
        pytest.skip("no Docker engine answers")
    server = ContainerServer(flavour, run="test-of-the-support", is_persistent=True)
    try:
        server.start()
        url, client = server.url, server.client(socket_timeout=0.5)
        client.set("kept", "yes")

        server.pause()
        with pytest.raises(redis.TimeoutError):
            client.ping()
        server.resume()
        server.kill()
        assert not server.answers()
        server.restart()

        assert server.url == url
        assert client.get("kept") == b"yes"
    finally:
        server.stop()
