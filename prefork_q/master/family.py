"""The processes of the node, alive: births, what they say, deaths. Runs in the master, never blocks.

Every place is filled again when its process ends: at once if it had been ready, after a growing delay
if it died before. The channel of a worker only tells of its life; that it is dead, waitpid says.
"""

from __future__ import annotations

import os
import signal
from collections import OrderedDict
from typing import Final

from prefork_q.events import Events, Level, mask_url
from prefork_q.ipc.messages import (
    Acknowledged,
    Drain,
    Dumped,
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
    Retiring,
    Spawned,
    SpawnFailed,
    Unsafe,
)
from prefork_q.ipc.scoreboard import Scoreboard, boot_time
from prefork_q.ipc.stacks import SIGNAL
from prefork_q.master.births import Births
from prefork_q.master.children import (
    KEEPER,
    OUT_OF_TEMPLATE,
    STORE,
    TEMPLATE,
    WORKER,
    Child,
    Place,
    Slots,
)
from prefork_q.master.deadlines import Deadlines
from prefork_q.master.deaths import Exit, PostMortem, cause_of
from prefork_q.master.estates import Estates
from prefork_q.master.guard import Guard, GuardSettings
from prefork_q.master.inquiries import Inquiries
from prefork_q.master.judge import Judge
from prefork_q.master.settings import Generation
from prefork_q.master.wires import Wires

SETTLED: Final = 2.0
"""Seconds of life after which a process of any role but worker counts as one that had been ready: these
say so before their first real work, and one that dies of it each time must not be reborn at full speed."""

HANG_UP: Final = 5.0
"""Seconds that a process may go on after it closed its channel."""
UNBORN: Final = 2.0
"""Seconds to wait for the template's word about a newborn whose channel is closed."""
MAX_STRANGERS: Final = 256


