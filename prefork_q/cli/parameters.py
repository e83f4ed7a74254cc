"""Parameters of several commands. Light: `ctl` needs them too."""

from __future__ import annotations

import click

from prefork_q.units import parse_duration

json_option = click.option("--json", "is_json", is_flag=True, help="Print JSON.")


def duration(ctx: click.Context, parameter: click.Parameter, value: str | None) -> float | None:
    """Turn what an option was given, such as 500ms, 30, 30s, 5m, into seconds; a callback of click's."""
    try:
        return None if value is None else parse_duration(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
