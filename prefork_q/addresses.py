"""Addresses as they are written in options.

- Where the API listens: `HOST:PORT`, `unix:PATH` or `fd:NAME` (a socket that systemd passes).
- Where Redis is, if sentinels know it: `redis+sentinel://HOST:PORT,HOST:PORT/SERVICE/DB`.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import Literal
from urllib.parse import unquote, urlsplit

TCP = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([^\s:/\[\]]*)):(\d{1,5})", re.ASCII)
FD_NAME = re.compile(r"[!-9;-~]{1,255}", re.ASCII)
"""Names of descriptors: visible ASCII without a colon (sd_listen_fds(3))."""
SENTINEL_SCHEMES = ("redis+sentinel", "rediss+sentinel")
SENTINEL_PORT = 26_379
SENTINEL = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([^\s:/@,\[\]]+))(?::(\d{1,5}))?", re.ASCII)
SENTINEL_PATH = re.compile(r"/([^/]+)(?:/(\d*))?")
UNIX_PATH_LIMIT = 107
"""Bytes in the path of a Unix socket, without the final zero (unix(7))."""


@dataclass(frozen=True, slots=True)
class HttpAddress:
    """One parsed address. `host` and `port` for tcp, `path` for unix, `name` for fd."""

    kind: Literal["tcp", "unix", "fd"]
    host: str = ""
    port: int = 0
    path: str = ""
    name: str = ""

    @property
    def is_private(self) -> bool:
        """Whether only this machine can reach it, as far as the text tells (an fd is asked when opened)."""
        return self.kind != "tcp" or is_loopback(self.host)


def parse_http(text: str) -> HttpAddress:
    """Return the address that `text` names. An IPv6 host stands in brackets; port 0 is any free one.

    Raises:
        ValueError: it is no address; the text says what is accepted.
    """
    kind, _, rest = text.partition(":")
    if kind == "unix":
        path = rest.removeprefix("//") if rest.startswith("///") else rest
        if not path or "\0" in path:
            raise ValueError("unix: needs a path, as in unix:/run/prefork-q/api.sock")
        require_socket_path(path)
        return HttpAddress("unix", path=path)
    if kind == "fd":
        if not FD_NAME.fullmatch(rest):
            raise ValueError("fd: needs the name of a descriptor, as in fd:api")
        return HttpAddress("fd", name=rest)
    match = TCP.fullmatch(text)
    if match is None or int(match[3]) > 65_535 or not (match[1] or match[2]):
        raise ValueError(f"{text!r} is no address: write HOST:PORT, [IPV6]:PORT, unix:PATH or fd:NAME")
    if match[1]:
        ipaddress.IPv6Address(match[1])
    return HttpAddress("tcp", host=match[1] or match[2], port=int(match[3]))


def is_loopback(host: str) -> bool:
    """Whether `host`, a name or an IP address, is this machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def require_socket_path(path: str) -> None:
    """Check that a Unix socket can have this path.

    Raises:
        ValueError: it is too long for the kernel.
    """
    size = len(path.encode("utf-8", "surrogateescape"))
    if size > UNIX_PATH_LIMIT:
        raise ValueError(
            f"the path of a Unix socket has at most {UNIX_PATH_LIMIT} bytes, this one has {size}: {path}"
        )


@dataclass(frozen=True, slots=True)
class SentinelAddress:
    """A primary by the name under which sentinels know it. `query` holds more options, as in other URLs."""

    sentinels: tuple[tuple[str, int], ...]
    service: str
    database: int
    is_secure: bool
    username: str | None
    password: str | None
    query: str


def is_sentinel_url(url: str) -> bool:
    """Whether `url` names sentinels that have to be asked for the server."""
    return url.partition("://")[0].lower() in SENTINEL_SCHEMES


def parse_sentinels(url: str) -> SentinelAddress:
    """Return what a URL of a scheme in SENTINEL_SCHEMES says. User and password are those of the primary.

    Raises:
        ValueError: it is wrong; the text says what is accepted and holds nothing of the URL.
    """
    parts = urlsplit(url)
    login, _, hosts = parts.netloc.rpartition("@")
    found = [SENTINEL.fullmatch(host) for host in hosts.split(",")]
    path = SENTINEL_PATH.fullmatch(parts.path)
    if path is None or not all(found):
        raise ValueError(
            "with sentinels a Redis URL is redis+sentinel://[[user]:password@]host[:port][,host[:port]...]"
            "/service[/db], where service is the name that they have for the primary"
        )
    sentinels = tuple((match[1] or match[2], int(match[3] or SENTINEL_PORT)) for match in found if match)
    if any(port > 65_535 for _, port in sentinels):
        raise ValueError("a sentinel's port is at most 65535")
    username, _, password = login.partition(":")
    return SentinelAddress(
        sentinels=sentinels,
        service=unquote(path[1]),
        database=int(path[2] or 0),
        is_secure=parts.scheme.lower().startswith("rediss"),
        username=unquote(username) or None,
        password=unquote(password) or None,
        query=parts.query,
    )
