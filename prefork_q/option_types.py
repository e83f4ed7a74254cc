"""What the value of an option may be: each type checks and says what to write instead."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Final, NamedTuple
from urllib.parse import urlsplit

from pydantic import BeforeValidator

from prefork_q.addresses import SENTINEL_SCHEMES, is_sentinel_url, parse_http, parse_sentinels
from prefork_q.errors import ConfigurationError
from prefork_q.events import mask_url
from prefork_q.keys import NAME, NAME_RULE
from prefork_q.units import parse_duration, parse_size

REDIS_SCHEMES: Final = ("redis", "rediss", "unix", *SENTINEL_SCHEMES)


class QueueSpec(NamedTuple):
    """A queue to work on. Either no queue has a weight (strict order), or all have one."""

    name: str
    weight: int | None = None


def _whole(value: object) -> object:
    # Pydantic would take `true` for 1 and 4.0 for 4.
    if isinstance(value, (bool, float)):
        raise ValueError("must be a whole number")
    return value


def _name(value: object) -> object:
    if isinstance(value, str) and not NAME.fullmatch(value):
        raise ValueError(NAME_RULE)
    return value


def checked_redis_url(url: str) -> str:
    """Return `url` if it names a Redis server.

    Raises:
        ConfigurationError: it does not; the text holds no password.
    """
    try:
        _redis_url(url)
    except ValueError as error:
        raise ConfigurationError(f"redis_url: {error}") from None
    return url


def _redis_url(value: object) -> object:
    if not isinstance(value, str):
        raise ValueError("must be text")
    scheme = value.partition("://")[0].lower()
    if "://" not in value or scheme not in REDIS_SCHEMES:
        raise ValueError(
            "a Redis URL is redis://[[user]:password@]host[:port][/db], rediss://..., unix:///path[?db=n] or "
            "redis+sentinel://host[:port],.../service[/db]"
        )
    if is_sentinel_url(value):
        parse_sentinels(value)
        return value
    try:
        parts = urlsplit(value)
        parts.port  # noqa: B018 (looking at it checks it)
    except ValueError as error:
        raise ValueError(mask_url(str(error))) from None
    if scheme == "unix" and not parts.path:
        raise ValueError("unix:// needs the path of a socket, as in unix:///run/redis/redis.sock")
    if scheme != "unix" and not (parts.path.strip("/").isdecimal() or not parts.path.strip("/")):
        raise ValueError("what follows the host is the number of a database, as in redis://host:6379/0")
    return value


def _queues(value: object) -> object:
    words = value.split(",") if isinstance(value, str) else value
    if not isinstance(words, (list, tuple)) or not all(isinstance(word, str) for word in words):
        raise ValueError("write queues as high,low (strict order) or high=3,low=1 (weights)")
    specs = [_queue(word.strip()) for word in words]
    if not specs or len({spec.name for spec in specs}) < len(specs):
        raise ValueError("name at least one queue, and each once")
    if len(specs) > 100:
        raise ValueError("at most 100 queues")
    if all(spec.weight is None for spec in specs):
        return tuple(specs)
    return tuple(QueueSpec(spec.name, 1 if spec.weight is None else spec.weight) for spec in specs)


def _queue(word: str) -> QueueSpec:
    name, equals, weight = word.partition("=")
    if not NAME.fullmatch(name):
        raise ValueError(f"{name!r}: {NAME_RULE}")
    if not equals:
        return QueueSpec(name)
    if not (weight.isascii() and weight.isdigit() and 1 <= int(weight) <= 1000):
        raise ValueError(f"the weight of queue {name} is a whole number from 1 to 1000")
    return QueueSpec(name, int(weight))


def _http(value: object) -> object:
    texts = value.split(",") if isinstance(value, str) else value
    if not isinstance(texts, (list, tuple)) or not all(isinstance(text, str) for text in texts):
        raise ValueError("write one address or a list of them")
    texts = [text.strip() for text in texts]
    for text in texts:
        parse_http(text)
    return tuple(texts)


def require_private(addresses: tuple[str, ...]) -> None:
    """Check that only this machine can reach these addresses.

    Raises:
        ValueError: other machines can reach one.
    """
    for text in addresses:
        if not parse_http(text).is_private:
            raise ValueError(
                f"{text} can be reached from other machines, and the API has no tokens configured: give a "
                "token_file, or listen on a loopback address or a Unix socket, behind a proxy that asks"
            )


def _paths(value: object) -> object:
    words = value.split(",") if isinstance(value, str) else value
    if not isinstance(words, (list, tuple)):
        raise ValueError("write one path or a list of them")
    return tuple(_path(word.strip() if isinstance(word, str) else word) for word in words)


def _path(value: object) -> object:
    if isinstance(value, (str, Path)) and str(value):
        try:
            return Path(os.path.abspath(Path(value).expanduser()))
        except RuntimeError as error:
            raise ValueError(f"{value}: whose folder that is, is not known") from error
    raise ValueError("must be a path")


Whole = Annotated[int, BeforeValidator(_whole)]
Duration = Annotated[float, BeforeValidator(parse_duration)]
Size = Annotated[int, BeforeValidator(parse_size)]
Name = Annotated[str, BeforeValidator(_name)]
AbsolutePath = Annotated[Path, BeforeValidator(_path)]
Paths = Annotated[tuple[Path, ...], BeforeValidator(_paths)]
RedisUrl = Annotated[str, BeforeValidator(_redis_url)]
Queues = Annotated[tuple[QueueSpec, ...], BeforeValidator(_queues)]
Addresses = Annotated[tuple[str, ...], BeforeValidator(_http)]
