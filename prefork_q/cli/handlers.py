"""Imports the handlers and gives them the node's configuration. Runs in the template, the api and `check`."""

from __future__ import annotations

from prefork_q.app import App, load_app
from prefork_q.config import Config, effective_redis_url
from prefork_q.errors import ConfigurationError
from prefork_q.events import Events, mask_url
from prefork_q.options import database_of


def load_handlers(config: Config) -> App:
    """Return the app that the configuration's target names, bound to that configuration.

    Raises:
        ConfigurationError: it cannot be imported, has no handlers, or belongs to other queues than
            this node works on.
    """
    if config.target is None:
        raise ConfigurationError("no handlers are named: TARGET is package.module:attribute")
    app = load_app(config.target)
    if not app.handlers:
        raise ConfigurationError(f"target {config.target!r}: the app has no handlers")
    require_same_place(app, config)
    app.bind(config)
    return app


def require_same_place(app: App, config: Config) -> None:
    """Refuse an app that names another server or namespace: it would submit where nobody works."""
    url = effective_redis_url(config)
    if app.redis_url is not None and database_of(app.redis_url) != database_of(url):
        raise ConfigurationError(
            f"the app says {mask_url(app.redis_url)}, this node uses {mask_url(url)}: "
            "give the node the same --redis-url, or let the app say none"
        )
    if app.namespace is not None and app.namespace != config.namespace:
        raise ConfigurationError(
            f"the app says namespace {app.namespace}, this node uses {config.namespace}: "
            "give the node the same --namespace, or let the app say none"
        )


def doubt_of_queues(app: App, config: Config) -> str | None:
    """Return what to warn of if tasks of this app, submitted as it declares them, would not run here."""
    own = {queue.name for queue in config.queues}
    left_out = [f"{h.name} ({h.queue})" for h in app.handlers.values() if h.queue not in own]
    if not left_out:
        return None
    return (
        f"this node does not work on the queues of {', '.join(left_out)}: add them to --queues, unless "
        "another node works on them"
    )


def warn_of_queues(app: App, config: Config, events: Events) -> None:
    """Tell the log of handlers whose queue this node does not work on: their tasks may wait for ever."""
    doubt = doubt_of_queues(app, config)
    if doubt is not None:
        events.emit("queues_left_out", level="warning", detail=doubt)


def run_template_hooks(app: App) -> None:
    """Call what is to be called once, before workers are forked."""
    for hook in app.hooks.template_start:
        hook()
