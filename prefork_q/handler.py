"""A registered handler: a function, what its type is called, and how its tasks are to run.

thumbnail(path="a.png")                      a plain call
thumbnail.submit(path="a.png")               a task
thumbnail.options(delay=5).submit(path=...)  a task with other options
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Generic, ParamSpec, TypeVar

from prefork_q.client import Client, Task
from prefork_q.context import TaskContext
from prefork_q.errors import ConfigurationError, Invalid
from prefork_q.keys import NAME, NAME_RULE
from prefork_q.retry import Retry
from prefork_q.schema import PayloadSchema
from prefork_q.signature import Signature, read_signature
from prefork_q.strict_json import encode
from prefork_q.submission import NewTask, check_max_attempts, check_name, check_timeout
from prefork_q.task import DEFAULT_MAX_ATTEMPTS, DEFAULT_QUEUE

POLICY_OPTIONS = ("queue", "max_attempts", "timeout")
"""Options of a submission for which a handler has values of its own."""

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Policy:
    """How the tasks of a type run, unless a submission says otherwise. `timeout` in seconds."""

    queue: str = DEFAULT_QUEUE
    max_attempts: int = DEFAULT_MAX_ATTEMPTS
    timeout: float | None = None
    retry: Retry = Retry()


class Handler(Generic[P, R]):
    """The function of a type. Calling it is a plain call.

    Attributes:
        name: the type.
        function: the function itself.
        entry: the same, taking everything by keyword, the context too.
        queue, max_attempts, timeout, retry: the policy.
        context_parameter: the parameter that gets the context, None if there is none.
        arguments: turns a payload, as JSON text, into keyword arguments; raises InvalidPayload.

    Type checkers take `submit` to have the function's parameters, the context included: give
    that one a default, `ctx: TaskContext = TaskContext()`, and they do not ask for it.
    """

    def __init__(
        self,
        function: Callable[P, R],
        name: str,
        policy: Policy,
        *,
        client: Callable[[], Client],
        localns: Mapping[str, Any],
    ) -> None:
        """Read the signature and check the policy.

        Raises:
            ConfigurationError: the name, the policy or the signature is unfit; the text says why.
        """
        check_policy(name, policy)
        self.function = function
        self.name = name
        self.queue = policy.queue
        self.max_attempts = policy.max_attempts
        self.timeout = policy.timeout
        self.retry = policy.retry
        self._client = client
        self._signature = read_signature(name, function, localns)
        self._schema = PayloadSchema(name, self._signature)
        self.arguments = self._schema.arguments
        self.context_parameter = self._signature.context
        self.entry = _by_keyword(function, self._signature)
        # Without its attributes, which might be called as ours.
        functools.update_wrapper(self, function, updated=())

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    def call(self, arguments: dict[str, Any], context: TaskContext) -> Any:
        """Call the function with what `arguments()` returned, and with the context if it wants it."""
        if self.context_parameter is not None:
            arguments[self.context_parameter] = context
        return self.entry(**arguments)

    def validate(self, payload: bytes) -> dict[str, Any]:
        """Return the arguments that a payload, as JSON text, stands for.

        Raises:
            InvalidPayload: it does not fit; `errors` says where and what to mend.
        """
        return self.arguments(payload)

    def json_schema(self, *, ref_template: str = "#/$defs/{model}") -> dict[str, Any]:
        """Return the JSON Schema of the payload, entitled with the type."""
        return self._schema.json_schema(ref_template=ref_template)

    def submit(self, *args: P.args, **kwargs: P.kwargs) -> Task:
        """Submit a task with these arguments; the context is left out.

        Raises:
            InvalidPayload: they do not fit.
            TooLarge: they are over the limit.
            Unavailable: Redis cannot be reached or refuses.
        """
        return self._client().submit_many([self.new(*args, **kwargs)])[0]

    def new(self, *args: P.args, **kwargs: P.kwargs) -> NewTask:
        """Return a task with these arguments that `Client.submit_many` can submit among others.

        Raises:
            InvalidPayload: they do not fit.
        """
        payload = self._signature.bind(args, kwargs)
        self.arguments(encode(payload))
        return NewTask(
            self.name, payload, queue=self.queue, max_attempts=self.max_attempts, timeout=self.timeout,
            filled_in=POLICY_OPTIONS,
        )  # fmt: skip

    def options(
        self,
        *,
        queue: str | None = None,
        delay: float | timedelta | None = None,
        run_at: float | datetime | None = None,
        max_attempts: int | None = None,
        timeout: float | timedelta | None = None,
        idempotency_key: str | None = None,
    ) -> Prepared[P]:
        """Return this handler's `submit` and `new` with other options; see `Client.submit` for them."""
        given = {
            "queue": queue,
            "delay": delay,
            "run_at": run_at,
            "max_attempts": max_attempts,
            "timeout": timeout,
            "idempotency_key": idempotency_key,
        }
        return Prepared(self, {name: value for name, value in given.items() if value is not None})

    def __repr__(self) -> str:
        return f"<Handler {self.name}>"


class Prepared(Generic[P]):
    """A handler with options for what is submitted through it."""

    def __init__(self, handler: Handler[P, Any], options: Mapping[str, Any]) -> None:
        self._handler = handler
        self._options = options

    def submit(self, *args: P.args, **kwargs: P.kwargs) -> Task:
        """Submit a task; see `Handler.submit`.

        Raises:
            Invalid: an option is wrong.
            IdempotencyConflict: the key was used for another request.
        """
        return self._handler._client().submit_many([self.new(*args, **kwargs)])[0]

    def new(self, *args: P.args, **kwargs: P.kwargs) -> NewTask:
        """Return a task for `Client.submit_many`; see `Handler.new`."""
        left = [name for name in POLICY_OPTIONS if name not in self._options]
        return replace(self._handler.new(*args, **kwargs), **self._options, filled_in=left)


def _by_keyword(function: Callable[..., Any], signature: Signature) -> Callable[..., Any]:
    context = signature.context
    if context is None or not signature.is_context_positional:
        return function

    def entry(**arguments: Any) -> Any:
        return function(arguments.pop(context), **arguments)

    return entry


def check_policy(name: str, policy: Policy) -> None:
    """Check what a handler is registered with.

    Raises:
        ConfigurationError: something is wrong; the text says what is accepted.
    """
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise ConfigurationError(f'handler {name!r}: {NAME_RULE}; give one with @app.task("name")')
    if not isinstance(policy.retry, Retry):
        raise ConfigurationError(f"handler {name}: retry is a Retry(...), not {policy.retry!r}")
    try:
        check_name(policy.queue, "queue")
        check_max_attempts(policy.max_attempts)
        check_timeout(policy.timeout)
    except Invalid as error:
        raise ConfigurationError(f"handler {name}: {error.detail}") from None
