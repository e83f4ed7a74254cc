"""The state folder of a node: who may use it is decided by two file locks.

    master.lock  held by the master for its life; a second master is refused at once
    store.lock   held by the embedded server for its life (see `store`)

Both are flock(2) locks on descriptors: the kernel drops them however the holder dies.
"""

from __future__ import annotations

import fcntl
import os
import stat
import time
from dataclasses import dataclass
from pathlib import Path

from prefork_q.errors import ConfigurationError

LOCK_PAUSE = 0.02
MASTER_LOCK_WAIT = 0.5
"""Seconds. A master's lock outlives it for as long as a child that it was forking at its death
takes to close what it inherited."""


@dataclass(slots=True)
class LockedFolder:
    """A state folder that this process has locked; the lock lasts until `close`, or its death."""

    path: Path
    descriptor: int

    def close(self) -> None:
        """Let go of the folder."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


def acquire_state_folder(state_dir: Path) -> LockedFolder:
    """Make the state folder if it is missing (mode 0700) and lock it for this process.

    The descriptor is closed on exec; a forked child must close it, or the lock outlives its owner.

    Raises:
        ConfigurationError: it is in use by another master, another user's, writable by
            everybody, or cannot be made.
    """
    path = state_dir.absolute()
    require_possible(path)
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        _secure(path)
        descriptor = lock_file(path / "master.lock", wait=MASTER_LOCK_WAIT)
    except OSError as error:
        raise ConfigurationError(f"state_dir {str(path)!r}: {error.strerror or error}") from error
    if descriptor is None:
        raise ConfigurationError(
            f"state_dir {str(path)!r} is in use by another master ({holder(path / 'master.lock')}); "
            "stop it, or choose another folder with --state-dir"
        )
    return LockedFolder(path, descriptor)


def require_possible(state_dir: Path) -> None:
    """Check that the state folder is there or could be made, as far as that is the same for every user.

    Raises:
        ConfigurationError: something in its path is no folder.
    """
    there = next(path for path in (state_dir, *state_dir.parents) if os.path.lexists(path))
    if not os.path.isdir(there):
        raise ConfigurationError(f"state_dir {str(state_dir)!r}: Not a directory: {there}")


def _secure(path: Path) -> None:
    """Close the folder to others if it is ours alone; refuse it if others could swap its files.

    A folder that also holds other people's files (somebody wrote `--state-dir /srv`) is left as
    it is: what is written there is private by its own mode.
    """
    status = path.stat()
    is_own = status.st_uid == os.geteuid()
    if not is_own and status.st_uid != 0:
        raise ConfigurationError(f"state_dir {str(path)!r} belongs to another user (uid {status.st_uid})")
    is_ours_alone = is_own and (_is_empty(path) or (path / "master.lock").exists())
    # Sticky: a place that all are meant to share, /tmp itself.
    if status.st_mode & stat.S_IWOTH and (not is_ours_alone or status.st_mode & stat.S_ISVTX):
        raise ConfigurationError(f"state_dir {str(path)!r} is writable by everybody; choose a private folder")
    if is_ours_alone and stat.S_IMODE(status.st_mode) & 0o077:
        path.chmod(0o700)


def _is_empty(path: Path) -> bool:
    with os.scandir(path) as entries:
        return next(entries, None) is None


def lock_file(path: Path, *, wait: float) -> int | None:
    """Return a descriptor that holds the lock, or None if another still held it after `wait` seconds."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    deadline = time.monotonic() + wait
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                os.close(descriptor)
                return None
            time.sleep(LOCK_PAUSE)
            continue
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        return descriptor


def holder(path: Path) -> str:
    """Return who says that it holds the lock, for people to read."""
    try:
        return f"pid {int(path.read_text())}"
    except (OSError, ValueError):
        return "its pid is not known"
