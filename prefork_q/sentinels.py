"""Connections to a primary that sentinels know: each asks them, when it connects, where that is by now.

Pools and loops of their own get ordinary connections that find their address by themselves. Whoever is
found is asked whether it is a primary at all: a sentinel names the new one before it has become that, and
one that was cut off still names the old one. Then the next attempt begins with another sentinel.
"""

from __future__ import annotations

from typing import Any

import redis
import redis.connection
from redis.backoff import NoBackoff
from redis.exceptions import ReadOnlyError, RedisError
from redis.retry import Retry as LibraryRetry

from prefork_q.addresses import SentinelAddress, parse_sentinels

ASK_TIMEOUT = 1.0
"""Seconds at most for connecting to a sentinel, and for its answer."""

# Untyped in the package.
_parse_url: Any = redis.connection.parse_url

Place = tuple[str, int]


def found_by_sentinels(url: str, timeout: float) -> dict[str, Any]:
    """Return the options of the library's connection pool for a URL with sentinels.

    Args:
        timeout: seconds that a caller has; a sentinel gets no more than that.

    Raises:
        ValueError: the URL is wrong.
    """
    address = parse_sentinels(url)
    options = _parse_url(f"redis://?{address.query}")
    to_sentinels = {
        "username": options.pop("sentinel_username", None),
        "password": options.pop("sentinel_password", None),
    }
    secrets = {name: value for name, value in options.items() if name.startswith("ssl_")}
    finder = Finder(address, to_sentinels | secrets, timeout=min(timeout, ASK_TIMEOUT))
    return {
        "username": address.username,
        "password": address.password,
        **options,
        "db": address.database,
        "connection_class": FoundSecureConnection if address.is_secure else FoundConnection,
        "finder": finder,
        "redis_connect_func": finder.greet,
    }


class Finder:
    """Asks the sentinels. Shared by the connections of a pool, from any thread."""

    def __init__(self, address: SentinelAddress, options: dict[str, Any], *, timeout: float) -> None:
        self._address = address
        self._kind = redis.SSLConnection if address.is_secure else redis.Connection
        self._options = {
            "socket_timeout": timeout,
            "socket_connect_timeout": timeout,
            "retry": LibraryRetry(NoBackoff(), 0),
            "protocol": 2,
            "driver_info": None,
            **options,
        }
        self._order = address.sentinels
        """Replaced as a whole, so that no thread sees half a change."""

    def find(self) -> Place:
        """Return where the primary is, by the first sentinel that knows it.

        Raises:
            redis.ConnectionError: none does; the text has each one's reason.
        """
        reasons = []
        for place in self._order:
            name = f"{place[0]}:{place[1]}"
            try:
                found = self._ask(place)
            except (RedisError, OSError) as error:
                reasons.append(f"{name}: {error}")
                continue
            if found is not None:
                self._begin_with(place)
                return found
            reasons.append(f"{name} knows no primary of that name")
        raise redis.ConnectionError(
            f"no sentinel tells where {self._address.service} is: " + "; ".join(reasons)
        )

    def doubt(self) -> None:
        """Begin with another sentinel the next time: what this one said was of no use."""
        first, *others = self._order
        self._order = (*others, first)

    def greet(self, connection: Any) -> None:
        """Log in, and see that it is a primary. Called by the library as a part of connecting.

        Raises:
            redis.ReadOnlyError: it is none, or none any more.
        """
        connection.on_connect()
        connection.send_command("INFO", "replication", check_health=False)
        if b"role:master" not in connection.read_response(disable_decoding=True):
            self.doubt()
            raise ReadOnlyError(f"{connection.host}:{connection.port} is a replica")

    def _ask(self, place: Place) -> Place | None:
        host, port = place
        connection: Any = self._kind(host=host, port=port, **self._options)
        try:
            connection.connect()
            connection.send_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._address.service)
            answer = connection.read_response(disable_decoding=True)
        finally:
            connection.disconnect()
        return None if answer is None else (answer[0].decode(), int(answer[1]))

    def _begin_with(self, place: Place) -> None:
        self._order = (place, *(other for other in self._order if other != place))


class _Found:
    """What makes a connection of the library look for its address each time that it connects."""

    host: str
    port: int

    def __init__(self, *, finder: Finder, **options: Any) -> None:
        super().__init__(**options)
        self._finder = finder

    def _connect(self) -> Any:
        self.host, self.port = self._finder.find()
        try:
            return super()._connect()  # type: ignore[misc]
        except OSError:
            self._finder.doubt()
            raise


class FoundConnection(_Found, redis.Connection):
    """A connection to the primary of the moment."""


class FoundSecureConnection(_Found, redis.SSLConnection):
    """The same over TLS; the sentinels are asked over TLS too."""
