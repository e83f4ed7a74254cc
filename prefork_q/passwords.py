"""The password of the Redis server out of a file of its own, so that no URL has to hold it."""

from __future__ import annotations

from pathlib import Path
from typing import Final
from urllib.parse import parse_qs, quote, urlsplit, urlunsplit

from prefork_q.errors import ConfigurationError

LIMIT: Final = 4096
"""Bytes: nobody's password is longer, and what is named by mistake may be."""


def read_password(path: Path) -> str:
    """Return the password in a file: its text without the line's end.

    Raises:
        ConfigurationError: it cannot be read, or holds no password.
    """
    try:
        with path.open("rb") as file:
            content = file.read(LIMIT + 1)
        text = content.decode()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigurationError(f"redis_password_file {path}: {reason}") from None
    password = text.rstrip("\r\n")
    if not password or len(content) > LIMIT or "\n" in password:
        raise ConfigurationError(f"redis_password_file {path}: one line with the password is expected")
    return password


def with_password(url: str, password: str) -> str:
    """Return `url` with the password in it; its user stays.

    Raises:
        ConfigurationError: it has one already.
    """
    parts = urlsplit(url)
    if ":" in parts.netloc.rpartition("@")[0] or "password" in parse_qs(parts.query, keep_blank_values=True):
        raise ConfigurationError(
            "the Redis URL has a password, and redis_password_file too: give one of them"
        )
    user, _, host = parts.netloc.rpartition("@")
    return urlunsplit(parts._replace(netloc=f"{user}:{quote(password, safe='')}@{host}"))
