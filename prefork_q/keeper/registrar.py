"""The registrar: says in Redis that this node lives and what it runs."""

from __future__ import annotations

from prefork_q.broker import Broker
from prefork_q.errors import ConfigurationError
from prefork_q.ipc import stats
from prefork_q.ipc.scoreboard import Scoreboard
from prefork_q.layout import LAYOUT, wrong_layout

INTERVAL = 5.0
STARTING = 0.5
"""Seconds between two words of a node without a ready worker: the first one is soon told."""
SILENCE = 60.0
"""Seconds without a word after which a node is taken off the list."""


class Registrar:
    """`facts` never change in the life of this keeper: host, version, pid of the master, threads.

    `is_quiet`: the master told the workers to claim nothing.
    """

    name = "registrar"
    needs_redis = True

    def __init__(self, board: Scoreboard, broker: Broker, *, node: str, facts: dict[str, object]) -> None:
        self._board = board
        self._broker = broker
        self._node = node
        self._facts = facts
        self.is_quiet = False
        self._names: tuple[str, list[str], list[str]] = ("", [], [])

    def run(self, now: float) -> float:
        """Register.

        Raises:
            ConfigurationError: what is stored there is not for this version to touch.
        """
        info = self._info()
        layout = self._broker.register(self._node, info, silence=SILENCE)
        if layout != LAYOUT:
            raise ConfigurationError(wrong_layout(layout))
        return now + (INTERVAL if info["ready"] else STARTING)

    def _info(self) -> dict[str, object]:
        living = [slot for slot in self._board.workers() if slot.is_alive]
        ready = [slot for slot in living if slot.state == "ready"]
        if ready and ready[0].incarnation != self._names[0]:
            # What a worker registers stays for its life.
            snapshot = ready[0].snapshot()
            types, queues = (
                [name for name in names if name != stats.OTHER] for names in (snapshot.types, snapshot.waits)
            )
            self._names = (snapshot.incarnation, types, queues)
        return {
            **self._facts,
            "workers": len(living),
            "ready": len(ready),
            "quiet": self.is_quiet,
            "types": self._names[1],
            "queues": self._names[2],
        }
