"""The OpenAPI document of an API, out of the handlers that are registered and the table of operations."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cached_property
from importlib.metadata import version
from typing import Any, Final

import orjson

from prefork_q.api.answers import Answer, Route
from prefork_q.api.operations import EVERYWHERE, NEEDING_TOKENS, OPERATIONS, SAMPLES, Operation
from prefork_q.api.problems import KINDS, PHRASES
from prefork_q.api.reading import Environ, read_query
from prefork_q.api.samples import sample
from prefork_q.api.shapes import COMPONENTS, INTEGER, Schema, options, ref
from prefork_q.api.submissions import Handlers
from prefork_q.errors import InvalidPayload
from prefork_q.handler import Handler
from prefork_q.strict_json import encode
from prefork_q.tokens import SCOPES

PROBLEM: Final = "application/problem+json"
PAYLOADS: Final = "payload."
"""Begins the names of the components that come from handlers."""


class Description:
    """`GET /openapi.json`."""

    def __init__(self, handlers: Handlers, others: Iterable[Route], *, has_tokens: bool) -> None:
        """Describe the endpoints of `others`, and this one."""
        self._handlers = handlers
        self._scopes = scopes_of([*others, *self.routes()])
        self._has_tokens = has_tokens

    def routes(self) -> list[Route]:
        return [Route("GET", "/openapi.json", self.show, "read", needs_redis=False)]

    def show(self, environ: Environ) -> Answer:
        read_query(environ, ())
        return Answer(200, self._body)

    @property
    def document(self) -> dict[str, Any]:
        """The document; each time another, which may be changed."""
        return document(self._handlers, self._scopes, has_tokens=self._has_tokens)

    @cached_property
    def _body(self) -> bytes:
        # Made when it is asked for: it takes as much memory as all the rest of an idle api process.
        return orjson.dumps(self.document)


def scopes_of(routes: Iterable[Route]) -> dict[tuple[str, str], str | None]:
    """Return the scopes of endpoints, by method and path."""
    return {(route.method, template(route.rule)): route.scope for route in routes}


def template(rule: str) -> str:
    """Return a route's rule as OpenAPI writes a path: /tasks/{id}."""
    return re.sub(r"<(\w+)[^>]*>", r"{\1}", rule)


def document(
    handlers: Handlers, scopes: Mapping[tuple[str, str], str | None], *, has_tokens: bool = False
) -> dict[str, Any]:
    """Return the document. `scopes` are those of the endpoints, by method and path."""
    components, new_task = of_handlers(handlers)
    paths: dict[str, Any] = {}
    for (method, path), operation in OPERATIONS.items():
        scope = scopes.get((method, path))
        needed = scope if has_tokens else None
        paths.setdefault(path, {})[method.lower()] = of_operation(operation, needed)
    told: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {
            "title": "prefork-q",
            "version": version("prefork-q"),
            "summary": "A task queue on Redis with prefork workers.",
            "license": {"name": "MIT", "identifier": "MIT"},
        },
        "servers": [{"url": "/"}],
        "tags": [{"name": name} for name in ("tasks", "dead", "queues", "service")],
        "paths": paths,
        "components": {
            "schemas": {**with_samples(COMPONENTS), "NewTask": new_task, **components},
            "responses": {str(status): problem_response(status) for status in _statuses()},
        },
    }
    if has_tokens:
        told["components"]["securitySchemes"] = {
            "token": {"type": "http", "scheme": "bearer", "description": f"Scopes: {', '.join(SCOPES)}."}
        }
    return told


def of_operation(operation: Operation, scope: str | None) -> dict[str, Any]:
    statuses = sorted({*EVERYWHERE, *operation.problems, *(NEEDING_TOKENS if scope else ())})
    told: dict[str, Any] = {
        "operationId": operation.id,
        "summary": operation.summary,
        "tags": [operation.tag],
        "responses": {
            **{str(status): answer for status, answer in operation.answers.items()},
            **{str(status): {"$ref": f"#/components/responses/{status}"} for status in statuses},
        },
    }
    description = [operation.description] if operation.description else []
    if scope:
        told["security"] = [{"token": [scope]}]
        description.append(f"Needs the scope `{scope}`.")
    if description:
        told["description"] = " ".join(description)
    if operation.parameters:
        told["parameters"] = list(operation.parameters)
    if operation.body:
        told["requestBody"] = operation.body
    return told


