"""Checks payloads against a handler's signature, strictly for JSON types.

The members of a payload are the handler's parameters. `"7"`, `true` and `7.0` are no `int`;
an `int` is a `float`; what JSON lacks (paths, dates, enumerations, models) is read from its
JSON form, as pydantic's strict mode does. Unknown members are refused unless the handler takes
`**kwargs`.

This runs before every attempt: under half a microsecond for a few plain members, parsing included,
which a check by hand after the quickest parser did not beat.
"""

from __future__ import annotations

import sys
import types
from typing import Any, NotRequired

import orjson
from pydantic import AliasChoices, ConfigDict, PydanticUserError, TypeAdapter, ValidationError
from pydantic.errors import PydanticInvalidForJsonSchema, PydanticSchemaGenerationError
from pydantic.fields import FieldInfo

from prefork_q import strict_json
from prefork_q.errors import ConfigurationError, Invalid, InvalidPayload
from prefork_q.signature import Parameter, Signature

if sys.version_info >= (3, 12):
    from typing import TypedDict
else:
    # Pydantic needs what later versions of Python brought, and brings this along.
    from typing_extensions import TypedDict

ERRORS_SHOWN = 100
"""Errors that one refusal lists: a long list of wrong values would make a longer answer."""

ERRORS_LISTED = 5_000
"""With more than that none is told alone."""

UNCHECKED = frozenset(
    ("metadata", "default", "expected", "serialization", "computed_fields", "json_schema_input_schema")
)
"""Parts of a core schema that no payload is checked with."""

JSON_NAMES: dict[type, str] = {
    str: "a string",
    int: "a whole number",
    float: "a number with a fraction",
    bool: "a boolean",
    type(None): "null",
    dict: "an object",
    list: "an array",
}


class PayloadSchema:
    """The check of one handler's payloads."""

    def __init__(self, type_name: str, signature: Signature) -> None:
        """Prepare the check.

        Raises:
            ConfigurationError: an annotation is no type that JSON can carry.
        """
        self._type = type_name
        self._signature = signature
        self._adapter = self._members_adapter()
        self._validate = self._adapter.validator.validate_json
        self._extras = self._extras_adapter()

    def arguments(self, body: bytes) -> dict[str, Any]:
        """Return the keyword arguments for a payload as JSON text. Defaults are left to the function.

        Raises:
            InvalidPayload: the payload does not fit; `errors` has a pointer for each thing to mend.
        """
        try:
            members: dict[str, Any] = self._validate(body, strict=True)
            if self._extras is not None:
                self._check_extras(self._extras, members)
            return members
        except ValidationError as error:
            raise self._refusal(body, error) from None
        except InvalidPayload:
            raise
        except Exception as error:
            # A validator of the user's own types may raise anything.
            raise InvalidPayload(
                f"the payload does not fit {self._type}: its check raised {type(error).__name__}: {error}"
            ) from error

    def _check_extras(self, adapter: TypeAdapter[Any], members: dict[str, Any]) -> None:
        if self._signature.context in members:
            pointer = f"/payload/{self._signature.context}"
            raise self._invalid(((pointer, self._unknown_detail()),), 1)
        if self._signature.extras is Any:
            return
        named = {parameter.name for parameter in self._signature.parameters}
        extras = {name: value for name, value in members.items() if name not in named}
        members.update(adapter.validate_json(orjson.dumps(extras), strict=True))

    def json_schema(self, *, ref_template: str = "#/$defs/{model}") -> dict[str, Any]:
        """Return the JSON Schema of a payload, entitled with the type; see pydantic for `ref_template`."""
        try:
            schema = self._adapter.json_schema(ref_template=ref_template)
            if self._extras is not None:
                extras = self._extras.json_schema(ref_template=ref_template)
                schema["additionalProperties"] = extras.get("additionalProperties", True)
                if "$defs" in extras:
                    schema["$defs"] = schema.get("$defs", {}) | extras["$defs"]
        except PydanticInvalidForJsonSchema:
            # A type that can be checked but not described: everything is allowed to be tried.
            return {"title": self._type, "type": "object"}
        for parameter in self._signature.parameters:
            default = _json_default(parameter)
            if default:
                schema["properties"][parameter.name] |= default
        return schema

    def _members_adapter(self) -> TypeAdapter[Any]:
        for parameter in self._signature.parameters:
            self._refuse_field(parameter)
        fields = {
            parameter.name: parameter.annotation
            if parameter.is_required
            else NotRequired[parameter.annotation]
            for parameter in self._signature.parameters
        }
        # Type checkers know only dictionaries that are spelled out.
        make: Any = TypedDict
        members = make(self._type, fields)
        members.__pydantic_config__ = ConfigDict(
            strict=True, extra="forbid" if self._signature.extras is None else "allow", title=self._type
        )
        return self._adapter_of(members)

    def _refuse_field(self, parameter: Parameter) -> None:
        name = parameter.name
        if isinstance(parameter.default, FieldInfo):
            raise ConfigurationError(
                f"handler {self._type}: a Field is no default of {name}: write "
                f"{name}: Annotated[..., Field(...)], and the default after it"
            )
        for one in getattr(parameter.annotation, "__metadata__", ()):
            if isinstance(one, FieldInfo) and _renames(one, name):
                raise ConfigurationError(
                    f"handler {self._type}: {name} has an alias: a payload's members are called as the "
                    "parameters are"
                )

    def _extras_adapter(self) -> TypeAdapter[Any] | None:
        extras: Any = self._signature.extras
        return None if extras is None else self._adapter_of(types.GenericAlias(dict, (str, extras)))

    def _adapter_of(self, annotation: Any) -> TypeAdapter[Any]:
        try:
            return _adapter(annotation)
        except (PydanticSchemaGenerationError, PydanticUserError, TypeError, NameError) as error:
            named = [p.name for p in self._signature.parameters if not _is_checkable(p.annotation)]
            raise ConfigurationError(
                f"handler {self._type}: no payload can give {', '.join(named) or 'a parameter'}: "
                f"{str(error).splitlines()[0]}"
            ) from error

    def _refusal(self, body: bytes, error: ValidationError) -> InvalidPayload:
        try:
            payload = orjson.loads(body)
        except orjson.JSONDecodeError as broken:
            return InvalidPayload(f"the payload is not JSON: {broken}", (("/payload", str(broken)),))
        if type(payload) is not dict:
            detail = f"must be an object, not {JSON_NAMES[type(payload)]}"
            return InvalidPayload(f"the payload of {self._type} {detail}", (("/payload", detail),))
        count = error.error_count()
        if count > ERRORS_LISTED:
            # To list them takes a kilobyte each.
            return self._invalid((("/payload", f"{count:,} values are wrong"),), 1)
        problems = error.errors(include_url=False, include_context=False)
        unique = dict.fromkeys(
            (_pointer(problem["loc"], payload, problem["type"]), self._detail(problem))
            for problem in problems[:ERRORS_SHOWN]
        )
        return self._invalid(tuple(unique), len(problems))

    def _invalid(self, problems: tuple[tuple[str, str], ...], count: int) -> InvalidPayload:
        pointer, detail = problems[0]
        more = f" (and {count - 1} more)" if count > 1 else ""
        return InvalidPayload(f"the payload does not fit {self._type}: {pointer}: {detail}{more}", problems)

    def _detail(self, problem: Any) -> str:
        kind = problem["type"]
        if kind == "missing" and len(problem["loc"]) == 1:
            return f"missing: {self._type} needs it"
        if kind == "extra_forbidden" and len(problem["loc"]) == 1:
            return self._unknown_detail()
        detail = str(problem["msg"]).removeprefix("Value error, ").removeprefix("Assertion failed, ")
        given = JSON_NAMES.get(type(problem.get("input")))
        return f"{detail}, not {given}" if kind.endswith("_type") and given else detail

    def _unknown_detail(self) -> str:
        names = ", ".join(parameter.name for parameter in self._signature.parameters)
        return f"unknown member: {self._type} takes {names or 'none'}"


