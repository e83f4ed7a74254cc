"""Durations (`500ms`, `30`, `5m`, `24h`), sizes (`512k`, `256KiB`, `1MB`) and times, as people write them."""

from __future__ import annotations

import re
from datetime import UTC, datetime

DURATION = re.compile(r"(\d{1,12}(?:\.\d{1,9})?)\s*(ms|s|m|h|d|w)?", re.ASCII)
SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}

SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)\s*(?:([kmg])(i?b)?|b)?", re.ASCII | re.IGNORECASE)
POWER = {"k": 1, "m": 2, "g": 3}


def parse_duration(value: object) -> float:
    """Return `value` in seconds: a number of them, or text such as `500ms`, `30`, `1.5h`, `180d`.

    Raises:
        ValueError: it is neither; the text says what is accepted.
    """
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if not 0 <= value < float("inf"):
            raise ValueError("a duration is not negative, and finite")
        return float(value)
    match = DURATION.fullmatch(value.strip().lower()) if isinstance(value, str) else None
    if match is None:
        raise ValueError("write a duration as 500ms, 30, 30s, 5m, 24h or 180d (a bare number is in seconds)")
    return float(match[1]) * SECONDS[match[2] or "s"]


def parse_size(value: object) -> int:
    """Return `value` in bytes: a whole number of them, or text such as `512k`, `256KiB`, `1MB`.

    A bare `k`, `m`, `g` and `KiB`, `MiB`, `GiB` are powers of 1024; `kB`, `MB`, `GB` of 1000.

    Raises:
        ValueError: it is neither; the text says what is accepted.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        if value < 0:
            raise ValueError("a size is not negative")
        return value
    match = SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise ValueError("write a size as 65536, 512k, 256KiB, 1MiB or 1MB (a bare number is in bytes)")
    unit, suffix = (match[2] or "").lower(), (match[3] or "").lower()
    base = 1000 if suffix == "b" else 1024
    return int(float(match[1]) * base ** POWER.get(unit, 0))


def format_duration(seconds: float) -> str:
    """Return `seconds` in the largest unit that writes it short: `30s`, `24h`, `180d`."""
    for unit in ("d", "h", "m"):
        if seconds >= SECONDS[unit] and seconds % SECONDS[unit] == 0 and (unit != "d" or seconds > 86_400):
            return f"{seconds / SECONDS[unit]:g}{unit}"
    return f"{seconds:g}s" if seconds >= 1 or seconds == 0 else f"{seconds * 1000:g}ms"


def format_size(size: int) -> str:
    """Return `size` in bytes in the largest binary unit that divides it: `256 KiB`."""
    for unit, power in (("GiB", 3), ("MiB", 2), ("KiB", 1)):
        if size and size % 1024**power == 0:
            return f"{size // 1024**power} {unit}"
    return f"{size} B"


def timestamp(seconds: float) -> str:
    """Return seconds since the epoch as RFC 3339 in UTC, to the millisecond: 2026-11-29T15:00:00.123Z."""
    # By milliseconds as a whole number: a float of seconds may lie just below the one that it stands for.
    whole, milliseconds = divmod(round(seconds * 1000), 1000)
    return f"{datetime.fromtimestamp(whole, UTC):%Y-%m-%dT%H:%M:%S}.{milliseconds:03d}Z"
