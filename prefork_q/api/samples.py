"""Makes an example of what a JSON Schema describes: the plainest value of each member that must be there.

It knows what pydantic writes, and no more: whoever uses an example checks first that it fits.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

Schema = Mapping[str, Any]

DEPTH: Final = 8
"""Levels after which a schema that refers to itself is given up."""

FORMATS: Final = {
    "date-time": "2026-11-29T15:00:00Z",
    "date": "2026-11-29",
    "time": "15:00:00Z",
    "duration": "PT30S",
    "uuid": "01a227de-f58a-705f-8f6c-184f97b612fe",
    "uri": "https://example.org/",
    "email": "somebody@example.org",
    "ipv4": "192.0.2.1",
    "ipv6": "2001:db8::1",
    "path": "folder/file",
    "file-path": "folder/file",
    "directory-path": "folder",
    "binary": "data",
    "decimal": "1.5",
}


def sample(schema: Schema, definitions: Mapping[str, Schema], depth: int = 0) -> Any:
    """Return an example. `definitions` are the schemas that `$ref` names by its last part."""
    if depth > DEPTH:
        return None
    for word in ("default", "const"):
        if word in schema:
            return schema[word]
    for word in ("examples", "enum"):
        if schema.get(word):
            return schema[word][0]
    if "$ref" in schema:
        return sample(definitions.get(schema["$ref"].rpartition("/")[2], {}), definitions, depth + 1)
    for word in ("anyOf", "oneOf", "allOf"):
        if schema.get(word):
            return sample(schema[word][0], definitions, depth + 1)
    return _of_type(schema, definitions, depth)


def _of_type(schema: Schema, definitions: Mapping[str, Schema], depth: int) -> Any:
    kind = schema.get("type")
    if isinstance(kind, list):
        kind = kind[0]
    match kind:
        case "object":
            properties, required = schema.get("properties", {}), schema.get("required", [])
            return {name: sample(properties.get(name, {}), definitions, depth + 1) for name in required}
        case "array":
            if "prefixItems" in schema:
                return [sample(item, definitions, depth + 1) for item in schema["prefixItems"]]
            return [sample(schema.get("items", {}), definitions, depth + 1)] * schema.get("minItems", 0)
        case "string":
            return _text(schema)
        case "integer" | "number":
            return _number(schema)
        case "boolean":
            return True
        case "null":
            return None
    return "text"


def _text(schema: Schema) -> str:
    text = FORMATS.get(schema.get("format", ""), "text")
    least, most = schema.get("minLength", 0), schema.get("maxLength", len(text))
    return text if least <= len(text) <= most else ("x" * max(least, 1))[: max(least, most)]


def _number(schema: Schema) -> int | float:
    number: int | float = schema.get("minimum", 1)
    if "exclusiveMinimum" in schema:
        number = schema["exclusiveMinimum"] + 1
    number = max(number, 1) if "minimum" in schema else number
    most = schema.get("maximum", schema.get("exclusiveMaximum", number + 1) - 1)
    number = min(number, most)
    step = schema.get("multipleOf")
    return number if step is None else -(-number // step) * step