def _adapter(annotation: Any) -> TypeAdapter[Any]:
    adapter: TypeAdapter[Any] = TypeAdapter(annotation)
    # A model whose own annotations cannot be looked up yet would only say so when it is used.
    adapter.rebuild(raise_errors=True)
    if _is_lazy(adapter.core_schema):
        raise TypeError("an Iterable is checked only while it is read: write list[...] or Sequence[...]")
    return adapter


def _is_lazy(schema: object) -> bool:
    """Whether a core schema of pydantic has a part that is checked when it is used."""
    if isinstance(schema, dict):
        # Others are maps of names to schemas, and any name may be in them.
        kind = schema.get("type")
        skipped = UNCHECKED if isinstance(kind, str) else ()
        return kind == "generator" or any(
            _is_lazy(part) for name, part in schema.items() if name not in skipped
        )
    return isinstance(schema, (list, tuple)) and any(map(_is_lazy, schema))


def _renames(field: FieldInfo, name: str) -> bool:
    """Whether a payload has to call a parameter otherwise. More names beside its own are fine."""
    alias = field.validation_alias or field.alias
    own = alias.choices[0] if isinstance(alias, AliasChoices) else alias
    return own not in (None, name)


def _is_checkable(annotation: Any) -> bool:
    try:
        _adapter(annotation)
    except (PydanticSchemaGenerationError, PydanticUserError, TypeError, NameError):
        return False
    return True


def _json_default(parameter: Parameter) -> dict[str, Any]:
    if parameter.is_required:
        return {}
    try:
        return {"default": orjson.loads(strict_json.encode(parameter.default))}
    except Invalid:
        return {}


def _pointer(location: tuple[int | str, ...], payload: Any, kind: str) -> str:
    """Return where in the payload an error is.

    Pydantic's locations also name the options of a union and the like: a step that leads
    nowhere in the payload is one of those.
    """
    pointer, here = "/payload", payload
    for n, step in enumerate(location):
        is_member = isinstance(here, dict) and step in here
        is_item = isinstance(here, list) and isinstance(step, int) and 0 <= step < len(here)
        is_missing = kind == "missing" and n == len(location) - 1
        if is_member or is_item:
            here = here[step]
        elif not is_missing:
            continue
        pointer += f"/{strict_json.escape_pointer(step)}"
    return pointer
