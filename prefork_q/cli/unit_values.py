"""What may stand in a unit file: a wrong word there shows only when systemd reads it, or not even then."""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

import click

from prefork_q.addresses import parse_http
from prefork_q.option_types import require_private

HIDDEN: Final = ("/home", "/root", "/run/user")
"""What `ProtectHome=yes` hides (systemd.exec(5))."""


def matching(pattern: str, wanted: str) -> Callable[[click.Context, click.Parameter, str | None], str | None]:
    """Return a callback of click's that refuses what does not match, and says what is wanted."""

    def check(ctx: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
        if value is not None and not re.fullmatch(pattern, value, re.ASCII):
            raise click.BadParameter(f"{value!r}: {wanted}")
        return value

    return check


user = matching(r"[A-Za-z_][A-Za-z0-9_-]{0,30}", "write a user's name: letters, digits, - and _")
# systemd.resource-control(5)
memory_max = matching(
    r"[1-9]\d{0,14}[KMGT]?|100%|[1-9]?\d(\.\d{1,2})?%|infinity", "write a size as 8G, 512M or 80%"
)
cpu_quota = matching(r"[1-9]\d{0,6}(\.\d{1,2})?%", "write a percentage: 200% are two cores")


def path(ctx: click.Context, parameter: click.Parameter, value: str | Path | None) -> str | None:
    """Return an absolute path; one with spaces or quotes would be several words in a unit. Of click's."""
    if value is None:
        return None
    found = os.path.abspath(value)
    if re.search(r"[\s\"'\\$]", found):
        raise click.BadParameter(f"{found!r}: a path without spaces, quotes, $ and backslashes is needed")
    return found


def require_listen(text: str, *, is_guarded: bool) -> None:
    """Check where a socket unit listens; other machines may reach it only if the API asks for tokens.

    Raises:
        ValueError: it is no such address, or not allowed.
    """
    if text.startswith("/") and not re.search(r"\s", text):
        parse_http(f"unix:{text}")
        return
    try:
        address = parse_http(text)
        ipaddress.ip_address(address.host)
    except ValueError:
        address = None
    if address is None or address.port == 0:
        raise ValueError(f"{text!r}: write IP:PORT, [IPV6]:PORT or the absolute path of a Unix socket")
    if not is_guarded:
        require_private((text,))


def hidden(program: str) -> str | None:
    """Return what of a program, itself or the interpreter that it names, is hidden by ProtectHome=yes."""
    for one in (program, _interpreter(program)):
        for place in (one, os.path.realpath(one)):
            if any(Path(place).is_relative_to(home) for home in HIDDEN):
                return place
    return None


def _interpreter(program: str) -> str:
    try:
        with open(program, "rb") as file:
            first = file.readline(256)
    except OSError:
        return program
    words = os.fsdecode(first[2:]).split() if first.startswith(b"#!") else []
    return words[0] if words else program
