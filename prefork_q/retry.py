"""The retry policy: how long a failed task waits before its next attempt."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from types import UnionType

from prefork_q.errors import ConfigurationError

MAX_DELAY = 365 * 86_400.0
"""Seconds. The longest delay of any kind: a year."""


@dataclass(frozen=True, slots=True)
class Retry:
    """Exponential backoff with proportional jitter.

    The delay before attempt n+1 is `min(cap, base * factor**(n-1))` seconds, plus up to
    `jitter` of itself at random (1.0 doubles it at most). It never overflows: the power is
    clamped before it is taken. An exception of a type in `never` is not retried.

    Raises:
        ConfigurationError: a number is negative, not finite, or out of its range; `never` is no tuple of
            exceptions.
    """

    base: float = 1.0
    factor: float = 2.0
    cap: float = 300.0
    jitter: float = 0.2
    never: tuple[type[BaseException], ...] = ()

    def __post_init__(self) -> None:
        for name, low, high in (
            ("base", 0.0, MAX_DELAY),
            ("factor", 1.0, 1e6),
            ("cap", 0.0, MAX_DELAY),
            ("jitter", 0.0, 10.0),
        ):
            value = getattr(self, name)
            if not (isinstance(value, (int, float)) and low <= value <= high):
                raise ConfigurationError(f"Retry({name}={value!r}): must be from {low:g} to {high:g}")
        never = self.never
        if not isinstance(never, tuple) or not all(map(_is_exception, never)):
            raise ConfigurationError(
                f"Retry(never={never!r}): must be a tuple of exceptions, as in never=(ValueError,)"
            )

    def delay(self, attempt: int, rng: random.Random) -> float:
        """Return the seconds to wait after `attempt` (from 1) has failed."""
        return self._jittered(self._backoff(attempt), rng)

    def at_least(self, seconds: float, rng: random.Random) -> float:
        """Return a delay never shorter than the `seconds` that a handler asked for."""
        return self._jittered(min(max(seconds, 0.0), MAX_DELAY), rng)

    def _backoff(self, attempt: int) -> float:
        if self.base <= 0 or self.cap <= 0:
            return 0.0
        # In logarithms a huge attempt number is merely a large product, never an overflow.
        exponent = math.log(self.base) + (max(attempt, 1) - 1) * math.log(self.factor)
        return self.cap if exponent >= math.log(self.cap) else math.exp(exponent)

    def _jittered(self, seconds: float, rng: random.Random) -> float:
        return min(seconds * (1 + self.jitter * rng.random()), MAX_DELAY)


def _is_exception(value: object) -> bool:
    """Whether it is what isinstance takes for exceptions: a class, a union, or a tuple of such."""
    if isinstance(value, (tuple, UnionType)):
        return all(map(_is_exception, value if isinstance(value, tuple) else value.__args__))
    return isinstance(value, type) and issubclass(value, BaseException)
