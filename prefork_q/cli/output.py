"""What commands print: data to stdout, as JSON or as a table; everything else goes to stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import click


def print_json(value: object) -> None:
    """Print one JSON document."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=not _is_utf8()))


def print_table(
    headers: Sequence[str], rows: Iterable[Sequence[object]], *, numbers: Sequence[str] = ()
) -> None:
    """Print rows under headers: with rules and colours on a terminal, else plain and aligned.

    The columns whose headers are in `numbers` are aligned to the right. None is shown as a dash.
    """
    texts = [[_cell(value) for value in row] for row in rows]
    if sys.stdout.isatty():
        _print_rich(headers, texts, numbers)
    else:
        _print_plain(headers, texts, numbers)


def print_pairs(pairs: Iterable[tuple[str, object]]) -> None:
    """Print what is known of one thing, a line each."""
    texts = [(name, _cell(value)) for name, value in pairs]
    width = max((len(name) for name, _ in texts), default=0)
    for name, text in texts:
        click.echo(f"{name:<{width}}  {text}")


def print_text(text: str, *, err: bool = False) -> None:
    """Print a text of several lines, a traceback say, with what could steer a terminal escaped."""
    for line in text.splitlines():
        click.echo(printable(line), err=err)


def say(text: str) -> None:
    """Say something to the user that is no data."""
    click.echo(text, err=True)


def printable(text: str) -> str:
    """Return `text` with what could steer a terminal or break a line escaped."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (dict, list)):
        return printable(json.dumps(value, ensure_ascii=False))
    return printable(str(value))


def _is_utf8() -> bool:
    return (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"


def _print_plain(headers: Sequence[str], rows: list[list[str]], numbers: Sequence[str]) -> None:
    titles = [header.upper() for header in headers]
    widths = [max(len(cell) for cell in column) for column in zip(titles, *rows, strict=True)]
    for row in [titles, *rows]:
        cells = (
            cell.rjust(width) if header in numbers else cell.ljust(width)
            for cell, width, header in zip(row, widths, headers, strict=True)
        )
        click.echo("  ".join(cells).rstrip())


def _print_rich(headers: Sequence[str], rows: list[list[str]], numbers: Sequence[str]) -> None:
    # Imported for terminals only: scripts and probes need not wait for it.
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for header in headers:
        justify: Literal["left", "right"] = "right" if header in numbers else "left"
        table.add_column(header, justify=justify, overflow="fold", no_wrap=header == "id")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    Console().print(table)


def counted(number: int, noun: str) -> str:
    """Return a number of things: 1 task, 1,200 tasks."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def elapsed(seconds: float) -> str:
    """Return a time as people say it: 1 d 2 h, 3 h 4 min, 5 min 6 s, 7.8 s."""
    for size, unit, smaller_size, smaller in (
        (86_400, "d", 3600, "h"),
        (3600, "h", 60, "min"),
        (60, "min", 1, "s"),
    ):
        if seconds >= size:
            return f"{seconds // size:.0f} {unit} {seconds % size // smaller_size:.0f} {smaller}"
    return f"{seconds:.1f} s"


def mebibytes(size: int) -> str | None:
    """Return a number of bytes as MiB; None for 0, which is not known yet."""
    return f"{size / 1024**2:,.1f} MiB" if size else None


def cause(value: Any) -> str:
    """Return the type and message of a task's error in one line, "" if there is none."""
    if not value:
        return ""
    return printable(f"{value.get('type', '')}: {value.get('message', '')}".strip(": "))
