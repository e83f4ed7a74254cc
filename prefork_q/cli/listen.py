"""Opens the API's sockets: before any process is made, so that an address in use is an error at the start.

Without tokens a TCP address must be a loopback one, whatever name it was given by.
"""

from __future__ import annotations

import ipaddress
import itertools
import os
import socket
import stat
from collections.abc import Iterator, MutableMapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from prefork_q.addresses import HttpAddress
from prefork_q.errors import ConfigurationError
from prefork_q.folder import lock_file
from prefork_q.tokens import read_tokens

BACKLOG = 1024
LOCK_WAIT = 0.5
"""Seconds that a service which is just ending gets to leave its Unix socket."""
UNIX_UMASK = 0o117
"""A Unix socket is for its owner and group: that of a proxy before it."""
FIRST_PASSED = 3
"""The first descriptor that systemd passes (sd_listen_fds(3))."""


@contextmanager
def listening(
    addresses: Sequence[HttpAddress], environ: MutableMapping[str, str], token_files: Sequence[Path] = ()
) -> Iterator[list[socket.socket]]:
    """Listen on these addresses; at the end close all, and remove the files of Unix sockets.

    `environ` is where systemd has put what it passes; it is taken out. With `token_files` the API asks for
    tokens, so other machines may reach it.

    Raises:
        ConfigurationError: an address is in use, not allowed, or cannot be had; a file of tokens is wrong.
    """
    is_guarded = bool(token_files and read_tokens(token_files))
    passed = take_passed(environ)
    with ExitStack() as stack:
        for one in itertools.chain.from_iterable(passed.values()):
            stack.callback(one.close)
        sockets: list[socket.socket] = []
        for address in addresses:
            match address.kind:
                case "tcp":
                    opened = open_tcp(address.host, address.port, is_guarded=is_guarded)
                case "unix":
                    opened = [open_unix(address.path, stack)]
                case "fd":
                    opened = choose_passed(address.name, passed, is_guarded=is_guarded)
            for one in opened:
                stack.callback(one.close)
                one.setblocking(False)
            sockets += opened
        yield sockets


def name_of(one: socket.socket) -> str:
    """Return where a socket listens, as `--http` takes it."""
    address = one.getsockname()
    if one.family == socket.AF_UNIX:
        return f"unix:{address}"
    host, port = address[:2]
    return f"[{host}]:{port}" if one.family == socket.AF_INET6 else f"{host}:{port}"


def open_tcp(host: str, port: int, *, is_guarded: bool = False) -> list[socket.socket]:
    """Return a socket for each address of a host; where any port will do, all have the same one."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise refusal(f"{host}:{port}", error) from error
    targets = list(dict.fromkeys((family, str(address[0])) for family, _, _, _, address in found))
    for _, ip in targets:
        if not is_guarded:
            require_loopback(ip, f"{host}:{port}")
    opened: list[socket.socket] = []
    for family, ip in targets:
        try:
            one = bind_tcp(family, ip, port)
        except OSError as error:
            # A name may have an address of a family that this machine has turned off.
            if family == socket.AF_INET6 and len(targets) > 1:
                continue
            for other in opened:
                other.close()
            raise refusal(f"{host}:{port}", error) from error
        port = one.getsockname()[1]
        opened.append(one)
    return opened


def bind_tcp(family: int, ip: str, port: int) -> socket.socket:
    one = socket.socket(family, socket.SOCK_STREAM)
    try:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        one.bind((ip, port))
        one.listen(BACKLOG)
    except OSError:
        one.close()
        raise
    return one


def open_unix(path: str, stack: ExitStack) -> socket.socket:
    """Return a socket at `path`, in place of one that a dead service left; `stack` removes it."""
    path = os.path.abspath(path)
    try:
        lock = lock_file(Path(f"{path}.lock"), wait=LOCK_WAIT)
        if lock is None:
            raise ConfigurationError(f"http unix:{path} is in use by another service")
        stack.callback(os.close, lock)
        if os.path.lexists(path):
            if not stat.S_ISSOCK(os.lstat(path).st_mode):
                raise ConfigurationError(f"http unix:{path}: the file exists and is no socket")
            os.unlink(path)
        one = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        umask = os.umask(UNIX_UMASK)
        try:
            one.bind(path)
        finally:
            os.umask(umask)
        stack.callback(_remove, path)
        one.listen(BACKLOG)
    except OSError as error:
        raise refusal(f"unix:{path}", error) from error
    return one


def take_passed(environ: MutableMapping[str, str]) -> dict[str, list[socket.socket]]:
    """Return the sockets that systemd has passed to this process, by name (sd_listen_fds(3)).

    All that one socket unit listens on have the same.
    """
    number, names = environ.pop("LISTEN_FDS", ""), environ.pop("LISTEN_FDNAMES", "")
    if environ.pop("LISTEN_PID", "") != str(os.getpid()) or not number.isdecimal():
        return {}
    fds = range(FIRST_PASSED, FIRST_PASSED + int(number))
    passed: dict[str, list[socket.socket]] = {}
    for fd, name in zip(fds, [*names.split(":"), *(["unknown"] * len(fds))], strict=False):
        os.set_inheritable(fd, False)
        if stat.S_ISSOCK(os.fstat(fd).st_mode):
            passed.setdefault(name, []).append(socket.socket(fileno=fd))
    return passed


def choose_passed(
    name: str, passed: dict[str, list[socket.socket]], *, is_guarded: bool
) -> list[socket.socket]:
    if name not in passed:
        raise ConfigurationError(
            f"http fd:{name}: no socket of that name was passed; there are: {', '.join(passed) or 'none'}"
        )
    for one in passed[name]:
        if not one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            raise ConfigurationError(f"http fd:{name}: that socket does not listen")
        if one.family != socket.AF_UNIX and not is_guarded:
            require_loopback(str(one.getsockname()[0]), f"fd:{name}")
    return passed[name]


def require_loopback(ip: str, where: str) -> None:
    if not ipaddress.ip_address(ip.partition("%")[0]).is_loopback:
        raise ConfigurationError(
            f"http {where}: {ip} can be reached from other machines, and the API has no tokens configured"
        )


def refusal(where: str, error: OSError) -> ConfigurationError:
    return ConfigurationError(f"http {where}: {error.strerror or error}")


def _remove(path: str) -> None:
    if os.path.lexists(path):
        os.unlink(path)
