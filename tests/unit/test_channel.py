"""Channels: whole messages, in order, never blocking."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest

from prefork_q.ipc.channel import Channel, ChannelClosed
from prefork_q.ipc.messages import (
    Acknowledged,
    Claim,
    DeathNotice,
    Drain,
    Ended,
    Failed,
    Go,
    Hello,
    LeasesExpired,
    Message,
    Quiet,
    Ready,
    RedisState,
    ReloadWanted,
    Resume,
    Spawn,
    Spawned,
    SpawnFailed,
    Unsafe,
    decode,
    encode,
)

EVERY_KIND: tuple[Message, ...] = (
    Go(),
    Drain(1.5),
    Quiet(),
    Resume(),
    Spawn("worker", 3, "node.3.1", 2, 64),
    ReloadWanted(("handlers.py",)),
    DeathNotice(
        "node.3.1", 3, "killed by signal 9 (SIGKILL)", 9, None, False, (Claim("a", 1),), (Claim("b", 2),)
    ),
    Hello(4711),
    Ready(),
    Failed("cannot import", "Traceback…"),
    Spawned("node.3.1", 4712),
    SpawnFailed("node.3.1", "no more processes"),
    Unsafe(("poller",), 2),
    Acknowledged("node.3.1"),
    LeasesExpired((Ended("a", 3, 2),)),
    RedisState(True, "7.0.15"),
)


@pytest.fixture
def pair() -> Iterator[tuple[Channel, Channel]]:
    ends = Channel.pair()
    yield ends
    for end in ends:
        end.close()


@pytest.mark.parametrize("message", EVERY_KIND, ids=lambda message: type(message).__name__)
def test_a_message_arrives_as_it_was_sent(pair: tuple[Channel, Channel], message: Message) -> None:
    parent, child = pair
    parent.send(message)
    assert child.receive() == message
    assert child.receive() is None


def test_what_is_no_message_is_refused_by_name() -> None:
    for data in (b"", b"{}", b'["Nonsense",{}]', b'["Hello",{"pid":1,"x":2}]'):
        with pytest.raises(ValueError, match="not a message"):
            decode(data)
    assert decode(encode(Go())) == Go()


def test_a_message_larger_than_a_packet_arrives_whole(pair: tuple[Channel, Channel]) -> None:
    parent, child = pair
    claims = tuple(Claim(f"01987654-3210-7abc-8def-{n:012d}", n) for n in range(3_000))
    notice = DeathNotice("node.0.1", 0, "exited 1", exit_code=1, held=claims)
    parent.send(notice)
    parent.send(Go())
    assert child.wait(5.0) == notice
    assert child.wait(5.0) == Go()


def test_more_than_the_kernel_takes_waits_in_the_queue(pair: tuple[Channel, Channel]) -> None:
    parent, child = pair
    for n in range(2_000):
        parent.send(Hello(n))
    assert parent.has_queued
    for n in range(2_000):
        message = child.receive()
        parent.flush()
        assert message == Hello(n)
    assert not parent.has_queued


def test_a_peer_that_never_reads_is_given_up(pair: tuple[Channel, Channel]) -> None:
    parent, _ = pair

    def fill() -> None:
        for n in range(10_000):
            parent.send(Hello(n))

    with pytest.raises(ChannelClosed, match="does not read"):
        fill()


def test_last_words_are_read_before_the_end(pair: tuple[Channel, Channel]) -> None:
    parent, child = pair
    parent.send(Go())  # never read: the kernel then reports a reset
    child.send(Failed("cannot import"))
    child.close()
    assert parent.receive() == Failed("cannot import")
    with pytest.raises(ChannelClosed):
        parent.receive()
    with pytest.raises(ChannelClosed):
        parent.send(Go())


def test_waiting_is_bounded(pair: tuple[Channel, Channel]) -> None:
    _, child = pair
    before = time.monotonic()
    assert child.wait(0.05) is None
    assert 0.04 < time.monotonic() - before < 5


def test_descriptors_travel_along(pair: tuple[Channel, Channel]) -> None:
    parent, child = pair
    reader, writer = os.pipe()
    parent.send(Spawn("api", 0, "node.api.1", 1, 0), fds=[writer])
    os.close(writer)
    message, fds = child.receive_with_fds()
    assert message == Spawn("api", 0, "node.api.1", 1, 0)
    (received,) = fds
    os.write(received, b"x")
    os.close(received)
    assert os.read(reader, 2) == b"x"
    assert os.read(reader, 2) == b""
    os.close(reader)


def test_descriptors_that_nobody_asked_for_are_closed(pair: tuple[Channel, Channel]) -> None:
    parent, child = pair
    reader, writer = os.pipe()
    parent.send(Go(), fds=[writer])
    os.close(writer)
    assert child.receive() == Go()
    assert os.read(reader, 1) == b""
    os.close(reader)


def test_a_text_that_cannot_be_written_as_it_is_comes_over_all_the_same() -> None:
    said = decode(encode(Failed("no caf\udce9", "in é")))

    assert said == Failed("no caf\\udce9", "in é")
