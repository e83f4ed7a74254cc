"""What each process of a node runs: the entry points that the master is given.

Each imports its code in the process that runs it: the master stays small, and has neither a Redis
client nor a web framework nor the user's handlers.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prefork_q.config import Config, effective_redis_url
from prefork_q.events import Events
from prefork_q.ipc.birth import Birth
from prefork_q.master.settings import EntryPoint, Entrypoints, MasterSettings
from prefork_q.store import StoreSettings, last_words, run_store

if TYPE_CHECKING:
    from prefork_q.app import App
    from prefork_q.keeper import KeeperSettings
    from prefork_q.worker.worker import WorkerSettings

LOG_PATIENCE = 1.0
"""Seconds that a child waits for a slow reader of its log."""


@dataclass(frozen=True, slots=True)
class Roles:
    """The roles of one node. Its methods run in the process of that role."""

    config: Config
    settings: MasterSettings
    store: StoreSettings | None
    events: Events
    config_file: Path | None = None

    def entrypoints(self) -> Entrypoints:
        """Return the entry points. Runs in the master."""
        watcher = self._watcher if self.config.reload else None
        return Entrypoints(self._template, self._keeper, self._store(), watcher)

    def _store(self) -> EntryPoint | None:
        settings = self.store
        if settings is None:
            return None

        def run(birth: Birth) -> int:
            # The process becomes the server, so what made that one fail is told by the next.
            reason = last_words(settings.state_dir)
            if reason is not None:
                log = self._log().with_process(role="store", pid=os.getpid())
                log.emit("store_had_failed", level="error", reason=reason)
            return run_store(birth, settings)

        return run

    def _template(self, birth: Birth) -> int:
        # All before the handlers: the folder that they come from may have a module of a name that is needed
        # here, and comes first.
        from prefork_q.api import run_api
        from prefork_q.cli.handlers import run_template_hooks, warn_of_queues
        from prefork_q.scripts import scripts
        from prefork_q.template import Template, TemplateSettings
        from prefork_q.worker.worker import run_worker

        config, events = self.config, self._log()
        settings = worker_settings(config)
        # Read here they are shared by all; the call keeps them.
        scripts()

        def on_start(app: App) -> None:
            warn_of_queues(app, config, events)
            run_template_hooks(app)

        def worker(newborn: Birth, app: App) -> int:
            # What this process does not import it cannot look at: one of the workers does.
            if newborn.slot == 0 and not birth.may_preload:
                warn_of_queues(app, config, events)
            return run_worker(newborn, app, settings, events)

        template = Template(
            load=self._load,
            worker=worker,
            api=lambda newborn, app: run_api(newborn, config, app, events),
            on_start=on_start,
            settings=TemplateSettings(config.preload, self.settings.keep_fds),
            events=events,
        )
        return template(birth)

    def _keeper(self, birth: Birth) -> int:
        from prefork_q.keeper import run_keeper

        settings = keeper_settings(self.config, self.settings.node, self.settings.version)
        return run_keeper(birth, settings, self._log().with_process(role="keeper", pid=os.getpid()))

    def _watcher(self, birth: Birth) -> int:
        from prefork_q.watcher import run_watcher

        config = self.config
        files = () if self.config_file is None else (self.config_file,)
        return run_watcher(birth, config.target or "", files, self._log().with_process(role="watcher"))

    def _load(self) -> Any:
        """Return the app of the handlers, with this node's configuration."""
        from prefork_q.cli.handlers import load_handlers
        from prefork_q.fresh import import_fresh

        import_fresh()
        return load_handlers(self.config)

    def _log(self) -> Events:
        """Return the log for a child, which has its own copy since the fork."""
        self.events.sink.patience = LOG_PATIENCE
        self.events.set_level(self.config.log_level)
        return self.events


def worker_settings(config: Config) -> WorkerSettings:
    """Return the worker's part of a configuration."""
    from prefork_q.leases import Limits
    from prefork_q.worker.worker import WorkerSettings

    return WorkerSettings(
        redis_url=effective_redis_url(config),
        namespace=config.namespace,
        queues=tuple((queue.name, queue.weight) for queue in config.queues),
        threads=config.threads,
        lease=config.lease,
        drain_timeout=config.drain_timeout,
        grace=config.grace,
        result_limit=config.result_limit,
        limits=Limits(retention=config.retention, max_crashes=config.max_crashes),
        max_tasks=config.max_tasks or 0,
        max_rss=config.max_rss or 0,
    )


def keeper_settings(config: Config, node: str, version: str) -> KeeperSettings:
    """Return the keeper's part of a configuration."""
    from prefork_q.keeper import KeeperSettings

    return KeeperSettings(
        redis_url=effective_redis_url(config),
        node=node,
        namespace=config.namespace,
        threads=config.threads,
        lease=config.lease,
        drain_timeout=config.drain_timeout,
        retention=config.retention,
        max_crashes=config.max_crashes,
        dead_limit=config.dead_limit,
        dead_retention=config.dead_retention,
        version=version,
    )
