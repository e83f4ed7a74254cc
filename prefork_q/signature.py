"""Reads a handler's signature: which parameters are members of the payload, which one is the context."""

from __future__ import annotations

import functools
import inspect
import re
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Union, get_args, get_origin

from prefork_q.context import TaskContext
from prefork_q.errors import ConfigurationError, InvalidPayload

REQUIRED: Final = inspect.Parameter.empty
"""The default of a parameter that has none."""
CONTEXT_TEXT = re.compile(
    r"(?:[\w.]+\.)?(?:Optional\[)?\s*(?:\w+\.)*TaskContext\s*\]?(?:\s*\|\s*None)?|None\s*\|\s*(?:\w+\.)*TaskContext"
)
"""An annotation that means the context although its name cannot be looked up at run time."""

POSITIONAL_ONLY = inspect.Parameter.POSITIONAL_ONLY
VAR_POSITIONAL = inspect.Parameter.VAR_POSITIONAL
VAR_KEYWORD = inspect.Parameter.VAR_KEYWORD


@dataclass(frozen=True, slots=True)
class Parameter:
    """A member of the payload. `default` is REQUIRED if it must be given."""

    name: str
    annotation: Any
    default: Any

    @property
    def is_required(self) -> bool:
        return self.default is REQUIRED


@dataclass(frozen=True, slots=True)
class Signature:
    """A handler's parameters. `extras` is the annotation of `**kwargs`, None without them.

    `order` names the parameters that a call may give by position, None where the context stands.
    """

    parameters: tuple[Parameter, ...]
    extras: Any
    context: str | None
    is_context_positional: bool
    order: tuple[str | None, ...]

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return the payload of a submission that is written like a call.

        Raises:
            InvalidPayload: the context is given, or a member twice, or too many by position.
        """
        if len(args) > len(self.order):
            raise InvalidPayload(
                f"at most {len(self.order)} members can be given by position, not {len(args)}"
            )
        payload = dict(kwargs)
        for name, value in zip(self.order, args, strict=False):
            if name is None:
                raise InvalidPayload("the worker gives the context: give the members by name")
            if name in payload:
                raise InvalidPayload(f"the member {name} is given twice")
            payload[name] = value
        if self.context is not None and self.context in payload:
            raise InvalidPayload(f"the worker gives the context: leave {self.context} out")
        return payload


def read_signature(type_name: str, function: Callable[..., Any], localns: Mapping[str, Any]) -> Signature:
    """Return the signature of the handler of `type_name`.

    `localns` are names that its annotations may use beside the globals of its module.

    Raises:
        ConfigurationError: it cannot be called with a payload's members; the text says why.
    """
    refuse_unfit(type_name, function)
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError, NameError) as error:
        raise ConfigurationError(f"handler {type_name}: its signature cannot be read: {error}") from error
    namespace = getattr(inspect.unwrap(_function_of(function)), "__globals__", {})
    members: list[Parameter] = []
    order: list[str | None] = []
    context: inspect.Parameter | None = None
    extras: Any = None
    for parameter in signature.parameters.values():
        annotation = _resolve(type_name, parameter, namespace, localns)
        if is_context(annotation):
            context = _only_context(type_name, parameter, context)
            if parameter.kind is not inspect.Parameter.KEYWORD_ONLY:
                order.append(None)
        elif parameter.kind in (POSITIONAL_ONLY, VAR_POSITIONAL):
            shown = f"*{parameter.name}" if parameter.kind is VAR_POSITIONAL else f"{parameter.name} before /"
            raise ConfigurationError(
                f"handler {type_name}: {shown} has no name that a payload could give; "
                "take parameters by name, a list as one parameter"
            )
        elif parameter.kind is VAR_KEYWORD:
            extras = annotation
        else:
            members.append(Parameter(parameter.name, annotation, parameter.default))
            if parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD:
                order.append(parameter.name)
    return Signature(
        tuple(members),
        extras,
        context.name if context else None,
        context is not None and context.kind is POSITIONAL_ONLY,
        tuple(order),
    )


def refuse_unfit(type_name: str, function: object) -> None:
    """Refuse what is no plain function.

    Raises:
        ConfigurationError: it is a coroutine function, a generator function, a class or not callable.
    """
    inner = _function_of(function)
    if inspect.iscoroutinefunction(inner) or inspect.isasyncgenfunction(inner):
        raise ConfigurationError(
            f"handler {type_name} is async: handlers are plain functions, run in threads of forked workers; "
            "wrap the coroutine, as in `def handler(...): return asyncio.run(work(...))`"
        )
    if inspect.isgeneratorfunction(inner):
        raise ConfigurationError(f"handler {type_name} is a generator: return a value, do not yield")
    if isinstance(function, type) or not callable(function):
        raise ConfigurationError(f"handler {type_name}: {function!r} is no function")


def is_context(annotation: Any) -> bool:
    """Whether an annotation, resolved if that was possible, asks for the context."""
    if isinstance(annotation, str):
        return CONTEXT_TEXT.fullmatch(annotation.strip()) is not None
    if get_origin(annotation) is Annotated:
        return is_context(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        return any(is_context(option) for option in get_args(annotation))
    return isinstance(annotation, type) and issubclass(annotation, TaskContext)


def _function_of(function: object) -> Any:
    """Return the plain function inside a partial, a bound method or an object with `__call__`."""
    while isinstance(function, functools.partial):
        function = function.func
    if inspect.isroutine(function) or isinstance(function, type):
        return getattr(function, "__func__", function)
    return getattr(type(function), "__call__", function)  # noqa: B004 (the function itself is wanted)


def _only_context(
    type_name: str, parameter: inspect.Parameter, before: inspect.Parameter | None
) -> inspect.Parameter:
    if before is not None:
        raise ConfigurationError(
            f"handler {type_name}: {before.name} and {parameter.name} both ask for the context; keep one"
        )
    if parameter.kind in (VAR_POSITIONAL, VAR_KEYWORD):
        raise ConfigurationError(f"handler {type_name}: there is one context; take it as one parameter")
    return parameter


def _resolve(
    type_name: str, parameter: inspect.Parameter, globalns: dict[str, Any], localns: Mapping[str, Any]
) -> Any:
    annotation = parameter.annotation
    if annotation is REQUIRED:
        return Any
    holder = types.SimpleNamespace(__annotations__={parameter.name: annotation})
    try:
        hints = typing.get_type_hints(holder, globalns, dict(localns), include_extras=True)
    except Exception as error:
        # Evaluating an annotation is foreign code. A context imported for type checkers only is
        # common and known by its text.
        if isinstance(annotation, str) and is_context(annotation):
            return annotation
        raise ConfigurationError(
            f"handler {type_name}: the annotation {annotation!r} of {parameter.name} cannot be looked up "
            f"({type(error).__name__}: {error}); it must be importable at run time"
        ) from error
    return hints[parameter.name]
