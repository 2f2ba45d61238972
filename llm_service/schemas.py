"""Check the JSON schemas of requests: a schema must bound the length of every reply."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError
from referencing import Registry

from shared.problems import InvalidInput

MAX_DEPTH = 40  # of objects and lists in the schema; validators recurse into each
MAX_NODES = 2_000  # objects and lists in the schema; a grammar grows with them
MAX_BYTES = 256 * 1024

# For each type, the keywords that bound the length of a reply.
_BOUNDS = {
    "string": ("maxLength",),
    "array": ("maxItems", "items"),
    "integer": ("minimum", "maximum"),
    "number": ("minimum", "maximum"),
    "boolean": (),
    "null": (),
}
_SUPPORTED = frozenset(
    {"type", "enum", "const", "anyOf", "oneOf", "properties", "required", "additionalProperties", "items", "minItems"}
    | {"maxItems", "minLength", "maxLength", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}
    | {"$schema", "title", "description", "default", "examples"}
)


def build_validator(schema: Mapping[str, Any]) -> Draft202012Validator:
    """Return a validator for replies; raises InvalidInput, naming the path, unless the schema is valid and bounded."""
    _check_size(schema)
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        raise InvalidInput(f"json_schema{_place(error.absolute_path)}: {error.message[:300]}") from error
    _check_bounded(schema, "json_schema")
    return Draft202012Validator(schema, registry=Registry())  # an empty registry, which fetches nothing


def _check_size(schema: Mapping[str, Any]) -> None:
    level: list[Any] = [schema]
    nodes = depth = 0
    while level:
        nodes += len(level)
        depth += 1
        if depth > MAX_DEPTH or nodes > MAX_NODES:
            raise InvalidInput(
                f"json_schema has more than {MAX_DEPTH} levels or {MAX_NODES:,} objects and lists; ask for less"
            )
        inner = [list(node.values()) if isinstance(node, Mapping) else node for node in level]
        level = [value for values in inner for value in values if isinstance(value, Mapping | list)]
    try:
        text = json.dumps(schema, allow_nan=False)
    except ValueError as error:
        raise InvalidInput("json_schema: a number is infinite, NaN or of thousands of digits") from error
    if len(text) > MAX_BYTES:
        raise InvalidInput(f"json_schema has more than {MAX_BYTES:,} bytes; ask for less")


def _check_bounded(schema: object, place: str) -> None:
    if not isinstance(schema, Mapping):
        raise InvalidInput(f"{place}: `true` and `false` do not bound the reply; write out a schema here")
    if unsupported := sorted(set(schema) - _SUPPORTED):
        raise InvalidInput(f"{place}: {unsupported[0][:50]} is not supported; write the schema without it")
    if "const" in schema or "enum" in schema:
        return
    for keyword in ("anyOf", "oneOf"):
        if keyword in schema:
            for index, option in enumerate(schema[keyword]):
                _check_bounded(option, f"{place}.{keyword}[{index}]")
            return
    kind = schema.get("type")
    if kind == "object":
        _check_object(schema, place)
        return
    if not isinstance(kind, str) or kind not in _BOUNDS:
        raise InvalidInput(f"{place}: give one `type`, or `enum`, `const` or `anyOf`")
    for keyword in _BOUNDS[kind]:
        if keyword not in schema:
            raise InvalidInput(f"{place}: {kind} needs `{keyword}`, which bounds the reply")
    if kind == "array":
        _check_bounded(schema["items"], f"{place}.items")


def _check_object(schema: Mapping[str, Any], place: str) -> None:
    if schema.get("additionalProperties") is not False:
        raise InvalidInput(f"{place}: an object needs `additionalProperties: false`, which bounds the reply")
    for name, child in schema.get("properties", {}).items():
        _check_bounded(child, f"{place}.properties.{name}")


def _place(path: Any) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
