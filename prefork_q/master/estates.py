"""What dead workers leave: their numbers, and the tasks that the keeper gives back. Runs in the master."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prefork_q.ipc.messages import DeathNotice, Ended
from prefork_q.ipc.scoreboard import Scoreboard, boot_time
from prefork_q.master.children import Child, Slots
from prefork_q.master.deaths import Exit, Notices, PostMortem, label_of, notice_of
from prefork_q.master.totals import Totals


class Estates:
    """`tell` sends a notice to the keeper; a notice stays until it was acknowledged, by whichever keeper."""

    def __init__(self, slots: Slots, board: Scoreboard, tell: Callable[[Child, DeathNotice], None]) -> None:
        self.notices = Notices()
        self.totals = Totals()
        self._slots = slots
        self._board = board
        self._tell = tell

    def settle(
        self, child: Child, cell: int, exit: Exit, post_mortem: PostMortem, now: float, *, is_restart: bool
    ) -> None:
        """Keep the numbers of a dead worker, and have what it held given back. Once, after it was waited for.

        `cell` is its row of the scoreboard; `is_restart`: another takes its place.
        """
        slot = self._board.worker(cell)
        snapshot = slot.snapshot()
        slot.is_alive = False
        self.totals.fold(snapshot)
        if is_restart:
            self.totals.restarts[label_of(child, exit)] += 1
        if child.is_greeted:
            self._announce(notice_of(child, exit, snapshot, post_mortem, now))

    def tell_all(self, keeper: Child) -> None:
        """Tell a new keeper what is not given back yet."""
        for notice in self.notices.open():
            self._tell(keeper, notice)

    def given_back(self, incarnation: str, ended: Iterable[Ended]) -> None:
        """The keeper has given back what this one held; `ended` are the attempts that it ended with that."""
        self.notices.acknowledged(incarnation)
        self.ended_by_keeper(ended)

    def ended_by_keeper(self, ended: Iterable[Ended]) -> None:
        """Add attempts that the keeper ended to the numbers of their types."""
        ended = tuple(ended)
        known = {name for slot in self._board.workers() for name in slot.type_names()} if ended else set()
        self.totals.ended_by_keeper(ended, boot_time(), known)

    def _announce(self, notice: DeathNotice) -> None:
        self.notices.add(notice)
        if not notice.drained:
            self.totals.crashes += len(notice.running)
        keeper = self._slots.keeper.child
        if keeper is not None and keeper.is_greeted:
            self._tell(keeper, notice)
