"""The tables of DESIGN.md as the code has them. `python -m tests.support.design` writes them anew."""

from __future__ import annotations

import re
from pathlib import Path

from prefork_q.api.problems import KINDS
from prefork_q.control.commands import COMMANDS
from prefork_q.keys import TABLE
from prefork_q.master.signals import SIGNALS
from prefork_q.scripts import scripts
from prefork_q.states import TRANSITIONS

DESIGN = Path(__file__).parents[2] / "DESIGN.md"


def tables() -> dict[str, str]:
    """Return each checked table by the name in the comment before it."""
    return {
        "transitions": _table(
            ("from", "verb", "to", "when"),
            [
                (row.before.value if row.before else "–", f"`{row.verb}`", row.after.value, row.when)
                for row in TRANSITIONS
            ],
        ),
        "keys": _table(
            ("key", "type", "holds", "written by", "expires"),
            [(f"`{key.pattern}`", *key[1:]) for key in TABLE],
        ),
        "scripts": _table(
            ("script", "does", "answers"),
            [
                (f"`{script.name}`", script.summary, script.returns.replace(" | ", " or "))
                for script in scripts().values()
            ],
        ),
        "commands": _table(
            ("command", "arguments", "does", "answers with"),
            [
                (
                    f"`{command.name}`",
                    "; ".join(f"`{a.name}`: {a.help}" for a in command.arguments) or "–",
                    command.help.removesuffix("."),
                    command.returns,
                )
                for command in COMMANDS.values()
            ],
        ),
        "problems": _table(
            ("kind", "status", "title"),
            [(f"`{word}`", str(kind.status), kind.title) for word, kind in KINDS.items()],
        ),
        "signals": _table(("signal to the master", "does"), list(SIGNALS)),
    }


def read_table(text: str, name: str) -> str:
    """Return the table that follows the comment `name` in the text of DESIGN.md."""
    return _place(name).search(text)[2]  # type: ignore[index]


def written(text: str) -> str:
    """Return the text of DESIGN.md with the tables that the code has now."""
    for name, table in tables().items():
        text = _place(name).sub(lambda match, table=table: match[1] + table + match[3], text)  # type: ignore[misc]
    return text


def _place(name: str) -> re.Pattern[str]:
    return re.compile(rf"(<!-- {name} -->\n)(.*?)(<!-- end -->)", re.DOTALL)


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n" + "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n\n"


if __name__ == "__main__":
    DESIGN.write_text(written(DESIGN.read_text("utf-8")), "utf-8")
