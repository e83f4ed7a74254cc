"""Bearer tokens: who may call the API, and for what. They stand in files, one a line:

    # name   scopes              the token, or its SHA-256 in hexadecimal digits
    shop     submit,read         3PnQw0cY8mJx7bVd2kRf5tZh
    ops      submit,read,admin   sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08

The name is for the log. A token has 16 to 500 characters of `A-Za-z0-9-._~+/` and may end in `=`; those in
plain text should be readable by the service only. A changed file is read again within a second; one that
cannot be read, or is wrong, changes nothing and is told in the log.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, get_args

from prefork_q.errors import ConfigurationError
from prefork_q.keys import NAME, NAME_RULE

Scope = Literal["submit", "read", "admin"]
SCOPES: Final[tuple[Scope, ...]] = get_args(Scope)

SECRET: Final = re.compile(r"[A-Za-z0-9._~+/-]{16,500}={0,2}", re.ASCII)
"""A token as the header may carry it (RFC 6750, 2.1), long enough not to be guessed."""
DIGEST: Final = re.compile(r"sha256:([0-9A-Fa-f]{64})", re.ASCII)
FILE_LIMIT: Final = 1 << 20
LOOK: Final = 1.0
"""Seconds between two looks at whether a file has changed."""


@dataclass(frozen=True, slots=True)
class Token:
    """One token. Only the SHA-256 of the secret is kept."""

    name: str
    scopes: frozenset[str]
    digest: bytes


class Tokens:
    """The tokens of some files, as the files are now. Used from any thread.

    `on_change` is called after the files have changed: with None, or with what is wrong with them.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        on_change: Callable[[ConfigurationError | None], None] = lambda wrong: None,
    ) -> None:
        """Read the files.

        Raises:
            ConfigurationError: one cannot be read or is wrong, or there is no token in them.
        """
        self._paths = tuple(paths)
        self._on_change = on_change
        self._seen = _signature(self._paths)
        self._tokens = read_tokens(self._paths)
        self._looking = threading.Lock()
        self._next_look = time.monotonic() + LOOK

    def find(self, secret: str) -> Token | None:
        """Return the token of this secret. How long it takes says nothing about any token."""
        self._look()
        digest = hashlib.sha256(secret.encode("utf-8", "surrogateescape")).digest()
        found = None
        for token in self._tokens:
            if hmac.compare_digest(token.digest, digest):
                found = token
        return found

    def _look(self) -> None:
        if time.monotonic() < self._next_look or not self._looking.acquire(blocking=False):
            return
        try:
            self._next_look = time.monotonic() + LOOK
            # Looked at before they are read: what is written meanwhile is seen the next time.
            seen = _signature(self._paths)
            if seen == self._seen:
                return
            self._seen = seen
            try:
                self._tokens = read_tokens(self._paths)
            except ConfigurationError as error:
                self._on_change(error)
            else:
                self._on_change(None)
        finally:
            self._looking.release()


def read_tokens(paths: Sequence[Path]) -> tuple[Token, ...]:
    """Return the tokens in these files.

    Raises:
        ConfigurationError: a file cannot be read or is wrong, or there is no token; no secret is in the text.
    """
    tokens = [token for path in paths for token in _read(path)]
    if not tokens:
        raise ConfigurationError(f"token_file {', '.join(map(str, paths))}: there is no token")
    for what, values in (("name", [t.name for t in tokens]), ("token", [t.digest for t in tokens])):
        if len(set(values)) < len(values):
            twice = next(token.name for n, token in enumerate(tokens) if values[n] in values[:n])
            raise ConfigurationError(f"token_file: the {what} of {twice} is there twice")
    return tuple(tokens)


def _read(path: Path) -> Iterator[Token]:
    try:
        with path.open("rb") as file:
            data = file.read(FILE_LIMIT + 1)
        text = data.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigurationError(f"token_file {path}: {reason}") from None
    if len(data) > FILE_LIMIT:
        raise ConfigurationError(f"token_file {path}: more than {FILE_LIMIT:,} bytes")
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        try:
            yield _parse(words)
        except ValueError as error:
            raise ConfigurationError(f"token_file {path}, line {number}: {error}") from None


def _parse(words: list[str]) -> Token:
    if len(words) != 3:
        raise ValueError("write a name, scopes such as submit,read, and the token, with spaces between them")
    name, scopes, secret = words
    if not NAME.fullmatch(name):
        raise ValueError(f"the name: {NAME_RULE}")
    named = scopes.split(",")
    if not set(named) <= set(SCOPES):
        raise ValueError(f"the scopes of {name} are some of {', '.join(SCOPES)}, with commas and no spaces")
    digest = DIGEST.fullmatch(secret)
    if digest:
        return Token(name, frozenset(named), bytes.fromhex(digest[1]))
    if not SECRET.fullmatch(secret):
        raise ValueError(
            f"the token of {name} is 16 to 500 of the characters A-Z a-z 0-9 - . _ ~ + /, "
            "or sha256: and 64 hexadecimal digits"
        )
    return Token(name, frozenset(named), hashlib.sha256(secret.encode()).digest())


def _signature(paths: Sequence[Path]) -> tuple[object, ...]:
    return tuple(_state(path) for path in paths)


def _state(path: Path) -> tuple[int, ...] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