class Family:
    """All children, by their places.

    `current` is the configuration and code from which the places are filled. `is_quiet`: the workers claim
    nothing.
    `is_closing`: nobody is born any more, but keeper and store while `keeps_keeper`, as long as there
    is something to renew or to give back.
    """

    def __init__(
        self,
        generation: Generation,
        slots: Slots,
        births: Births,
        wires: Wires,
        board: Scoreboard,
        events: Events,
    ) -> None:
        self.slots = slots
        self.estates = Estates(slots, board, self.tell)
        self.deadlines = Deadlines()
        self.redis: RedisState | None = None
        self.current = generation
        slots.keeper.backoff.cap = generation.settings.keeper_delay
        self.is_quiet = False
        self.is_reload_wanted = False
        self.is_closing = False
        self.keeps_keeper = True
        self.gave_up: Failed | None = None
        self._births = births
        self._wires = wires
        self._board = board
        self._events = events
        self._told_failure: Failed | None = None
        self._judge = Judge(generation, slots, board, self.deadlines, kill=self.kill, unborn=self._unborn)
        inquiries = Inquiries(self.tell, self._ask_by_signal)
        self.guard = Guard(slots, board, inquiries, _guard_settings(generation), kill=self.kill)
        self._retiring: list[Place] = []
        # The generations whose handlers' import left what must not be forked.
        self._unsafe: set[int] = set()
        # Ends of processes that are not known (yet): when, and how.
        self._strangers: OrderedDict[int, tuple[float, Exit]] = OrderedDict()

    # -- births --------------------------------------------------------------------------------------

    def may_preload(self, generation: Generation) -> bool:
        """Whether its template imports the handlers."""
        return generation.settings.preload != "off" and generation.number not in self._unsafe

    def forget_unsafe(self, number: int) -> None:
        """The code of the generation of that number is to be imported for the first time."""
        self._unsafe.discard(number)

    def adopt(self, generation: Generation) -> None:
        """Fill the places from this one from now on."""
        self.current = generation
        self.slots.keeper.backoff.cap = generation.settings.keeper_delay
        self._judge.adopt(generation, boot_time())
        self.guard.settings = _guard_settings(generation)

    def fill(self, now: float) -> None:
        """Make the processes that are missing and due."""
        for place in self.slots.vacant(now):
            if self._may_fill(place):
                child = self.bear(place, now, self.current, self.slots.template.child)
                if child is not None:
                    place.filled(child)

    def next_fill(self) -> float | None:
        """When the next place is due; None if there is none to be filled."""
        vacant = (place for place in self.slots.places() if place.is_vacant)
        return min((place.due_at for place in vacant if self._may_fill(place)), default=None)

    @property
    def has_leases(self) -> bool:
        """Whether a worker may still hold tasks, or a dead one's are not known to be given back."""
        return bool(self.slots.children(WORKER) or self.estates.notices.unreturned())

    def _may_fill(self, place: Place) -> bool:
        if self.is_closing:
            # One keeper at a time: who is about to leave would give back the same.
            return place.role in (KEEPER, STORE) and self.keeps_keeper and self.has_leases
        store, template = self.slots.store, self.slots.template.child
        if store is not None and not store.was_ever_ready:
            return place is store
        return place.role not in OUT_OF_TEMPLATE or (template is not None and template.state == "ready")

    def bear(self, place: Place, now: float, generation: Generation, template: Child | None) -> Child | None:
        """Make a process for a place, which does not have it yet; `template` makes workers and api processes.

        None: it cannot be made now, and the place waits longer for the next.
        """
        may_preload = self.may_preload(generation)
        try:
            if place.role in OUT_OF_TEMPLATE and template is not None:
                child = self._births.spawn(place, now, template)
            else:
                child = self._births.fork(place, now, generation, may_preload=may_preload)
        except OSError as error:
            cause = f"cannot be started: {error.strerror or error}"
            delay = place.missed(now, cause)
            self._events.emit(
                "birth_failed", level="error", place=place.name, cause=cause, next_start_s=delay
            )
            return None
        settings = generation.settings
        child.threads = settings.threads
        is_importing = place.role == TEMPLATE or (place.role in OUT_OF_TEMPLATE and not may_preload)
        limit = settings.import_timeout if is_importing else settings.boot_timeout
        self.deadlines.set("boot", child.incarnation, now + limit)
        self._events.emit("born", level="debug", **child.who())
        return child

    # -- what they say -------------------------------------------------------------------------------

    def hear(self) -> None:
        """Read what came in since the wait."""
        for child, message in self._wires.messages():
            self._heard(child, message)

    def tell(self, child: Child, message: Message) -> None:
        """Send; what cannot be delivered is settled when the process is waited for."""
        self._wires.send(child, message)

    def _heard(self, child: Child, message: Message | None) -> None:
        child.heard_at = boot_time()
        match message:
            case None:
                self._hung_up(child)
            case Hello(pid=pid):
                self._greeted(child, pid)
            case Ready():
                self._ready(child)
            case Failed(reason=reason, traceback=traceback):
                # The words of somebody's code, which go to more places than the log.
                child.farewell = Failed(mask_url(reason), mask_url(traceback))
            case Spawned(incarnation=incarnation, pid=pid):
                self._identified(incarnation, pid)
            case SpawnFailed(incarnation=incarnation, reason=reason):
                newborn = self.slots.by_incarnation(incarnation)
                # One that has said hello lives: it was made, and only its maker was late to tell.
                if newborn is not None and newborn.pid is None:
                    self._unborn(newborn, reason)
            case Unsafe(threads=threads, sockets=sockets):
                child.stopping = True
                self._unsafe.add(child.generation)
                self._events.emit(
                    "preload_off", level="warning", threads=list(threads), sockets=sockets,
                    reason="the import of the handlers left them; workers and api import for themselves",
                )  # fmt: skip
            case Acknowledged(incarnation=incarnation, ended=ended):
                self.estates.given_back(incarnation, ended)
            case LeasesExpired(ended=ended):
                self.estates.ended_by_keeper(ended)
            case Dumped(serial=serial):
                self.guard.answered(child, serial)
            case Retiring(reason=reason):
                self._retires(child, reason)
            case RedisState():
                self.redis = message
            case ReloadWanted(paths=paths):
                self.is_reload_wanted = True
                self._events.emit("code_changed", paths=list(paths))
            case _:
                self._events.emit(
                    "message_ignored", level="warning", kind=type(message).__name__, **child.who()
                )

    def _retires(self, child: Child, reason: str) -> None:
        """It claims nothing more, and ends when nothing runs in it; an heir comes when there is room."""
        child.retires_for = reason
        self._events.emit("retiring", cause=f"recycled: {reason}", **child.who())
        if child is child.place.child and not child.stopping and not self.is_closing:
            self._retiring.append(child.place)

    def take_retiring(self) -> list[Place]:
        """Return the places whose workers leave of their own accord, each once."""
        taken, self._retiring = self._retiring, []
        return taken

    def _ask_by_signal(self, child: Child) -> bool:
        """Have faulthandler say what a worker does; False if it is not there yet: it would die of that."""
        if child.cell is None or not self._board.worker(child.cell).main_thread:
            return False
        self.send_signal(child, SIGNAL)
        return True

    def _greeted(self, child: Child, pid: int) -> None:
        child.pid = pid
        if self._has_ended_before(child, pid):
            return
        child.is_greeted = True
        if child.role == WORKER:
            slot = self._board.worker(self.cell_of(child))
            slot.pid = pid
            slot.is_alive = True
        if child.stopping or (self.is_closing and child.role not in (KEEPER, STORE)):
            self.tell(child, Drain(0.0))
            return
        self.tell(child, Go())
        if child.role in (WORKER, KEEPER) and self.is_quiet:
            self.tell(child, Quiet())
        if child is self.slots.keeper.child:
            self.estates.tell_all(child)

    def _ready(self, child: Child) -> None:
        now = boot_time()
        child.is_ready = True
        child.place.was_ever_ready = True
        # Not all: who was told to leave just before it got ready has a time for that.
        self.deadlines.drop(child.incarnation, "boot")
        if child.role == WORKER:
            child.place.became_ready()
        if child is self.slots.keeper.child:
            self._judge.keeper_is_ready(now)
        self._events.emit("ready", seconds=round(now - child.asked_at, 3), **child.who())

    def _identified(self, incarnation: str, pid: int) -> None:
        """The template told the pid of a newborn, which may have ended before that."""
        child = self.slots.by_incarnation(incarnation)
        if child is None or child.pid is not None:
            return
        child.pid = pid
        self._has_ended_before(child, pid)

    def _has_ended_before(self, child: Child, pid: int) -> bool:
        """Whether it was waited for when its pid was not known yet; if so, see to its end."""
        ended_at, exit = self._strangers.get(pid, (0.0, None))
        if exit is None or ended_at < child.asked_at:
            return False
        del self._strangers[pid]
        self._ended(child, exit)
        return True

    def _hung_up(self, child: Child) -> None:
        """It closed its channel: it ends, or never was. The store does so by its exec."""
        if child.role == STORE and child.is_greeted:
            self._ready(child)
        elif child.pid is not None:
            self.deadlines.set("hung up", child.incarnation, boot_time() + HANG_UP)
        elif child.made_by not in self.slots.template.members():
            self._unborn(child, "the template died before it was made")
        else:
            self.deadlines.set("unborn", child.incarnation, boot_time() + UNBORN)

    def set_quiet(self, quiet: bool) -> bool:
        """Let the workers claim nothing more, or claim again; return whether that is a change."""
        if quiet == self.is_quiet:
            return False
        self.is_quiet = quiet
        for child in self.slots.children(WORKER, KEEPER):
            if child.is_greeted and not child.stopping:
                self.tell(child, Quiet() if quiet else Resume())
        return True

    # -- deaths --------------------------------------------------------------------------------------

    def reap(self) -> None:
        """Wait for everybody that has ended, orphans that were adopted included."""
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            exit = Exit.of(status, usage.ru_maxrss)
            child = self.slots.by_pid(pid)
            if child is not None:
                self._ended(child, exit)
            else:
                self._strangers[pid] = (boot_time(), exit)
                while len(self._strangers) > MAX_STRANGERS:
                    self._strangers.popitem(last=False)

    def kill(self, child: Child, reason: str) -> None:
        """Kill at once; what it held goes back uncharged."""
        child.killed_for = child.killed_for or reason
        if child.pid is None:
            self._unborn(child, reason)
            return
        self.send_signal(child, signal.SIGKILL)

    def send_signal(self, child: Child, number: int) -> None:
        """Signal a process that is not waited for yet, so its pid is still its own."""
        if child.pid is not None:
            os.kill(child.pid, number)

    def _ended(self, child: Child, exit: Exit) -> None:
        now = boot_time()
        self._read_last_words(child)
        post_mortem = self._examine(child, exit, now)
        cause = cause_of(child, exit, post_mortem)
        if child.role == WORKER:
            self.estates.settle(
                child, self.cell_of(child), exit, post_mortem, now, is_restart=not self.is_closing
            )
        delay = self._empty(child, now, cause)
        if child.role == TEMPLATE:
            self._forget_unborn(child)
        is_expected = child.stopping or exit.exit_code == 0
        level: Level = "info" if is_expected else "warning"
        self._events.emit("exited", level=level, cause=cause, next_start_s=delay or None, **child.who())
        # One of a generation that is only being tried is the reload's business.
        if child.generation != self.current.number:
            return
        self._tell_failure(child)
        # A keeper that says so has found that what is stored is not for this version, at whatever time.
        is_fatal = child.role == KEEPER or not self._was_ever_ready(child.role)
        if exit.exit_code == os.EX_CONFIG and is_fatal and not self.is_closing:
            self.gave_up = child.farewell or Failed(cause)

    def _forget_unborn(self, template: Child) -> None:
        """Nobody will tell any more of newborns whose channel is closed already."""
        for newborn in self.slots.children(*OUT_OF_TEMPLATE):
            if newborn.made_by is template and newborn.pid is None and newborn.is_hung_up:
                self._unborn(newborn, "the template died before it was made")

    def _tell_failure(self, child: Child) -> None:
        """Say why in full, once: the same process may go on failing in the same way."""
        if child.farewell is not None and child.farewell != self._told_failure:
            self._told_failure = child.farewell
            failure = child.farewell
            self._events.emit(
                "failed",
                level="error",
                reason=failure.reason,
                traceback=failure.traceback or None,
                **child.who(),
            )

    def _read_last_words(self, child: Child) -> None:
        while True:
            heard = [message for _, message in self._wires.messages_of(child) if message is not None]
            for message in heard:
                self._heard(child, message)
            if not heard:
                return

    def _examine(self, child: Child, exit: Exit, now: float) -> PostMortem:
        if child.role != WORKER:
            return PostMortem()
        return self.guard.examine(child, exit, self._board.worker(self.cell_of(child)).running(), now)

    def _unborn(self, child: Child, reason: str) -> None:
        """There is no such process, or one that will exit since nobody answers it."""
        delay = self._empty(child, boot_time(), reason)
        level: Level = "debug" if self.is_closing else "warning"
        self._events.emit("unborn", level=level, cause=reason, next_start_s=delay, **child.who())

    def _empty(self, child: Child, now: float, cause: str) -> float:
        child.cause = cause
        self._wires.remove(child)
        self.guard.forget(child)
        self._births.over(child)
        self.deadlines.drop(child.incarnation)
        is_settled = child.role == WORKER or now - child.asked_at >= SETTLED
        was_ready = child.stopping or (child.is_ready and is_settled)
        return child.place.emptied(now, cause, was_ready=was_ready, child=child)

    @property
    def free_rows(self) -> int:
        """How many workers more there can be."""
        return self._births.free_rows

    def running_in(self, worker: Child) -> int:
        """Return how many tasks it runs."""
        return len(self._board.worker(self.cell_of(worker)).running())

    def cell_of(self, child: Child) -> int:
        """Return the row of the scoreboard that a worker writes."""
        if child.cell is None:
            raise ValueError(f"{child.incarnation} has no row of the scoreboard")
        return child.cell

    def _was_ever_ready(self, role: str) -> bool:
        return any(place.was_ever_ready for place in self.slots.places() if place.role == role)

    # -- judgement -----------------------------------------------------------------------------------

    def judge(self, now: float) -> None:
        """End who is late, and carry on with the limits of workers."""
        self._judge.look(now, is_redis_away=self.redis is not None and not self.redis.reachable)
        self.guard.carry_on(now)

    def stood_still(self, seconds: float, now: float) -> None:
        """The node did not run for so long: hold it against nobody."""
        self._judge.stood_still(seconds, now)
        self.guard.stood_still(seconds, now)


def _guard_settings(generation: Generation) -> GuardSettings:
    return GuardSettings(generation.settings.max_rss, generation.settings.deaf_after)
