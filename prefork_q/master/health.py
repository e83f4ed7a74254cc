"""Whether a worker is well: busy is not deaf, and stopped is neither. Pure: no clock, no calls.

- *deaf*: the fetch loop does not turn, and no handler runs that could be holding the interpreter's lock.
  Nothing will ever get it to work again, so it is replaced.
- *busy*: the loop does not turn because of what runs. Time limits are for that.
- *stopped*: somebody stopped the process (state T). It is told, and left to whoever did that.
- *unserved*: Redis carries out none of its calls: it refuses them, if it can be reached at all.
"""

from __future__ import annotations

from typing import Final, Literal

Condition = Literal["well", "busy", "deaf", "stopped", "unserved"]

SUSPICIOUS: Final = 5.0
"""Seconds without a turn, or without a call that was carried out, after which it is told. The loop sleeps a
second at most."""


def condition(
    *,
    last_beat: float,
    since: float,
    now: float,
    runs: bool,
    is_stopped: bool,
    unserved_since: float = 0.0,
    limit: float = SUSPICIOUS,
) -> Condition:
    """Return how a worker is that is ready.

    Args:
        last_beat: the last turn of its fetch loop, boot time.
        since: from when on it is judged: it was born then, or the node stood still until then.
        now: boot time.
        runs: whether its slot shows something in a handler.
        is_stopped: what the kernel says.
        unserved_since: since when Redis has carried out none of its calls, boot time; 0 if it does.
        limit: seconds without a turn that are nothing yet.
    """
    if is_stopped:
        return "stopped"
    if now - max(last_beat, since) <= limit:
        is_unserved = unserved_since and now - max(unserved_since, since) > limit
        return "unserved" if is_unserved else "well"
    return "busy" if runs else "deaf"


def told(name: str, how: Condition, silent: float) -> str | None:
    """Return the reason why the node is degraded by this worker, None if it is not.

    `silent`: seconds without a turn, or without a call that was carried out.
    """
    match how:
        case "deaf":
            return f"{name}: deaf, its fetch loop has not turned for {silent:.0f} s"
        case "stopped":
            return f"{name}: stopped (state T), continue it with SIGCONT"
        case "unserved":
            return f"{name}: Redis refuses its calls for {silent:.0f} s; the log says why (redis_lost)"
        case _:
            return None
