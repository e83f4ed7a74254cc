"""The commands that the master answers. `ctl` builds its own from this table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from prefork_q.errors import Invalid, NotFound


class Node(Protocol):
    """What a command may ask of the master; each answers at once, from memory."""

    def ping(self) -> dict[str, Any]: ...
    def status(self) -> dict[str, Any]: ...
    def metrics(self) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True)
class Command:
    """One row: the name, its help, the names of its arguments, and what it does."""

    name: str
    help: str
    function: Callable[[Node, dict[str, Any]], Any]
    arguments: tuple[str, ...] = ()


COMMANDS: dict[str, Command] = {
    command.name: command
    for command in (
        Command("ping", "Tell whether the master answers.", lambda node, _: node.ping()),
        Command("status", "Show the state of the node and all its processes.", lambda node, _: node.status()),
        Command("workers", "Show the workers and what each runs.", lambda node, _: node.status()["workers"]),
        Command("metrics", "Show the numbers of this node.", lambda node, _: node.metrics()),
    )
}


def answer(node: Node, name: str, arguments: dict[str, Any]) -> Any:
    """Carry out a command.

    Raises:
        NotFound: there is none of that name.
        Invalid: it takes no such argument.
    """
    command = COMMANDS.get(name)
    if command is None:
        raise NotFound(f"no command {name!r}; there are: {', '.join(COMMANDS)}")
    unknown = [argument for argument in arguments if argument not in command.arguments]
    if unknown:
        raise Invalid(f"{name} takes no argument {unknown[0]!r}")
    return command.function(node, arguments)
