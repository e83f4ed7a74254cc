"""Loads the Lua scripts: one verb a file, with a header that says what it takes and answers.

A script's source is sent once a server: calls go by SHA, and when the server has forgotten it
(restart, failover, SCRIPT FLUSH) the same call is sent again with the whole text.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files

HEADER_LINE = re.compile(r"--(?: (.*))?")
COMMAND = re.compile(r'"([A-Z]{2,})"')
NO_COMMANDS = frozenset({"LIMIT", "WITHSCORES", "PX", "COUNT", "WRONGTYPE", "NOPERM", "SHUTDOWN"})
"""Words in capitals in the scripts that are no commands of theirs."""
FIELD = re.compile(r"(KEYS|ARGV|returns|uses)(?:\[(\d+)\])?\s+(.*)")


@dataclass(frozen=True, slots=True)
class Script:
    """One verb: what its header says, the commands in it, its whole text and its SHA-1, for EVALSHA."""

    name: str
    summary: str
    keys: tuple[str, ...]
    argv: tuple[str, ...]
    returns: str
    uses: tuple[str, ...]
    commands: tuple[str, ...]
    source: bytes = field(repr=False)
    sha: bytes

    def by_sha(self, root: str, *args: object) -> tuple[object, ...]:
        """Return the command that runs the script where the server knows it."""
        return (b"EVALSHA", self.sha, 1, root, *args)

    def by_source(self, root: str, *args: object) -> tuple[object, ...]:
        """Return the command that runs the script anywhere, and makes it known."""
        return (b"EVAL", self.source, 1, root, *args)


@cache
def scripts() -> Mapping[str, Script]:
    """Return all scripts by their verbs.

    Raises:
        ValueError: a header is missing or wrong, or names a part that does not exist.
    """
    folder = files("prefork_q") / "lua"
    parts = {
        path.name.removesuffix(".lua"): path.read_text("utf-8")
        for path in (folder / "parts").iterdir()
        if path.name.endswith(".lua")
    }
    names = sorted(path.name for path in folder.iterdir() if path.name.endswith(".lua"))
    return {
        name.removesuffix(".lua"): parse(name.removesuffix(".lua"), (folder / name).read_text("utf-8"), parts)
        for name in names
    }


def parse(name: str, text: str, parts: Mapping[str, str]) -> Script:
    """Read the header of one script and put the parts that it uses before it."""
    lines: list[str] = []
    for line in text.splitlines():
        match = HEADER_LINE.fullmatch(line)
        if match is None:
            break
        lines.append(match[1] or "")
    if not lines or not lines[0].startswith(f"{name}: "):
        raise ValueError(f"{name}.lua: the first line must read '-- {name}: what it does'")
    summary: list[str] = [lines[0].removeprefix(f"{name}: ")]
    fields: dict[str, list[str]] = {"KEYS": [], "ARGV": [], "returns": [], "uses": []}
    current = summary
    for line in lines[1:]:
        match = FIELD.match(line)
        if match is not None:
            current = fields[match[1]]
            current.append(match[3])
        elif line.strip():
            if current:
                current[-1] += " " + line.strip()
        else:
            current = []
    for needed in ("KEYS", "returns", "uses"):
        if not fields[needed]:
            raise ValueError(f"{name}.lua: the header has no line '{needed} ...'")
    uses = tuple(fields["uses"][0].split())
    unknown = [part for part in uses if part not in parts]
    if unknown:
        raise ValueError(f"{name}.lua: uses {', '.join(unknown)}, which lua/parts does not have")
    body = "\n".join([*(parts[part] for part in uses), text])
    commands = tuple(sorted(set(COMMAND.findall(body)) - NO_COMMANDS))
    # A channel is no key, and nobody waits for long if a message does not come.
    needed = ", ".join(f'"{command}"' for command in commands if command != "PUBLISH")
    # A function: most calls need no such table.
    own = f"local function own_commands() return {{ {needed} }} end\n" if "rights" in uses else ""
    source = (own + body).encode()
    return Script(
        name=name,
        summary=" ".join(summary),
        keys=tuple(fields["KEYS"]),
        argv=tuple(fields["ARGV"]),
        returns=fields["returns"][0],
        uses=uses,
        commands=commands,
        source=source,
        sha=hashlib.sha1(source, usedforsecurity=False).hexdigest().encode(),
    )
