"""What a command needs that talks to Redis: its options, and the verbs and looks behind them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from prefork_q.broker import Broker
from prefork_q.cli.options import CONNECTION, config_options, load_config
from prefork_q.client import Client
from prefork_q.config import Config, effective_redis_url
from prefork_q.connection import connect
from prefork_q.errors import Unavailable
from prefork_q.inspector import PAGE_LIMIT, Cursor, Inspector
from prefork_q.keys import Keys
from prefork_q.leases import Limits
from prefork_q.states import Status
from prefork_q.task import TaskRecord


class Reach:
    """One namespace of one server, as the configuration names them. It connects when first used."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.url = effective_redis_url(config)
        keys = Keys(config.namespace)
        self._connection = connect(self.url, max_connections=4)
        self.broker = Broker(
            self._connection, keys, Limits(retention=config.retention, max_crashes=config.max_crashes)
        )
        self.inspector = Inspector(self._connection, keys)

    def client(self) -> Client:
        """Return a client that submits to this namespace."""
        return Client(config=self.config)

    def tasks(
        self, status: Status | None, *, type: str | None = None, queue: str | None = None
    ) -> Iterator[TaskRecord]:
        """Yield the tasks of a status (None: any), page by page as they are asked for."""
        cursor: Cursor | None = None
        while True:
            page = self.inspector.page(status, type=type, queue=queue, limit=PAGE_LIMIT, cursor=cursor)
            yield from page.tasks
            cursor = page.next
            if cursor is None:
                return

    def explained(self, error: Unavailable) -> Unavailable:
        """Return the error that tells people more: where there is no embedded server, no service runs."""
        if not self.config.embedded or not _is_missing(self.config.store_socket):
            return error
        return Unavailable(
            f"no service runs with the state folder {self.config.state_dir}; start `prefork-q run`, or give "
            "--state-dir or --redis-url",
            kind=error.kind,
        )


def reaching(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a command with the options of a connection; it gets a `Reach` before its own arguments."""

    @config_options(CONNECTION)
    @functools.wraps(function)
    def command(*, config: Path | None, **given: Any) -> Any:
        connection = {name: given.pop(name) for name in CONNECTION}
        reach = Reach(load_config(config, connection))
        try:
            return function(reach, **given)
        except Unavailable as error:
            raise reach.explained(error) from error

    return command


def _is_missing(path: Path) -> bool:
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        # It may be there, and is not for this user to see.
        return False
    return False
