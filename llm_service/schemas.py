"""Which JSON schemas a model may be asked to satisfy: those whose every reply has an end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError

from shared.problems import InvalidInput

# For each type, the keywords without which a reply could go on for ever.
_BOUNDS = {
    "string": ("maxLength",),
    "array": ("maxItems", "items"),
    "integer": ("minimum", "maximum"),
    "number": ("minimum", "maximum"),
    "boolean": (),
    "null": (),
}
_UNSUPPORTED = ("$ref", "$dynamicRef", "allOf", "not", "if", "patternProperties", "prefixItems", "contains")


def checked_validator(schema: Mapping[str, Any]) -> Draft202012Validator:
    """A validator for replies; raises InvalidInput, naming the place, unless the schema is valid and bounded."""
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        raise InvalidInput(f"json_schema{_place(error.absolute_path)}: {error.message}") from error
    _check_bounded(schema, "json_schema")
    return Draft202012Validator(schema)


def _check_bounded(schema: object, place: str) -> None:
    if not isinstance(schema, Mapping):
        raise InvalidInput(f"{place}: `true` and `false` bound nothing; write the schema of this place out")
    for keyword in _UNSUPPORTED:
        if keyword in schema:
            raise InvalidInput(f"{place}: {keyword} is not supported; write the schema out without it")
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
            raise InvalidInput(f"{place}: {kind} needs `{keyword}`, so that every reply has an end")
    if kind == "array":
        _check_bounded(schema["items"], f"{place}.items")


def _check_object(schema: Mapping[str, Any], place: str) -> None:
    if schema.get("additionalProperties") is not False:
        raise InvalidInput(f"{place}: an object needs `additionalProperties: false`, so that every reply has an end")
    for name, child in schema.get("properties", {}).items():
        _check_bounded(child, f"{place}.properties.{name}")


def _place(path: Any) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
