"""Waiting for tasks to end: one subscribed connection, shared by all requests of the process.

Redis is not asked again and again: a request asks for a message about its task, looks once whether
it has ended already, and sleeps. As many as have room may wait; others are told the present state.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections import Counter
from collections.abc import Callable

from prefork_q.broker import Broker
from prefork_q.connection import COMMAND_TIMEOUT, Link
from prefork_q.errors import Unavailable
from prefork_q.keys import Keys
from prefork_q.states import ENDED

LOOK = 1.0
"""Seconds between two looks at whether the client is still there."""
AGAIN = 0.5
"""Seconds after which a lost subscription is made again."""
PAUSE = 0.05
"""Seconds between two tries to connect, at least."""


SILENCE = 5.0
"""Seconds without a word of Redis after which it is asked for one: who only listens never learns that the
other end is gone."""


class Waiter:
    """One request that waits. Its fields change under the lock of `Endings`."""

    def __init__(self, channel: bytes) -> None:
        self.channel = channel
        self.has_ended = False
        self.is_lost = False


class Endings:
    """Tells waiting requests that their tasks have ended. Used from any thread.

    The connection and its thread are made when first needed, so that an application server may fork
    after it has loaded the application.
    """

    def __init__(self, url: str, keys: Keys, broker: Broker, *, room: int) -> None:
        self._url = url
        self._keys = keys
        self._broker = broker
        self._room = threading.BoundedSemaphore(room)
        self._changed = threading.Condition()
        self._waiters: set[Waiter] = set()
        self._subscribed: set[bytes] = set()
        """Channels of which Redis has confirmed the subscription."""
        self._listener: Listener | None = None
        self._is_closed = False

    def wait(self, id: str, seconds: float, is_gone: Callable[[], bool]) -> None:
        """Return when the task has ended, time is up or the client is gone; at once if there is no room.

        Raises:
            Unavailable: Redis cannot be asked.
        """
        if not self._room.acquire(blocking=False):
            return
        try:
            until = time.monotonic() + seconds
            is_over = self._wait(id, until, is_gone)
            while not is_over:
                # The subscription was lost, and with it perhaps the message.
                with self._changed:
                    left = max(0.0, until - time.monotonic())
                    self._changed.wait_for(lambda: self._is_closed, min(AGAIN, left))
                try:
                    is_over = self._wait(id, until, is_gone)
                except Unavailable:
                    # What broke the one connection may have broken those of the broker.
                    is_over = time.monotonic() >= until
        finally:
            self._room.release()

    def close(self) -> None:
        """Let all that wait go on now, and whoever comes later not begin to wait."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def _wait(self, id: str, until: float, is_gone: Callable[[], bool]) -> bool:
        """Return whether there is nothing more to wait for."""
        waiter = Waiter(self._keys.ended(id).encode())
        self._enter(waiter)
        try:
            if self._sleep(until, is_gone, lambda: waiter.channel in self._subscribed or waiter.is_lost):
                return True
            if waiter.is_lost:
                return False
            # Only now: a task that ends between the two is seen by one of them.
            status = self._broker.watch(id)
            if status == "missing" or status in ENDED:
                return True
            is_over = self._sleep(until, is_gone, lambda: waiter.has_ended or waiter.is_lost)
            return is_over or waiter.has_ended
        finally:
            self._leave(waiter)

    def _sleep(self, until: float, is_gone: Callable[[], bool], is_there: Callable[[], bool]) -> bool:
        """Wait for a condition. Returns whether it is time to give up instead."""
        while True:
            with self._changed:
                left = max(0.0, until - time.monotonic())
                self._changed.wait_for(lambda: is_there() or self._is_closed, min(LOOK, left))
                if is_there():
                    return False
            if self._is_closed or time.monotonic() >= until or is_gone():
                return True

    def _enter(self, waiter: Waiter) -> None:
        with self._changed:
            self._waiters.add(waiter)
            if self._listener is None:
                self._listener = Listener(self._url, self)
        self._listener.look()

    def _leave(self, waiter: Waiter) -> None:
        with self._changed:
            self._waiters.discard(waiter)
        if self._listener is not None:
            self._listener.look()

    # -- called by the listener's thread

    def wanted(self) -> set[bytes]:
        """Return the channels to be subscribed to; what is not among them counts as left from now on."""
        with self._changed:
            channels = {waiter.channel for waiter in self._waiters}
            self._subscribed &= channels
            return channels

    def confirm(self, channel: bytes) -> None:
        with self._changed:
            self._subscribed.add(channel)
            self._changed.notify_all()

    def tell(self, channel: bytes) -> None:
        """The task of this channel has ended."""
        with self._changed:
            for waiter in self._waiters:
                if waiter.channel == channel:
                    waiter.has_ended = True
            self._changed.notify_all()

    def lose(self) -> None:
        """Nothing is subscribed to any more."""
        with self._changed:
            self._subscribed.clear()
            for waiter in self._waiters:
                waiter.is_lost = True
            self._changed.notify_all()


