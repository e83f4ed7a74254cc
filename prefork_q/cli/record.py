"""How one task is shown to people, and what is said when there is none."""

from __future__ import annotations

import click

from prefork_q.cli.output import cause, print_pairs, print_text
from prefork_q.errors import NotFound
from prefork_q.presentation import as_json
from prefork_q.task import TaskRecord


def print_task(task: TaskRecord) -> None:
    """Print a task, a line for each thing that is known; its traceback and stack stand below, as text."""
    shown = as_json(task)
    error = shown.pop("error", {})
    post_mortem = dict(error.get("cause") or {})
    texts = (error.get("traceback"), post_mortem.pop("stack", None))
    pairs = [(name.replace("_", " "), value) for name, value in shown.items()]
    if error:
        pairs.append(("error", cause(error)))
    if post_mortem:
        pairs.append(("cause", post_mortem))
    print_pairs(pairs)
    for text in filter(None, texts):
        click.echo()
        print_text(text)


def missing(id: str) -> NotFound:
    """Return the error for an id that no task has."""
    return NotFound(f"there is no task {id}")
