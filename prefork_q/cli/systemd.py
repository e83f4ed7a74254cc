"""`prefork-q systemd`: writes the unit files for the installation at hand, or verifies the installed ones."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import click

from prefork_q.cli import unit_values
from prefork_q.cli.exits import EXIT_CODES
from prefork_q.cli.findings import Finding, tell
from prefork_q.cli.installation import CONFIG_FOLDER, EXAMPLE, LISTEN, USER, Installation, this_program
from prefork_q.cli.options import CONFIG_FILE
from prefork_q.cli.output import print_json, say
from prefork_q.cli.parameters import json_option
from prefork_q.cli.verification import Verification, inferred
from prefork_q.config import load
from prefork_q.errors import ConfigurationError

TOKENS = Path("/etc/credstore/prefork-q.api-tokens")
"""Where the units find tokens that the configuration does not name."""

WHAT_NEXT = """Next, as root:
  systemd-sysusers && systemd-tmpfiles --create
  systemctl daemon-reload
  systemctl enable --now prefork-q.socket prefork-q.service"""


@click.command("systemd")
@click.option("--check", "is_check", is_flag=True, help="Write nothing; verify what is installed.")
@click.option(
    "--output", type=click.Path(file_okay=False, path_type=Path), metavar="DIR",
    help="All files into this folder, not where they belong.",
)  # fmt: skip
@click.option(
    "--config", type=CONFIG_FILE, callback=unit_values.path, metavar="FILE",
    help=f"Configuration file of the service.  [default: {CONFIG_FOLDER}/{EXAMPLE}]",
)  # fmt: skip
@click.option(
    "--user", callback=unit_values.user, metavar="NAME",
    help=f"User and group of the service.  [default: {USER}]",
)  # fmt: skip
@click.option(
    "--program", default=this_program, callback=unit_values.path, metavar="PATH",
    help="The installed prefork-q.  [default: the one that runs]",
)  # fmt: skip
@click.option(
    "--listen", metavar="ADDRESS",
    help=f"Where the socket listens: IP:PORT or the path of a Unix socket.  [default: {LISTEN}]",
)  # fmt: skip
@click.option(
    "--memory-max", callback=unit_values.memory_max, metavar="SIZE",
    help="Limit of the service's memory, as in 8G or 80%.",
)  # fmt: skip
@click.option(
    "--cpu-quota", callback=unit_values.cpu_quota, metavar="PERCENT",
    help="Limit of its processor time: 200% are two cores.",
)  # fmt: skip
@click.option(
    "--notify-reload", is_flag=True, default=None,
    help="Also a drop-in for systemd 253 and newer: reload by SIGHUP. A failed reload is then told in the "
    "journal only.",
)  # fmt: skip
@json_option
def command(
    is_check: bool,
    output: Path | None,
    config: str | None,
    user: str | None,
    program: str,
    listen: str | None,
    memory_max: str | None,
    cpu_quota: str | None,
    notify_reload: bool | None,
    is_json: bool,
) -> int:
    """Write the unit files for this installation: units, a user, folders, an example configuration.

    They fit the environment that this program runs in and the configuration: a stop may take its drain
    timeout and five seconds. A configuration that exists is left as it is, units are replaced; put changes
    of your own into drop-ins.

    What is not given is taken from the installed unit, if there is one. Exit codes of --check: 0 all is
    well, there may be warnings (of missing files too); 78 the service's unit is missing, or something is
    outdated or does not work.
    """
    given: dict[str, Any] = {
        "config": Path(config) if config else None, "user": user, "listen": listen, "program": program,
        "memory_max": memory_max, "cpu_quota": cpu_quota, "notify_reload": notify_reload,
    }  # fmt: skip
    installation = fitted(given, output)
    if is_check:
        return told(Verification(installation, output).findings(), is_json)
    written = write(installation, output)
    out_of_sight = unit_values.hidden(program)
    if out_of_sight is not None:
        say(
            f"warning: the service cannot see {out_of_sight}, since the units have ProtectHome=yes: install "
            "prefork-q and its Python elsewhere, or set ProtectHome=no in a drop-in"
        )
    if is_json:
        print_json({"files": [{"path": str(path), "done": done} for path, done in written]})
        return 0
    for path, done in written:
        click.echo(f"{done:<10} {path}")
    if output is None:
        say(WHAT_NEXT)
    return 0


def fitted(given: dict[str, Any], output: Path | None) -> Installation:
    """Return the installation that is meant: what is given, else what is installed, with its drain timeout.

    Raises:
        ConfigurationError: its configuration is wrong.
        click.BadParameter: it may not listen where that is given.
    """
    values = inferred(output) | {name: value for name, value in given.items() if value is not None}
    installation = Installation(**values)
    is_guarded = TOKENS.exists()
    if installation.config.exists():
        folders = {"STATE_DIRECTORY": "/var/lib/prefork-q", "RUNTIME_DIRECTORY": "/run/prefork-q"}
        config = load({}, folders, installation.config)
        installation = Installation(**values, drain_timeout=config.drain_timeout)
        is_guarded = is_guarded or bool(config.token_file)
    if given["listen"] is not None:
        try:
            unit_values.require_listen(given["listen"], is_guarded=is_guarded)
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint="--listen") from None
    return installation


def write(installation: Installation, output: Path | None) -> list[tuple[Path, str]]:
    """Write the files; return each with what was done: written, unchanged or kept.

    Raises:
        click.ClickException: a file cannot be written.
    """
    done = []
    for name, text in installation.files().items():
        path = installation.place(name) if output is None else output / name
        try:
            done.append((path, _write(path, text, is_kept=name == EXAMPLE)))
        except OSError as error:
            hint = "" if output else "; run it as root, or give --output DIR"
            raise click.ClickException(f"{path}: {error.strerror or error}{hint}") from error
    return done


def told(findings: list[Finding], is_json: bool) -> int:
    """Print what was found; return the exit code."""
    tell(findings, is_json)
    return EXIT_CODES[ConfigurationError.code] if any(f.state == "failed" for f in findings) else 0


def _write(path: Path, text: str, *, is_kept: bool) -> str:
    if path.exists():
        if path.read_text("utf-8") == text:
            return "unchanged"
        if is_kept:
            return "kept"
    path.parent.mkdir(parents=True, exist_ok=True)
    # Whole or not at all: systemd may read it at any moment.
    with tempfile.NamedTemporaryFile(
        "w", dir=path.parent, prefix=".", encoding="utf-8", delete=False
    ) as file:
        file.write(text)
        os.fchmod(file.fileno(), 0o640 if is_kept else 0o644)
    os.replace(file.name, path)
    return "written"
