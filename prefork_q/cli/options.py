"""Command line options out of the declarations in `prefork_q.options`, and the way back to a `Config`."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import click
from pydantic import TypeAdapter, ValidationError

from prefork_q.config import OPTIONS, Config, Option, load
from prefork_q.keys import NAME, NAME_RULE

Function = TypeVar("Function", bound=Callable[..., Any])

CONNECTION = ("redis_url", "redis_password_file", "namespace", "state_dir")
"""What every command takes that talks to Redis."""


CONFIG_FILE = click.Path(readable=False, path_type=Path)
"""Not looked at here: a file that cannot be read is a wrong configuration, as one that is wrong inside."""


def config_options(names: Sequence[str]) -> Callable[[Function], Function]:
    """Decorate a command with `--config` and the options (or the argument) called `names`.

    What the user gives arrives as keyword arguments by those names, for `load_config`.
    """
    chosen = [option for option in OPTIONS if option.name in names]

    def decorate(function: Function) -> Function:
        for option in reversed(chosen):
            function = _parameter(option)(function)
        return click.option("--config", type=CONFIG_FILE, metavar="FILE", help="Configuration file (TOML).")(
            function
        )

    return decorate


def load_config(config: Path | None, given: dict[str, Any]) -> Config:
    """Return the configuration, of which `given` are the options of the command line.

    Raises:
        ConfigurationError: it is wrong; the text says where.
    """
    return load(given, os.environ, config)


def name(ctx: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """Check that an option was given the name of a type or a queue; a callback of click's.

    A script's empty variable must not choose all that there is.
    """
    if value is not None and not NAME.fullmatch(value):
        raise click.BadParameter(NAME_RULE)
    return value


def _value(ctx: click.Context, parameter: click.Parameter, value: Any) -> Any:
    """Check what a flag was given; a callback of click's. How it fits the rest is for the configuration."""
    if value is None or value == ():
        return value
    field = Config.model_fields[str(parameter.name)]
    annotation: Any = Annotated[field.annotation, *field.metadata]
    try:
        TypeAdapter(annotation).validate_python(value)
    except ValidationError as error:
        text = "; ".join(problem["msg"].removeprefix("Value error, ") for problem in error.errors())
        raise click.BadParameter(text) from None
    return value


def _parameter(option: Option) -> Callable[[Function], Function]:
    if option.kind == "argument":
        return click.argument(option.name, required=False, metavar=f"[{option.metavar}]")
    # Said here and not by click, which would take a default for given, and so above the environment.
    default = f"  [default: {option.default}]" if option.default else ""
    details: dict[str, Any] = {"help": option.help + default, "default": None, "show_default": False}
    if option.kind == "switch":
        return click.option(option.flag, option.name, is_flag=True, **details)
    if option.choices:
        return click.option(option.flag, option.name, type=click.Choice(option.choices), **details)
    details |= {"multiple": option.kind == "multiple", "metavar": option.metavar, "callback": _value}
    return click.option(option.flag, option.name, **details)
