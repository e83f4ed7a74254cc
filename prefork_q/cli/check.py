"""`prefork-q check`: can the service work with this configuration, these handlers and this server?"""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import click

from prefork_q.acl import rule
from prefork_q.cli.apart import apart
from prefork_q.cli.exits import EXIT_CODES, FAILED
from prefork_q.cli.findings import Finding, tell
from prefork_q.cli.handlers import doubt_of_queues, load_handlers
from prefork_q.cli.log import require_log_file
from prefork_q.cli.options import CONNECTION, config_options, load_config
from prefork_q.cli.output import print_json
from prefork_q.cli.parameters import json_option
from prefork_q.config import Config, effective_redis_url, misspelt, require_ctl_folder
from prefork_q.connection import connect
from prefork_q.errors import ConfigurationError, PreforkQError, Unavailable
from prefork_q.events import mask_url
from prefork_q.folder import require_possible
from prefork_q.inspector import Inspector
from prefork_q.keys import Keys
from prefork_q.layout import LAYOUT, wrong_layout
from prefork_q.master.settings import doubt_of_lease
from prefork_q.store import OLDEST, find_server
from prefork_q.survey import doubts, survey
from prefork_q.template import THREAD_VARIABLES, open_sockets, other_threads
from prefork_q.tokens import read_tokens


@click.command("check")
@config_options(("target", *CONNECTION, "queues"))
@click.option("--acl", "is_acl", is_flag=True, help="Print the least rights that a user of Redis needs.")
@click.option(
    "--config-only", "is_config_only", is_flag=True,
    help="Check the configuration and the files that it names; import no handlers, ask no server.",
)  # fmt: skip
@json_option
def command(config: Path | None, is_acl: bool, is_config_only: bool, is_json: bool, **given: Any) -> int:
    """Check the configuration, the handlers TARGET and the server, without starting anything.

    With --acl nothing is checked: a command for Redis is printed that makes a user which may do what
    prefork-q does in this namespace, and nothing else. Write it to a file, put a password in the place of
    PASSWORD there, and feed it to redis-cli (redis-cli < FILE): a shell would take its words apart.

    Exit codes: 0 it can work, there may be warnings; 78 the configuration or the handlers are wrong;
    69 the server cannot be reached.
    """
    settings = load_config(config, given)
    if is_acl:
        line = f"ACL SETUSER prefork-q on >PASSWORD {rule(Keys(settings.namespace))}"
        if is_json:
            print_json({"acl": line})
        else:
            click.echo(line)
        return 0
    findings = [*of_options(settings)]
    if not is_config_only:
        findings += [*of_handlers(settings), *of_server(settings)]
    failed = [finding for finding in findings if finding.state == "failed"]
    tell(findings, is_json)
    return max((EXIT_CODES.get(finding.code, FAILED) for finding in failed), default=0)


def of_options(config: Config) -> Iterator[Finding]:
    """Say that the configuration could be read, and what in the environment looks like a slip."""
    yield Finding("configuration", "ok", f"namespace {config.namespace}, state folder {config.state_dir}")
    for warning in misspelt(os.environ):
        yield Finding("configuration", "warning", warning)
    doubt = doubt_of_lease(config.lease)
    if doubt is not None:
        yield Finding("configuration", "warning", doubt)
    checks: list[Callable[[], object]] = [
        config.require_socket_paths,
        partial(require_ctl_folder, config, os.environ),
        partial(effective_redis_url, config),
    ]
    if config.needs_state_dir:
        checks.append(partial(require_possible, config.state_dir))
    if config.log_file is not None:
        checks.append(partial(require_log_file, config.log_file))
    if config.token_file:
        checks.append(partial(read_tokens, config.token_file))
    for check in checks:
        try:
            check()
        except PreforkQError as error:
            yield Finding("configuration", "failed", str(error), error.code)


def of_handlers(config: Config) -> Iterator[Finding]:
    """Import the handlers as the service does, apart from this process."""
    if config.target is None:
        yield Finding("handlers", "warning", "none are named, so they were not imported: give TARGET")
        return
    try:
        for found in apart(lambda: list(of_import(config))):
            yield Finding(*found)
    except ConfigurationError as error:
        yield Finding("handlers", "failed", str(error), error.code)


def of_import(config: Config) -> Iterator[Finding]:
    """Import the handlers, and look at what that leaves running."""
    for name in THREAD_VARIABLES:
        os.environ.setdefault(name, "1")
    before = open_sockets()
    app = load_handlers(config)
    yield Finding("handlers", "ok", f"{len(app.handlers)}: {', '.join(app.handlers)}")
    doubt = doubt_of_queues(app, config)
    if doubt is not None:
        yield Finding("handlers", "warning", doubt)
    threads, sockets = other_threads(), len(open_sockets() - before)
    if threads or sockets:
        left = f"threads: {', '.join(threads)}" if threads else f"{sockets} open sockets"
        yield Finding(
            "handlers", "warning",
            f"the import leaves {left}: such a process must not be forked, so each worker will import them "
            "by itself, which takes more memory; start them in a hook on_worker_start instead",
        )  # fmt: skip


def of_server(config: Config) -> Iterator[Finding]:
    """Reach the server, and look at how it treats what it is given."""
    try:
        url = effective_redis_url(config)
    except PreforkQError:  # told among the options
        return
    try:
        if config.embedded and not _may_run(config):
            yield Finding("server", "ok", f"embedded, not running; `run` will start {find_server()}")
            return
        client = connect(url, max_connections=1)
        try:
            facts = survey(client)
            layout = Inspector(client, Keys(config.namespace)).layout()
        finally:
            client.close()
    except PreforkQError as error:
        yield Finding("server", "failed", f"{mask_url(url)}: {error}", error.code)
        return
    oldest = OLDEST[facts.kind]
    if facts.version < oldest:
        detail = f"{facts.name} is too old: {'.'.join(map(str, oldest))} is needed"
        yield Finding("server", "failed", detail, ConfigurationError.code)
    elif not facts.is_primary:
        yield Finding("server", "failed", f"{mask_url(url)} is a read-only replica", Unavailable.code)
    else:
        yield Finding(
            "server", "ok", f"{facts.name} at {mask_url(url)}, namespace {Keys(config.namespace).root}"
        )
    if layout not in (None, LAYOUT):
        yield Finding("layout", "failed", wrong_layout(layout), ConfigurationError.code)
    for doubt in doubts(facts):
        yield Finding("server", "warning", doubt)


def _may_run(config: Config) -> bool:
    """Tell whether the embedded server may be there: one that was killed leaves its socket, but no lock."""
    if not config.store_socket.exists():
        return False
    with socket.socket(socket.AF_UNIX) as visitor, suppress(OSError):
        visitor.settimeout(1)
        try:
            visitor.connect(str(config.store_socket))
        except ConnectionRefusedError:
            return _is_locked(config.state_dir / "store.lock")
    # Whatever else hinders is told where its facts are asked for.
    return True


def _is_locked(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            # Shared and for this moment: a server that starts just now tries again.
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False