def _statuses() -> list[int]:
    asked = {status for operation in OPERATIONS.values() for status in operation.problems}
    return sorted({*asked, *EVERYWHERE, *NEEDING_TOKENS})


def problem_response(status: int) -> dict[str, Any]:
    kinds = [f"{kind.title} (`{word}`)" for word, kind in KINDS.items() if kind.status == status]
    phrase = PHRASES.get(status)
    told: dict[str, Any] = {
        "description": f"{phrase + ': ' if phrase else ''}{'; '.join(kinds)}.",
        "content": {PROBLEM: {"schema": ref("Problem")}},
    }
    if status == 503:
        told["headers"] = {
            "Retry-After": {
                "required": True,
                "description": "Seconds.",
                "schema": {"type": "integer", "minimum": 1},
            }
        }
    if status == 401:
        told["headers"] = {"WWW-Authenticate": {"required": True, "schema": {"type": "string"}}}
    return told


def of_handlers(handlers: Handlers) -> tuple[dict[str, Schema], Schema]:
    """Return the components for the handlers, and what a new task may be."""
    components: dict[str, Schema] = {}
    variants, mapping, examples = [], {}, []
    for handler in handlers.values():
        name = PAYLOADS + component_name(handler.name)
        payload = handler.json_schema(ref_template=f"#/components/schemas/{name}.{{model}}")
        definitions = {f"{name}.{model}": schema for model, schema in payload.pop("$defs", {}).items()}
        components |= {each: strict(schema) for each, schema in definitions.items()}
        payload = components[name] = strict(payload)
        variant = f"task.{component_name(handler.name)}"
        components[variant] = new_task_of(handler, ref(name), is_required=bool(payload.get("required")))
        example = example_of(handler, payload, components)
        if example is not None:
            components[variant]["examples"] = [example]
            examples.append(example)
        variants.append(ref(variant))
        mapping[handler.name] = f"#/components/schemas/{variant}"
    if not variants:
        return components, {"not": {}, "description": "No handlers are known: nothing is accepted."}
    new_task: Schema = {"oneOf": variants, "discriminator": {"propertyName": "type", "mapping": mapping}}
    return components, new_task | ({"examples": examples[:3]} if examples else {})


def new_task_of(handler: Handler[..., Any], payload: Schema, *, is_required: bool) -> Schema:
    schema: Schema = {
        "type": "object",
        "properties": {
            "type": {"type": "string", "const": handler.name},
            "payload": payload,
            **options(handler.queue, handler.max_attempts, handler.timeout),
        },
        "required": ["type", "payload"] if is_required else ["type"],
        "additionalProperties": False,
        "not": {"required": ["delay_s", "run_at"]},
    }
    if handler.function.__doc__:
        schema["description"] = handler.function.__doc__.strip().partition("\n")[0]
    return schema


def example_of(handler: Handler[..., Any], payload: Schema, components: Mapping[str, Schema]) -> Any:
    """Return a request for a task of this type that is accepted; None if none was found."""
    made = sample(payload, components)
    try:
        handler.validate(encode(made))
    except (InvalidPayload, ValueError):
        return None
    return {"type": handler.name, "payload": made}


def component_name(type: str) -> str:
    """Return a type as the name of a component may be written; two types never get the same."""
    return re.sub(r"[^A-Za-z0-9._]", lambda match: f"-{ord(match[0]):02x}", type)


def strict(schema: Any) -> Any:
    """Return a schema as the API reads JSON: integers have 64 bits, and anything is anything JSON."""
    if isinstance(schema, list):
        return [strict(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    told = {
        name: {key: strict(value) for key, value in content.items()}
        if name in ("properties", "patternProperties", "$defs")
        else content
        if name in ("default", "const", "enum", "examples")
        else strict(content)
        for name, content in schema.items()
    }
    if told.get("type") == "integer":
        told = INTEGER | told
    if "properties" in told:
        told["properties"] = {name: _anything(value) for name, value in told["properties"].items()}
    for name in ("items", "additionalProperties"):
        if told.get(name) == {} or told.get(name) is True:
            told[name] = ref("Json")
    return told


def _anything(schema: Schema) -> Schema:
    """Return a schema that says nothing of the value as one that says what JSON is."""
    says = {*schema} - {"title", "description", "default", "deprecated", "examples"}
    return schema if says else ref("Json") | schema


def with_samples(components: Mapping[str, Schema]) -> dict[str, Schema]:
    return {
        name: schema | ({"examples": [SAMPLES[name]]} if name in SAMPLES else {})
        for name, schema in components.items()
    }
