"""What the OpenAPI document promises to clients, one line for each promise, and which of them a change breaks.

A promise is an operation, a parameter, the media type of a body or reply, a field of a schema, a value of an
enumeration. A break is a promise that is gone, or a parameter or field that requests must now have.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

Schema = Mapping[str, Any]
REQUIRED = " is required in requests"


def promises(document: Schema) -> set[str]:
    """The promises of a document."""
    schemas: Mapping[str, Schema] = document["components"]["schemas"]
    requested: set[str] = set()
    lines: set[str] = set()
    for path, operations in document["paths"].items():
        for verb, operation in operations.items():
            lines |= set(_of_operation(f"{verb.upper()} {path}", operation))
            for name in _references(operation.get("requestBody", {})):
                _reach(name, schemas, requested)
    for name, schema in schemas.items():
        lines |= set(_of_schema(name, schema, name in requested))
    return lines


def breaks(before: set[str], after: set[str]) -> list[str]:
    """The promises that the change breaks, each with what happened to it.

    A requirement of an operation or schema that is new breaks nothing, and one that is gone neither.
    """
    gone = [f"{line}: removed" for line in before - after if not line.endswith(REQUIRED)]
    owners = {_owner(line) for line in before}
    required = [line for line in after - before if line.endswith(REQUIRED) and _owner(line) in owners]
    return sorted([*gone, *required])


def _owner(line: str) -> str:
    """The operation or schema that a line is about."""
    match = re.match(r"(?:GET|PUT|POST|DELETE|HEAD|PATCH) [^ ]+|[^.= ]+", line)
    return match[0] if match else line


def _of_operation(name: str, operation: Schema) -> Iterator[str]:
    yield name
    for parameter in operation.get("parameters", []):
        place = f"{name} {parameter['in']} {parameter['name']}"
        yield place
        yield from (f"{place} = {value}" for value in _values(parameter["schema"]))
        if parameter.get("required"):
            yield place + REQUIRED
    for kind, content in operation.get("requestBody", {}).get("content", {}).items():
        yield f"{name} takes {kind}"
        yield from _of_schema(f"{name} {kind}", content.get("schema", {}), True)
    for status, reply in operation["responses"].items():
        if status < "400":
            yield from (f"{name} replies {status} {kind}" for kind in reply.get("content", {}))


def _of_schema(name: str, schema: Schema, requested: bool) -> Iterator[str]:
    yield from (f"{name} = {value}" for value in _values(schema))
    for field, described in schema.get("properties", {}).items():
        yield f"{name}.{field}"
        yield from (f"{name}.{field} = {value}" for value in _values(described))
        if requested and field in schema.get("required", []):
            yield f"{name}.{field}{REQUIRED}"


def _values(schema: Schema) -> list[str]:
    """The values of an enumeration, also of one that may be null or in a list."""
    inner = [*schema.get("anyOf", []), *([schema["items"]] if "items" in schema else [])]
    names = schema.get("enum", [schema["const"]] if "const" in schema else [])
    return [*map(str, names), *(value for part in inner for value in _values(part))]


def _references(part: object) -> Iterator[str]:
    if isinstance(part, Mapping):
        if isinstance(reference := part.get("$ref"), str):
            yield reference.rpartition("/")[2]
        for value in part.values():
            yield from _references(value)
    elif isinstance(part, list):
        for value in part:
            yield from _references(value)


def _reach(name: str, schemas: Mapping[str, Schema], reached: set[str]) -> None:
    """Add a schema and all that it refers to."""
    if name in reached or name not in schemas:
        return
    reached.add(name)
    for reference in _references(schemas[name].get("properties", {})):
        _reach(reference, schemas, reached)
