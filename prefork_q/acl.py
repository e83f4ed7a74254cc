"""The least that a user of Redis needs for one namespace, as a rule for its access control list.

The commands are read out of the scripts, since a script runs with its caller's rights.
"""

from __future__ import annotations

import re

from prefork_q.keys import CHANNEL, Keys
from prefork_q.scripts import scripts

OUTSIDE_OF_SCRIPTS = (
    "eval", "evalsha", "blpop", "hkeys", "lpos", "ping", "info", "select", "subscribe", "unsubscribe",
    "multi", "exec",
)
"""`info` tells a replica and a server that loads from one that can be written to."""

WORD = re.compile(rb'"([A-Z]{2,})"')
OPTIONS = {"LIMIT", "WITHSCORES", "PX", "COUNT"}
"""Words in capitals in the scripts that are no commands."""


def commands() -> list[str]:
    """Return the names of all commands that prefork-q sends, or lets its scripts call."""
    words = {word.decode() for one in scripts().values() for word in WORD.findall(one.source)}
    return sorted({word.lower() for word in words - OPTIONS}.union(OUTSIDE_OF_SCRIPTS))


def rule(keys: Keys) -> str:
    """Return what `ACL SETUSER <name> on ><password>` still needs."""
    channels = keys.root + CHANNEL.replace("<id>", "*")
    allowed = " ".join(f"+{name}" for name in commands())
    return f"resetkeys ~{keys.root}* resetchannels &{channels} -@all {allowed}"
