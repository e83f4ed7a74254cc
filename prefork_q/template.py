"""The template: imports the user's handlers once, and forks workers and api processes from that on request.

- They share its memory copy-on-write; `gc.freeze` keeps the collector from writing to every object.
- Forking is safe only from a process of one thread, and a socket that is shared by all of them is a
  trap. With `preload` auto, an import that leaves threads or sockets is told to the master, which
  starts a template that imports nothing: then each of them imports for itself.
- It has one thread, answers one request after the other, and dies without harm: whom it makes is not its
  child, but forked twice, and falls to the master.
"""

from __future__ import annotations

import gc
import os
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from socket import socket
from typing import Final, Generic, TypeVar

from setproctitle import setproctitle

from prefork_q.errors import ConfigurationError
from prefork_q.events import Events
from prefork_q.ipc.birth import Birth
from prefork_q.ipc.channel import Channel, ChannelClosed
from prefork_q.ipc.fork import fork_detached
from prefork_q.ipc.messages import Drain, Failed, Ready, Spawn, Spawned, SpawnFailed, Unsafe

SPAWN_TIMEOUT: Final = 5.0
"""Seconds that the middle process has to make a newborn and exit."""
IDLE: Final = 60.0
"""Seconds between two looks at a channel that stays quiet."""

THREAD_VARIABLES: Final = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
"""Read by numeric libraries at import; unset, each process would start a thread for every core."""

AppT = TypeVar("AppT")


@dataclass(frozen=True, slots=True)
class TemplateSettings:
    """`preload` is auto, on or off; `keep_fds` are descriptors that all keep, such as the log's."""

    preload: str = "auto"
    keep_fds: tuple[int, ...] = ()


class Template(Generic[AppT]):
    """Entry point of the template's process, and of those that come out of it.

    Args:
        load: imports the handlers; raises ConfigurationError if that cannot be done.
        worker: the worker's entry point, given the birth and what `load` returned.
        api: the same of an api process.
        on_start: runs the hooks for the template, after the import.
        events: the log.
    """

    def __init__(
        self,
        load: Callable[[], AppT],
        worker: Callable[[Birth, AppT], int],
        api: Callable[[Birth, AppT], int],
        on_start: Callable[[AppT], None],
        settings: TemplateSettings,
        events: Events,
    ) -> None:
        self._load = load
        self._entries = {"worker": worker, "api": api}
        self._on_start = on_start
        self._settings = settings
        self._events = events
        self._opened: tuple[int, ...] = ()

    def __call__(self, birth: Birth) -> int:
        """Run in the template's process; return its exit code."""
        setproctitle(f"prefork-q: template gen {birth.generation}")
        if not birth.introduce():
            return 0
        limit_threads(self._events)
        app: AppT | None = None
        is_forced = False
        if birth.may_preload:
            before = open_descriptors()
            try:
                app = self._load()
                self._on_start(app)
            except BaseException as error:
                return _fail(birth.channel, error)
            opened = open_descriptors() - before
            self._opened = tuple(fd for fd, _ in opened)
            unsafe = Unsafe(tuple(other_threads()), len(_sockets_of(opened)))
            if unsafe.threads or unsafe.sockets:
                if self._settings.preload == "auto":
                    birth.channel.send(unsafe)
                    return 0
                is_forced = True
                self._events.emit(
                    "preload_unsafe", level="warning", threads=list(unsafe.threads), sockets=unsafe.sockets
                )
        gc.collect()
        gc.freeze()
        return self._serve(birth, app, is_forced=is_forced)

    def _serve(self, birth: Birth, app: AppT | None, *, is_forced: bool) -> int:
        channel = birth.channel
        try:
            channel.send(Ready())
            while True:
                message, fds = channel.receive_with_fds()
                match message:
                    case None:
                        channel.poll(IDLE)
                    case Spawn(role=role) if role in self._entries and fds:
                        channel.send(self._spawn(birth, app, message, fds, is_forced=is_forced))
                    case Drain():
                        return 0
                    case _:
                        raise TypeError(
                            f"the template takes no {type(message).__name__} with {len(fds)} descriptors"
                        )
        except ChannelClosed:
            return 0

    def _spawn(
        self, birth: Birth, app: AppT | None, request: Spawn, fds: list[int], *, is_forced: bool
    ) -> Spawned | SpawnFailed:
        """Make one process; `fds` are what came along for it, closed here after."""
        try:
            pid = fork_detached(
                lambda: self._begin(birth, app, request, fds[0], fds[1:]),
                # What the import has opened stays open: objects of the handlers hold those numbers, and would
                # write to whatever is opened under them next.
                keep_fds=(*fds, *self._settings.keep_fds, *self._opened),
                is_forced=is_forced,
                timeout=SPAWN_TIMEOUT,
            )
        except OSError as error:
            return SpawnFailed(request.incarnation, f"cannot be forked: {error.strerror or error}")
        finally:
            for fd in fds:
                os.close(fd)
        return Spawned(request.incarnation, pid)

    def _begin(
        self, birth: Birth, app: AppT | None, request: Spawn, channel_fd: int, others: list[int]
    ) -> int:
        """Runs in the new process."""
        is_worker = request.role == "worker"
        setproctitle(f"prefork-q: worker {request.slot}" if is_worker else f"prefork-q: {request.role}")
        channel = Channel.from_fd(channel_fd)
        if app is None:
            try:
                app = self._load()
            except BaseException as error:
                return _fail(channel, error)
        return self._entries[request.role](
            Birth(
                role=request.role,
                slot=request.slot,
                incarnation=request.incarnation,
                generation=request.generation,
                master_pid=birth.master_pid,
                channel=channel,
                scoreboard=birth.scoreboard,
                cell=request.cell,
                stacks_fd=others[0] if is_worker else -1,
                listeners=() if is_worker else tuple(socket(fileno=fd) for fd in others),
            ),
            app,
        )


