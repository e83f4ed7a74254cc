"""The master's descriptors: one selector over signals, control socket and the children's channels."""

from __future__ import annotations

import selectors
from collections.abc import Iterable, Iterator
from typing import Protocol

from prefork_q.ipc.channel import ChannelClosed
from prefork_q.ipc.messages import Message
from prefork_q.master.children import Child

MESSAGES_A_TURN = 200
"""Of one child, so that one that talks without end does not keep the others waiting."""


class HasDescriptor(Protocol):
    def fileno(self) -> int: ...


class Wires:
    """Never blocks but in `wait`. A channel that is closed at the other end is left alone afterwards."""

    def __init__(self, *others: HasDescriptor) -> None:
        self._selector = selectors.DefaultSelector()
        for other in others:
            self._selector.register(other.fileno(), selectors.EVENT_READ)
        self._ready: list[Child] = []
        self._passed: dict[Child, list[Child]] = {}

    def add(self, child: Child) -> None:
        """Listen to a child."""
        self._selector.register(child.channel, selectors.EVENT_READ, child)

    def remove(self, child: Child) -> None:
        """Listen no more, and close this end."""
        self._unregister(child)
        child.channel.close()
        self._close_passed(child)
        _close_newborn_end(child)

    def send(self, child: Child, message: Message) -> bool:
        """Send; False if nobody reads any more."""
        return self._send(child, message, ())

    def pass_on(self, template: Child, message: Message, newborn: Child) -> bool:
        """Send with the other end of the newborn's channel, which is open nowhere else afterwards, and with
        its file for stacks or its sockets."""
        if newborn.newborn_end is None:
            raise ValueError(f"{newborn.incarnation}: its end is passed on already")
        self._passed.setdefault(template, []).append(newborn)
        others = newborn.newborn_sockets if newborn.stacks is None else (newborn.stacks,)
        fds = (newborn.newborn_end.fileno(), *(other.fileno() for other in others))
        is_sent = self._send(template, message, fds)
        if not is_sent or not template.channel.has_queued:
            self._close_passed(template)
        return is_sent

    def wait(self, seconds: float) -> None:
        """Block until something can be read or written, or the time is over."""
        events = self._selector.select(max(0.0, seconds))
        self._ready = [key.data for key, _ in events if key.data is not None]

    def messages(self) -> Iterator[tuple[Child, Message | None]]:
        """Yield what came since the wait, by child; None: the child closed its end."""
        ready, self._ready = self._ready, []
        for child in ready:
            # What was heard of another may have ended it meanwhile.
            if child.channel.fileno() >= 0:
                yield from self.messages_of(child)

    def messages_of(self, child: Child) -> Iterator[tuple[Child, Message | None]]:
        """Yield what one child has said; its last words too, after it died."""
        for _ in range(MESSAGES_A_TURN):
            if child.is_hung_up:
                return
            try:
                message = child.channel.receive()
            except (ChannelClosed, ValueError):
                # A message that is none: the two ends are not of one program any more.
                child.is_hung_up = True
                self._unregister(child)
                yield child, None
                return
            if message is None:
                break
            yield child, message
        self._watch(child)

    def close(self) -> None:
        self._selector.close()

    def _send(self, child: Child, message: Message, fds: Iterable[int]) -> bool:
        if child.is_hung_up:
            return False
        try:
            child.channel.send(message, fds)
        except ChannelClosed:
            return False
        self._watch(child)
        return True

    def _watch(self, child: Child) -> None:
        """Wait for room only while something waits to be sent."""
        if not self._is_registered(child):
            return
        if not child.channel.has_queued:
            self._close_passed(child)
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if child.channel.has_queued else 0)
        if self._selector.get_key(child.channel).events != events:
            self._selector.modify(child.channel, events, child)

    def _close_passed(self, template: Child) -> None:
        for newborn in self._passed.pop(template, ()):
            _close_newborn_end(newborn)

    def _unregister(self, child: Child) -> None:
        if self._is_registered(child):
            self._selector.unregister(child.channel)

    def _is_registered(self, child: Child) -> bool:
        fd = child.channel.fileno()
        return fd >= 0 and fd in self._selector.get_map()


def _close_newborn_end(child: Child) -> None:
    if child.newborn_end is not None:
        child.newborn_end.close()
        child.newborn_end = None
    for one in child.newborn_sockets:
        one.close()
    child.newborn_sockets = ()
