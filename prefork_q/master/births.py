"""How the master makes processes: names, channels, forks, and requests to the template."""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Sequence
from contextlib import ExitStack
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

    @property
    def free_rows(self) -> int:
        """How many workers more the scoreboard has room for."""
        return self._cells[WORKER].free

    def fork(self, place: Place, now: float, generation: Generation, *, may_preload: bool) -> Child:
        """Make a process of a role that the template does not make.

        Raises:
            OSError: the system has no room for it now.
        """
        ours, theirs = Channel.pair()
        child = Child(place, self._incarnation(place), generation.number, ours, asked_at=now)
        birth = Birth(
            role=place.role,
            slot=place.number,
            incarnation=child.incarnation,
            generation=child.generation,
            master_pid=self._pid,
            channel=theirs,
            scoreboard=self._board,
            may_preload=may_preload,
        )
        try:
            entry = _entry(generation.entrypoints, place.role)
            keep = (theirs.fileno(), *self._settings.keep_fds)
            child.pid = fork(lambda: _begin(entry, birth), keep_fds=keep)
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        self._wires.add(child)
        return child

    def spawn(self, place: Place, now: float, template: Child) -> Child:
        """Ask the template for a worker or an api process.

        Raises:
            OSError: there is no room for it now.
        """
        make = self._worker if place.role == WORKER else self._api
        child = make(place, now, template)
        self._wires.add(child)
        # Api processes for whom there is no row of their own share the last.
        cell = API_CELLS - 1 if child.cell is None else child.cell
        request = Spawn(place.role, place.number, child.incarnation, child.generation, cell)
        # If the template is just dying nobody will ever hold the other end: ours then says so.
        self._wires.pass_on(template, request, child)
        return child

    def _worker(self, place: Place, now: float, template: Child) -> Child:
        cell = self._cells[WORKER].take()
        if cell is None:
            raise OSError(errno.EAGAIN, "every row of the scoreboard is taken by workers that still leave")
        with ExitStack() as undo:
            undo.callback(self._cells[WORKER].give_back, cell)
            stacks = StackFile()
            undo.callback(stacks.close)
            child = self._newborn(place, now, template)
            undo.pop_all()
        child.cell, child.stacks = cell, stacks
        self._board.worker(cell).open(child.incarnation, child.generation, place.number)
        return child

    def _api(self, place: Place, now: float, template: Child) -> Child:
        with ExitStack() as undo:
            sockets = []
            for listener in self._listeners:
                # What waits to be sent stays open also when the node has begun to stop.
                sockets.append(undo.enter_context(listener.dup()))
            child = self._newborn(place, now, template)
            undo.pop_all()
        child.cell, child.newborn_sockets = self._cells[API].take(), tuple(sockets)
        return child

    def _newborn(self, place: Place, now: float, template: Child) -> Child:
        ours, theirs = Channel.pair()
        incarnation = self._incarnation(place)
        return Child(
            place, incarnation, template.generation, ours, asked_at=now, newborn_end=theirs, made_by=template
        )

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