def limit_threads(events: Events) -> None:
    """Keep numeric libraries to one thread each, unless the user said otherwise."""
    unset = [name for name in THREAD_VARIABLES if name not in os.environ]
    for name in unset:
        os.environ[name] = "1"
    if unset:
        events.emit("threads_limited", variables=[f"{name}=1" for name in unset])


def other_threads() -> list[str]:
    """Return the names of this process's threads but the main one; those of C code by their system name."""
    known = {thread.native_id: thread.name for thread in threading.enumerate()}
    names = []
    for task in Path("/proc/self/task").iterdir():
        tid = int(task.name)
        if tid != os.getpid():
            names.append(known.get(tid) or _system_name(task))
    return sorted(names)


def open_descriptors() -> set[tuple[int, str]]:
    """Return the open descriptors, each with what it is open to."""
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        try:
            found.add((int(fd), os.readlink(f"/proc/self/fd/{fd}")))
        except FileNotFoundError:
            # The descriptor of the listing itself.
            continue
    return found


def open_sockets() -> set[tuple[int, str]]:
    """Return the open sockets, as (descriptor, identity)."""
    return _sockets_of(open_descriptors())


def _sockets_of(descriptors: set[tuple[int, str]]) -> set[tuple[int, str]]:
    return {(fd, target) for fd, target in descriptors if target.startswith("socket:")}


def _system_name(task: Path) -> str:
    try:
        return (task / "comm").read_text().strip()
    except OSError:
        return "a thread that has just ended"


def _fail(channel: Channel, error: BaseException) -> int:
    """Tell the master why the handlers cannot be used; return the exit code."""
    if isinstance(error, ConfigurationError):
        text = str(error)
        lines = text.strip().splitlines() or ["the handlers cannot be imported"]
        # "... cannot be imported:" says little without the end of the traceback that follows.
        reason = f"{lines[0]} {lines[-1].strip()}" if lines[0].endswith(":") else lines[0]
        failure = Failed(reason, text if len(lines) > 1 else "")
    else:
        what = traceback.format_exception_only(error)[-1].strip()
        failure = Failed(
            f"the handlers cannot be imported: {what}", "".join(traceback.format_exception(error))
        )
    try:
        channel.send(failure)
    except ChannelClosed:
        return 0
    return os.EX_CONFIG
