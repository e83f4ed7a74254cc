"""What users write: an `App` with handlers and hooks.

app = App()

@app.task("thumbnail", max_attempts=5, timeout=30)
def thumbnail(path: str, width: int = 128, *, ctx: TaskContext) -> dict: ...
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ParamSpec, TypeVar, overload

from prefork_q.client import Client
from prefork_q.config import Config
from prefork_q.errors import ConfigurationError
from prefork_q.handler import Handler, Policy
from prefork_q.keys import Keys
from prefork_q.option_types import checked_redis_url
from prefork_q.retry import Retry
from prefork_q.target import import_target
from prefork_q.task import DEFAULT_MAX_ATTEMPTS, DEFAULT_QUEUE

__all__ = ["App", "Handler", "Hooks", "load_app"]

P = ParamSpec("P")
R = TypeVar("R")
H = TypeVar("H", bound=Callable[[], object])


@dataclass(frozen=True, slots=True)
class Hooks:
    """Functions without arguments that processes call, in the order in which they were registered.

    `template_start` runs once in the template, after the handlers' import and before any fork;
    `worker_start` in each worker before its first claim; `worker_stop` in each worker when it
    ends by itself, with a time limit.
    """

    template_start: list[Callable[[], object]] = field(default_factory=list)
    worker_start: list[Callable[[], object]] = field(default_factory=list)
    worker_stop: list[Callable[[], object]] = field(default_factory=list)


class App:
    """The handlers of a service, and a client to submit to it.

    Args:
        redis_url: where its tasks are; if left out, where the configuration says.
        namespace: the same for the namespace.

    Raises:
        ConfigurationError: one of them is wrong.
    """

    def __init__(self, redis_url: str | None = None, namespace: str | None = None) -> None:
        self.redis_url = None if redis_url is None else checked_redis_url(redis_url)
        self.namespace = None if namespace is None else Keys(namespace).namespace
        self.hooks = Hooks()
        self._handlers: dict[str, Handler[..., Any]] = {}
        self._config: Config | None = None
        self._client: Client | None = None

    @property
    def handlers(self) -> Mapping[str, Handler[..., Any]]:
        """The handlers by the names of their types, in the order of their registration."""
        return MappingProxyType(self._handlers)

    @property
    def client(self) -> Client:
        """The client of this app, made when it is first needed; it connects in each process anew."""
        if self._client is None:
            # Two threads may both make one; neither has connected, and either will do.
            self._client = Client(self.redis_url, self.namespace, config=self._config)
        return self._client

    def bind(self, config: Config) -> None:
        """Take what the app does not say from `config`, as a running node does for its handlers."""
        self._config = config
        self._client = None

    @overload
    def task(self, name: Callable[P, R], /) -> Handler[P, R]: ...

    @overload
    def task(
        self,
        name: str | None = None,
        *,
        queue: str = DEFAULT_QUEUE,
        max_attempts: int = DEFAULT_MAX_ATTEMPTS,
        timeout: float | None = None,
        retry: Retry = Retry(),
    ) -> Callable[[Callable[P, R]], Handler[P, R]]: ...

    def task(
        self,
        name: str | Callable[..., Any] | None = None,
        *,
        queue: str = DEFAULT_QUEUE,
        max_attempts: int = DEFAULT_MAX_ATTEMPTS,
        timeout: float | None = None,
        retry: Retry = Retry(),
    ) -> Any:
        """Register the decorated function as the handler of a type.

        Args:
            name: the type; the function's name if left out.
            queue: where its tasks wait.
            max_attempts: how often a task may run at all, 1 to 1,000; 1 is never retried.
            timeout: the soft limit of one attempt in seconds, None for none.
            retry: the delays between attempts, and which exceptions are not retried.

        Raises:
            ConfigurationError: the name is taken or wrong, an option is wrong, or the function's
                parameters cannot be given by a payload's members.
        """
        policy = Policy(queue, max_attempts, timeout, retry)
        if callable(name):
            return self._register(name, None, policy, sys._getframe(1).f_locals)

        def decorate(function: Callable[..., Any]) -> Handler[..., Any]:
            return self._register(function, name, policy, sys._getframe(1).f_locals)

        return decorate

    def on_template_start(self, function: H) -> H:
        """Call `function` once in the template, before any worker is forked from it."""
        return _added(self.hooks.template_start, function)

    def on_worker_start(self, function: H) -> H:
        """Call `function` in each worker, before its first task."""
        return _added(self.hooks.worker_start, function)

    def on_worker_stop(self, function: H) -> H:
        """Call `function` in each worker that ends by itself.

        All stop hooks of a worker have together one second, less if the drain leaves less: what still runs
        then is cut off.
        """
        return _added(self.hooks.worker_stop, function)

    def _register(
        self, function: Callable[..., Any], name: str | None, policy: Policy, localns: Mapping[str, Any]
    ) -> Handler[..., Any]:
        type_name = getattr(function, "__name__", "") if name is None else name
        if type_name in self._handlers:
            taken = self._handlers[type_name].function
            raise ConfigurationError(
                f"handler {type_name}: the name is taken by {taken.__module__}.{taken.__qualname__}"
            )
        handler: Handler[..., Any] = Handler(
            function, type_name, policy, client=lambda: self.client, localns=localns
        )
        self._handlers[type_name] = handler
        return handler

    def __repr__(self) -> str:
        return f"<App: {', '.join(self._handlers) or 'no handlers'}>"


def load_app(target: str) -> App:
    """Return the app that `package.module:attribute` or `path/to/file.py:attribute` names.

    Raises:
        ConfigurationError: it cannot be imported, or there is no app; the text holds the traceback.
    """
    module, found = import_target(target)
    if isinstance(found, App):
        return found
    place, _, attribute = target.rpartition(":")
    apps = [f"{place}:{name}" for name, value in vars(module).items() if isinstance(value, App)]
    what = "is missing" if found is None else f"is a {type(found).__name__}, no App"
    hint = f"; there is {', '.join(apps)}" if apps else ""
    raise ConfigurationError(f"target {target!r}: {attribute} {what}{hint}")


def _added(hooks: list[Callable[[], object]], function: H) -> H:
    if not callable(function):
        raise ConfigurationError(f"a hook is a function without arguments, not {function!r}")
    hooks.append(function)
    return function
