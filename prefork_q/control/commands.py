"""The commands that the master answers. `ctl` builds its own from this table, and DESIGN.md shows it."""

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
    def scale(self, to: str) -> dict[str, Any]: ...
    def reload(self) -> dict[str, Any]: ...
    def set_quiet(self, quiet: bool) -> dict[str, Any]: ...
    def restart(self, number: int) -> dict[str, Any]: ...
    def drain(self) -> dict[str, Any]: ...
    def stacks(self, number: int | None) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument: its name on the wire and on the command line, its type there, and what it says."""

    name: str
    kind: type[int] | type[str]
    help: str
    is_required: bool = True


@dataclass(frozen=True, slots=True)
class Command:
    """One row: the name, its help, what it does, what its answer's `data` is, its arguments."""

    name: str
    help: str
    function: Callable[[Node, dict[str, Any]], Any]
    returns: str
    arguments: tuple[Argument, ...] = ()


COMMANDS: dict[str, Command] = {
    command.name: command
    for command in (
        Command("ping", "Tell whether the master answers.", lambda node, _: node.ping(),
                "`pid`, `version`, `state`"),
        Command("status", "Show the state of the node and all its processes.", lambda node, _: node.status(),
                "the whole status"),
        Command("workers", "Show the workers and what each runs.", lambda node, _: node.status()["workers"],
                "the list `workers` of the status"),
        Command("metrics", "Show the numbers of this node.", lambda node, _: node.metrics(),
                "totals, counts and histograms by type, waits by queue"),
        Command("scale", "Have N workers, N more (+N) or N fewer (-N).",
                lambda node, given: node.scale(given["to"]), "`workers`, `before`",
                (Argument("to", str, "N, +N or -N"),)),
        Command("reload", "Read code and configuration anew, with no gap.", lambda node, _: node.reload(),
                "`number` of the reload, as in the status's `reload`"),
        Command("quiet", "Let the workers claim nothing more.", lambda node, _: node.set_quiet(True),
                "`state`"),
        Command("resume", "Let the workers claim again.", lambda node, _: node.set_quiet(False), "`state`"),
        Command("drain", "Stop the node: what runs gets the drain timeout.", lambda node, _: node.drain(),
                "`pid` of the master, which ends last; `state`"),
        Command("restart", "Replace a worker; the new one is up before the old one drains.",
                lambda node, given: node.restart(given["worker"]), "`worker`, `pid` of the old one",
                (Argument("worker", int, "its number, `slot` in the status"),)),
        Command("stacks", "Show what every thread of every worker is doing.",
                lambda node, given: node.stacks(given.get("number")),
                "`number`, `done`; once that, `workers` with their `threads`",
                (Argument("number", int, "of an answer that was not `done` yet", is_required=False),)),
    )
}  # fmt: skip


QUESTIONS = frozenset({"ping", "status", "workers", "metrics"})
"""Those that change nothing: whoever asks at the same moment may be told the same."""


def answer(node: Node, name: str, arguments: dict[str, Any]) -> Any:
    """Carry out a command.

    Raises:
        NotFound: there is none of that name.
        Invalid: it takes no such argument, or needs one that is not there.
        PreforkQError: as the command itself raises.
    """
    command = COMMANDS.get(name)
    if command is None:
        raise NotFound(f"no command {name!r}; there are: {', '.join(COMMANDS)}")
    known = {argument.name: argument for argument in command.arguments}
    unknown = [argument for argument in arguments if argument not in known]
    if unknown:
        raise Invalid(f"{name} takes no argument {unknown[0]!r}")
    for argument in command.arguments:
        given = arguments.get(argument.name)
        # A bool is an int to Python, and no number to JSON.
        is_right = isinstance(given, argument.kind) and not isinstance(given, bool)
        if not is_right and (argument.is_required or given is not None):
            kind = "a number" if argument.kind is int else "a text"
            raise Invalid(f"{name}: {argument.name} is {kind}: {argument.help}")
    return command.function(node, arguments)