class Listener:
    """The thread that owns the subscribed connection."""

    def __init__(self, url: str, endings: Endings) -> None:
        self._link = Link(url)
        self._endings = endings
        self._wanted: set[bytes] = set()
        self._unconfirmed: Counter[bytes] = Counter()
        """Subscriptions asked for and not confirmed; a channel may have been left and asked for again."""
        self._is_asked = False
        """Whether Redis has something to answer."""
        self._look_at = 0.0
        """Monotonic time until which it may be silent."""
        self._wake_reader, self._wake_writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        threading.Thread(target=self._run, name="endings", daemon=True).start()

    def look(self) -> None:
        """Let the thread see that other channels are wanted."""
        try:
            os.write(self._wake_writer, b"x")
        except BlockingIOError:
            # It has not even read the earlier ones.
            return

    def _run(self) -> None:
        while True:
            try:
                self._subscribe()
                self._receive()
            except Unavailable:
                self._link.close()
                self._is_asked = False
                self._wanted.clear()
                self._unconfirmed.clear()
                self._endings.lose()
                self._poll(PAUSE, [self._wake_reader])

    def _subscribe(self) -> None:
        before, self._wanted = self._wanted, self._endings.wanted()
        if self._wanted and not self._link.is_connected:
            self._link.connect()
        added, dropped = self._wanted - before, before - self._wanted
        if added:
            self._unconfirmed.update(added)
            self._ask("SUBSCRIBE", *added)
        if dropped:
            self._ask("UNSUBSCRIBE", *dropped)

    def _receive(self) -> None:
        """Wait until there is something to do, and take in what has come."""
        fds = [self._wake_reader]
        if self._link.is_connected:
            fds.append(self._link.fileno())
        ready = self._poll(max(0.0, self._look_at - time.monotonic()) if self._wanted else None, fds)
        if self._wake_reader in ready:
            os.read(self._wake_reader, 4096)
        while self._link.has_answer():
            self._take(self._link.receive())
        if self._wanted and time.monotonic() >= self._look_at:
            if self._is_asked:
                raise Unavailable("Redis is silent on a subscribed connection", kind="timeout")
            self._ask("PING")

    def _take(self, answer: list[bytes]) -> None:
        """Take in one message or confirmation; any shows that the connection lives."""
        self._is_asked = False
        self._look_at = time.monotonic() + SILENCE
        kind, channel = answer[:2]
        if kind == b"message":
            self._endings.tell(channel)
        elif kind == b"subscribe":
            self._unconfirmed[channel] -= 1
            if self._unconfirmed[channel] == 0 and channel in self._wanted:
                self._endings.confirm(channel)

    def _ask(self, *command: object) -> None:
        self._link.send(*command)
        if not self._is_asked:
            self._is_asked = True
            self._look_at = time.monotonic() + COMMAND_TIMEOUT

    def _poll(self, seconds: float | None, fds: list[int]) -> set[int]:
        poller = select.poll()
        for fd in fds:
            poller.register(fd, select.POLLIN)
        return {fd for fd, _ in poller.poll(None if seconds is None else seconds * 1000)}
