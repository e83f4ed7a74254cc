"""How the master makes processes: names, channels, forks, and requests to the template."""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Sequence
from socket import socket

from setproctitle import setproctitle

from prefork_q.ipc.birth import Birth
from prefork_q.ipc.channel import Channel
from prefork_q.ipc.fork import fork, ignore_node_signals
from prefork_q.ipc.messages import Spawn
from prefork_q.ipc.scoreboard import API_CELLS, Scoreboard
from prefork_q.ipc.stacks import StackFile
from prefork_q.master.children import API, KEEPER, STORE, TEMPLATE, WATCHER, WORKER, Cells, Child, Place
from prefork_q.master.settings import EntryPoint, Entrypoints, Generation, MasterSettings
from prefork_q.master.wires import Wires


class Births:
    """Makes the children of one master; each has its channel and its name before it exists."""

    def __init__(
        self,
        settings: MasterSettings,
        board: Scoreboard,
        wires: Wires,
        listeners: Sequence[socket] = (),
    ) -> None:
        self._settings = settings
        self._board = board
        self._cells = {WORKER: Cells(board.slots), API: Cells(API_CELLS)}
        self._wires = wires
        self._listeners = listeners
        self._numbers = itertools.count(1)
        self._pid = os.getpid()

    def fork(self, place: Place, now: float, generation: Generation, *, may_preload: bool) -> Child:
        """Make a process of any role but worker.

        Raises:
            OSError: the system has no room for it now.
        """
        ours, theirs = Channel.pair()
        child = Child(place, self._incarnation(place), generation.number, ours, asked_at=now)
        child.cell = self._cells[API].take() if place.role == API else None
        birth = Birth(
            role=place.role,
            slot=place.number,
            incarnation=child.incarnation,
            generation=child.generation,
            master_pid=self._pid,
            channel=theirs,
            scoreboard=self._board,
            may_preload=may_preload,
            # Those for whom there is no row of their own share the last.
            cell=API_CELLS - 1 if child.cell is None else child.cell,
        )
        keep = [theirs.fileno(), *self._settings.keep_fds]
        if place.role == API:
            keep += [listener.fileno() for listener in self._listeners]
        try:
            entry = _entry(generation.entrypoints, place.role)
            child.pid = fork(lambda: _begin(entry, birth), keep_fds=keep)
        except OSError:
            ours.close()
            self.over(child)
            raise
        finally:
            theirs.close()
        self._wires.add(child)
        return child

    def spawn(self, place: Place, now: float, template: Child) -> Child:
        """Ask the template for a worker.

        Raises:
            OSError: there is no room for it now.
        """
        cell = self._cells[WORKER].take()
        if cell is None:
            raise OSError(errno.EAGAIN, "every row of the scoreboard is taken by workers that still leave")
        try:
            stacks = StackFile()
        except OSError:
            self._cells[WORKER].give_back(cell)
            raise
        try:
            ours, theirs = Channel.pair()
        except OSError:
            self._cells[WORKER].give_back(cell)
            stacks.close()
            raise
        child = Child(
            place, self._incarnation(place), template.generation, ours, asked_at=now, newborn_end=theirs,
            cell=cell, made_by=template, stacks=stacks,
        )  # fmt: skip
        self._board.worker(cell).open(child.incarnation, child.generation, place.number)
        self._wires.add(child)
        request = Spawn(place.number, child.incarnation, child.generation, cell)
        # If the template is just dying nobody will ever hold the other end: ours then says so.
        self._wires.pass_on(template, request, child)
        return child

    def over(self, child: Child) -> None:
        """It is gone: its row of the scoreboard may be another's."""
        if child.cell is not None and child.role in self._cells:
            self._cells[child.role].give_back(child.cell)
            child.cell = None
        if child.stacks is not None:
            child.stacks.close()

    def _incarnation(self, place: Place) -> str:
        name = place.number if place.role == "worker" else place.role
        return f"{self._settings.node}.{name}.{next(self._numbers)}"


def _entry(entrypoints: Entrypoints, role: str) -> EntryPoint:
    entry = {
        TEMPLATE: entrypoints.template,
        KEEPER: entrypoints.keeper,
        API: entrypoints.api,
        STORE: entrypoints.store,
        WATCHER: entrypoints.watcher,
    }[role]
    if entry is None:
        raise ValueError(f"no entry point for {role}")
    return entry


def _begin(entry: EntryPoint, birth: Birth) -> int:
    """Runs in the new process."""
    setproctitle(f"prefork-q: {birth.role}")
    if birth.role == STORE:
        ignore_node_signals()
    return entry(birth)
