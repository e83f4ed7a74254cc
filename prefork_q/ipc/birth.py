"""How a new process joins the node. Runs in the newborn, before anything else of its role.

The master makes channel, incarnation and deadline, and opens the slot, before the process exists. The
newborn waits until its parent is the master (whom the template makes comes from a middle process, which
first has to exit), ties its life to the master's, says hello, and waits for `go`. Until then it touches
nothing.
"""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from socket import socket

from prefork_q.ipc.channel import Channel, ChannelClosed
from prefork_q.ipc.fork import set_parent_death_signal
from prefork_q.ipc.messages import Go, Hello
from prefork_q.ipc.scoreboard import Scoreboard

ADOPTION = 10.0
"""Seconds that a newborn waits to become the master's child."""


@dataclass(frozen=True, slots=True)
class Birth:
    """What a process is given when it is made.

    `role` is template, worker, keeper, api or store; `slot` numbers the places of a role from 0; `cell`
    is the row of the scoreboard that a worker or an api process writes, alone: while one takes over from
    another there are two in a place, each with its own. `incarnation` is unique for ever; `generation`
    is that of the template. `may_preload` is the template's: false once the handlers' import was found to
    leave threads or sockets. `stacks_fd` is a worker's file for its stacks; `listeners` are the sockets on
    which an api process serves.
    """

    role: str
    slot: int
    incarnation: str
    generation: int
    master_pid: int
    channel: Channel
    scoreboard: Scoreboard
    may_preload: bool = True
    cell: int = 0
    stacks_fd: int = -1
    listeners: tuple[socket, ...] = ()

    def introduce(self, *, parent_death_signal: int | None = signal.SIGTERM, timeout: float = 30.0) -> bool:
        """Say hello and wait for `go`. False: the master is gone, or wants it no more: exit at once.

        Args:
            parent_death_signal: what the kernel sends when the master dies; None for the keeper,
                which outlives it. Everybody also sees the end of file on the channel.
            timeout: seconds to wait for `go`.
        """
        if not self._is_adopted():
            return False
        if parent_death_signal is not None:
            set_parent_death_signal(parent_death_signal)
            # The master may have died before the signal was set; then it never comes.
            if os.getppid() != self.master_pid:
                return False
        try:
            self.channel.send(Hello(os.getpid()))
            return isinstance(self.channel.wait(timeout), Go)
        except ChannelClosed:
            return False

    def _is_adopted(self) -> bool:
        deadline = time.monotonic() + ADOPTION
        while os.getppid() != self.master_pid:
            # Nothing is said to a newborn before its hello, unless that it is not wanted any more.
            if self.channel.poll(0.001) or time.monotonic() > deadline:
                return False
        return True
