"""The configuration of a node, read anew for a reload. Runs in the master.

Flags and environment are those of the start; what may have changed is the file. All or nothing: an option
that cannot change while the node lives refuses the whole.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

import click

from prefork_q.cli.roles import Roles
from prefork_q.config import Config
from prefork_q.errors import ConfigurationError
from prefork_q.events import Events, mask_url
from prefork_q.master.settings import MasterSettings, Reading
from prefork_q.store import StoreSettings
from prefork_q.tokens import read_tokens

FIXED: Final = (
    "redis_url", "embedded", "namespace", "http", "no_http", "ctl_socket", "state_dir", "lease", "log_file",
    "log_format", "reload", "no_fork",
)  # fmt: skip
"""Sockets, folders and keys that are in use, and what all processes of a node must agree on."""


class Rereading:
    """Knows what holds now, reads what shall hold."""

    def __init__(
        self,
        read: Callable[[], Config],
        config: Config,
        settings: MasterSettings,
        store: StoreSettings | None,
        events: Events,
        config_file: Path | None,
    ) -> None:
        """`config` and `settings` are those of the start; `read` returns the configuration as it is now."""
        self._read = read
        self._config = config
        self._first = settings
        self._store = store
        self._events = events
        self._config_file = config_file

    def __call__(self) -> Reading:
        """Read.

        Raises:
            ConfigurationError: it is wrong, or differs in what cannot change.
        """
        try:
            config = self._read()
        except click.ClickException as error:
            # At the start it is wrong usage, and ends the program.
            raise ConfigurationError(error.format_message()) from error
        require_same(self._config, config)
        if config.token_file:
            read_tokens(config.token_file)
        settings = master_settings(config, self._first)
        roles = Roles(config, settings, self._store, self._events, self._config_file)

        def adopt() -> None:
            self._config = config
            self._events.set_level(config.log_level)

        return Reading(settings, roles.entrypoints(), config != self._config, adopt)


def require_same(now: Config, wanted: Config) -> None:
    """Refuse what cannot change while the node lives."""
    for name in FIXED:
        before, after = (mask_url(str(getattr(config, name))) for config in (now, wanted))
        if getattr(now, name) != getattr(wanted, name):
            raise ConfigurationError(
                f"{name} cannot change while the node runs (from {before} to {after}): restart it"
            )
    if now.token_file and not wanted.token_file:
        # The sockets stay, and may be open to other machines.
        raise ConfigurationError("token_file cannot be taken away while the node runs: restart it")


def master_settings(config: Config, first: MasterSettings) -> MasterSettings:
    """Return the master's part of a configuration; `first` has what stays for the life of the node.

    Raises:
        ConfigurationError: there is no room for so many workers or threads.
    """
    if config.workers > first.slots:
        raise ConfigurationError(
            f"workers: {config.workers} are more than the {first.slots} for which this node has room: "
            "restart it"
        )
    if config.threads > first.most_threads:
        raise ConfigurationError(
            f"threads: {config.threads} are more than the {first.most_threads} for which this node has room: "
            "restart it"
        )
    return replace(
        first,
        workers=config.workers,
        threads=config.threads,
        api_processes=config.api_processes if config.http else 0,
        lease=config.lease,
        drain_timeout=config.drain_timeout,
        preload=config.preload,
        max_rss=config.max_rss or 0,
    )
