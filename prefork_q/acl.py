"""The least that a user of Redis needs for one namespace, as a rule for its access control list.

The commands are read out of the scripts, since a script runs with its caller's rights.
"""

from __future__ import annotations

from prefork_q.keys import CHANNEL, Keys
from prefork_q.scripts import scripts

OUTSIDE_OF_SCRIPTS = (
    "eval", "evalsha", "blpop", "hkeys", "lpos", "ping", "info", "select", "subscribe", "unsubscribe",
    "multi", "exec",
)
"""`info` tells a replica and a server that loads from one that can be written to."""


def commands() -> list[str]:
    """Return the names of all commands that prefork-q sends, or lets its scripts call."""
    called = {command.lower() for one in scripts().values() for command in one.commands}
    return sorted(called.union(OUTSIDE_OF_SCRIPTS))


def rule(keys: Keys) -> str:
    """Return what `ACL SETUSER <name> on ><password>` still needs."""
    channels = keys.root + CHANNEL.replace("<id>", "*")
    allowed = " ".join(f"+{name}" for name in commands())
    return f"resetkeys ~{keys.root}* resetchannels &{channels} -@all {allowed}"
