"""The only place that forks, with everything that a fresh child must shed.

Runs in the master, the template and the template's short-lived middle processes.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import random
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final

from prefork_q.events import mask_url

INTERNAL_ERROR: Final = 70
"""Exit code of a child whose code raised (EX_SOFTWARE)."""

NODE_SIGNALS: Final = (
    signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU,
    signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH, signal.SIGABRT,
)  # fmt: skip
"""Signals to the master that reach its children too, through the terminal or the process group.

abort(3) ends a process all the same: it raises SIGABRT once more, with nobody to handle it.
"""

OOM_SCORE: Final = "/proc/self/oom_score_adj"
OPEN_FDS: Final = "/proc/self/fd"

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_libc = ctypes.CDLL(None, use_errno=True)


def fork(child: Callable[[], int], *, keep_fds: Iterable[int] = (), is_forced: bool = False) -> int:
    """Fork; run `child` in the new process and exit with what it returns. Return the new pid.

    The child has default signal handlers, except that NODE_SIGNALS do nothing; no descriptors but
    0 to 2 and `keep_fds`; a random seed of its own. It never returns into the parent's code: an
    exception is printed and ends it with code 70. `is_forced`: fork although there are other threads,
    whose locks the child may find held for ever.

    Raises:
        RuntimeError: the calling process has more than one thread, and it is not forced.
        OSError: no process can be made now.
    """
    if not is_forced:
        _require_single_thread()
    kept = tuple(keep_fds)
    # Blocked until the child has shed the parent's handlers: one of those, run there, would write
    # to the parent's wake-up descriptor.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    pid = -1
    try:
        pid = os.fork()
        if pid == 0:
            _run_child(child, kept)
        return pid
    finally:
        if pid != 0:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def fork_detached(
    child: Callable[[], int],
    *,
    keep_fds: Iterable[int] = (),
    is_forced: bool = False,
    timeout: float = 10.0,
) -> int:
    """Fork twice, so that the new process is a child of the nearest subreaper, not of the caller.

    Returns:
        The pid of the new process.

    Raises:
        OSError: no process could be made, or the middle process did not answer in `timeout` seconds
            (it is killed then; a newborn, if there is one, is an orphan that nobody lets begin).
    """
    kept = tuple(keep_fds)
    reader, writer = os.pipe2(os.O_CLOEXEC)

    def middle() -> int:
        pid = fork(child, keep_fds=kept)
        # If the caller has died meanwhile, the newborn is left to its master.
        with suppress(BrokenPipeError):
            os.write(writer, b"%d" % pid)
        return 0

    try:
        middle_pid = fork(middle, keep_fds=(*kept, writer), is_forced=is_forced)
    except BaseException:
        os.close(reader)
        raise
    finally:
        os.close(writer)
    try:
        answer = _read_until_end(reader, timeout)
    finally:
        os.close(reader)
        if not _has_exited(middle_pid, 0.5):
            os.kill(middle_pid, signal.SIGKILL)
            _has_exited(middle_pid, 5.0)
    if not answer:
        raise OSError("the middle process made no child")
    return int(answer)


def set_parent_death_signal(number: int) -> None:
    """Let the kernel send this process the signal when its parent's thread that forked it ends.

    Set it only once getppid() is the master, and check that again afterwards (prctl(2)).
    """
    _prctl(_PR_SET_PDEATHSIG, number)


def become_subreaper() -> None:
    """Make this process the parent of all orphans among its descendants (prctl(2))."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def ignore_node_signals() -> None:
    """Ignore NODE_SIGNALS in a way that an exec'd program inherits."""
    for number in NODE_SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _run_child(child: Callable[[], int], kept: tuple[int, ...]) -> None:
    code = INTERNAL_ERROR
    try:
        _shed_signals()
        _close_all_but(kept)
        shed_protection()
        random.seed()
        _seed_numpy()
        code = child()
    except SystemExit as exit:
        code = exit.code if isinstance(exit.code, int) else int(exit.code is not None)
    except BaseException:
        os.write(2, mask_url(traceback.format_exc()).encode(errors="replace"))
    finally:
        os._exit(code & 0xFF)


def _seed_numpy() -> None:
    """Give numpy's global generator a state of its own, if the handlers' import has brought it along."""
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()


def _shed_signals() -> None:
    # First: it puts back what stood there before, which is the parent's handler. Put back later, that would
    # swallow an abort().
    faulthandler.disable()
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)) and number != signal.SIGINT:
            signal.signal(number, signal.SIG_DFL)
    # A handler that does nothing, not SIG_IGN: exec'd programs then start with the default.
    for number in NODE_SIGNALS:
        signal.signal(number, _nothing)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def shed_protection(score: str = OOM_SCORE) -> None:
    """Be as likely as any other process to be ended when memory runs out, though the master is less so. To
    give up a lower score needs no right (proc(5)); a higher one, given by somebody else, is kept."""
    try:
        with open(score, "r+b", buffering=0) as file:
            if int(file.read(16)) < 0:
                file.write(b"0")
    except (OSError, ValueError):
        return


def _nothing(number: int, frame: object) -> None:
    pass


def _close_all_but(kept: tuple[int, ...]) -> None:
    try:
        opened = [int(name) for name in os.listdir(OPEN_FDS)]
    except OSError:
        _close_up_to_limit(kept)
        return
    for fd in opened:
        if fd > 2 and fd not in kept:
            # The listing's own is among them, and closed already.
            with suppress(OSError):
                os.close(fd)


def _close_up_to_limit(kept: tuple[int, ...]) -> None:
    """For a child that cannot list what is open. It may take minutes: the limit can be 2**30, and not every
    kernel and C library closes a range in one call."""
    low = 3
    for fd in sorted(fd for fd in set(kept) if fd >= 3):
        os.closerange(low, fd)
        low = fd + 1
    os.closerange(low, os.sysconf("SC_OPEN_MAX"))


def _require_single_thread() -> None:
    if threading.active_count() != 1 or thread_count() != 1:
        names = ", ".join(thread.name for thread in threading.enumerate())
        raise RuntimeError(f"fork from a process of several threads: {names}")


def thread_count() -> int:
    """Return the threads of this process, those that Python does not know included."""
    return len(os.listdir("/proc/self/task"))


def _read_until_end(fd: int, timeout: float) -> bytes:
    deadline = time.monotonic() + timeout
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    answer = b""
    while poller.poll(max(0.0, deadline - time.monotonic()) * 1000):
        data = os.read(fd, 64)
        if not data:
            break
        answer += data
    return answer


def _has_exited(pid: int, timeout: float) -> bool:
    """Wait for a child of ours and reap it; False if it still lives after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        # Somebody's import has had SIGCHLD ignored, and the kernel reaps.
        return True
    try:
        poller = select.poll()
        poller.register(pidfd, select.POLLIN)
        poller.poll(max(0.0, deadline - time.monotonic()) * 1000)
    finally:
        os.close(pidfd)
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}): {os.strerror(number)}")
