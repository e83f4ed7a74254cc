"""How the master makes processes: names, channels, forks, and requests to the template."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from socket import socket

from setproctitle import setproctitle

from prefork_q.ipc.birth import Birth
from prefork_q.ipc.channel import Channel
from prefork_q.ipc.fork import fork, ignore_node_signals
from prefork_q.ipc.messages import Spawn
from prefork_q.ipc.scoreboard import Scoreboard
from prefork_q.master.children import API, KEEPER, STORE, TEMPLATE, Child, Place
from prefork_q.master.settings import EntryPoint, Entrypoints, MasterSettings
from prefork_q.master.wires import Wires


class Births:
    """Makes the children of one master; each has its channel and its name before it exists."""

    def __init__(
        self,
        settings: MasterSettings,
        entrypoints: Entrypoints,
        board: Scoreboard,
        wires: Wires,
        listeners: Sequence[socket] = (),
    ) -> None:
        self._settings = settings
        self._entrypoints = entrypoints
        self._board = board
        self._wires = wires
        self._listeners = listeners
        self._numbers = itertools.count(1)
        self._pid = os.getpid()

    def fork(self, place: Place, now: float, *, generation: int, may_preload: bool) -> Child:
        """Make a process of any role but worker.

        Raises:
            OSError: the system has no room for it now.
        """
        ours, theirs = Channel.pair()
        child = Child(place, self._incarnation(place), generation, ours, asked_at=now)
        birth = Birth(
            role=place.role,
            slot=place.number,
            incarnation=child.incarnation,
            generation=generation,
            master_pid=self._pid,
            channel=theirs,
            scoreboard=self._board,
            may_preload=may_preload,
        )
        keep = [theirs.fileno(), *self._settings.keep_fds]
        if place.role == API:
            keep += [listener.fileno() for listener in self._listeners]
        try:
            child.pid = fork(lambda: _begin(self._entry(place.role), birth), keep_fds=keep)
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        self._wires.add(child)
        place.filled(child)
        return child

    def spawn(self, place: Place, now: float, template: Child) -> Child:
        """Ask the template for a worker."""
        ours, theirs = Channel.pair()
        child = Child(
            place, self._incarnation(place), template.generation, ours, asked_at=now, newborn_end=theirs
        )
        self._board.worker(place.number).open(child.incarnation, child.generation)
        self._wires.add(child)
        place.filled(child)
        request = Spawn(place.number, child.incarnation, child.generation)
        # If the template is just dying nobody will ever hold the other end: ours then says so.
        self._wires.pass_on(template, request, child)
        return child

    def _entry(self, role: str) -> EntryPoint:
        entry = {
            TEMPLATE: self._entrypoints.template,
            KEEPER: self._entrypoints.keeper,
            API: self._entrypoints.api,
            STORE: self._entrypoints.store,
        }[role]
        if entry is None:
            raise ValueError(f"no entry point for {role}")
        return entry

    def _incarnation(self, place: Place) -> str:
        name = place.number if place.role == "worker" else place.role
        return f"{self._settings.node}.{name}.{next(self._numbers)}"


def _begin(entry: EntryPoint, birth: Birth) -> int:
    """Runs in the new process."""
    setproctitle(f"prefork-q: {birth.role}")
    if birth.role == STORE:
        ignore_node_signals()
    return entry(birth)
