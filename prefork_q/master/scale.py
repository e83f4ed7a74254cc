"""How many workers somebody wants. Pure."""

from __future__ import annotations

import re
from typing import Final

from prefork_q.errors import Invalid

_ASKED: Final = re.compile(r"([+-]?)([0-9]{1,6})")


def scaled(asked: str, now: int, most: int) -> int:
    """Return the number of workers for N, +N or -N, where there are `now`.

    Raises:
        Invalid: it is no such text, or leads below 1 or above `most`, for which the scoreboard was made.
    """
    match = _ASKED.fullmatch(asked.strip())
    if match is None:
        raise Invalid(f"{asked!r} is no number of workers: write N, +N or -N")
    step = int(match[2])
    wanted = {"": step, "+": now + step, "-": now - step}[match[1]]
    if not 1 <= wanted <= most:
        raise Invalid(f"a node has 1 to {most} workers, not {wanted}; it was started with room for {most}")
    return wanted
