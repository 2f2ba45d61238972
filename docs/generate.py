"""Writes the pages that follow from the code: `python -m docs.generate`. A test fails when they are not current.

`reference/parameters.md` comes from the methods' parameter models, `reference/http-operations.md` from the OpenAPI
snapshot, `reference/service-operations.md` from the endpoints of the model services, `reference/profile-keys.md` from
the schema of profiles, pages on settings, commands, shipped profiles and problems from `docs.program_pages`. The
drawing of the gateway comes from `docs.places`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic.json_schema import models_json_schema

from docs.places import places_svg
from docs.program_pages import commands_page, problems_page, profiles_page, row, settings_page
from gateway.methods import METHODS
from shared.endpoints import INFO, MODELS, Endpoint, Services
from shared.profiles import Profile, load_profile, shipped_profiles
from shared.schemas.base import Contract

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
SNAPSHOT = DOCS / "reference" / "openapi.json"
PROBLEM = "ProblemDocument"
BOUNDS = {"minimum": "≥ {}", "exclusiveMinimum": "> {}", "maximum": "≤ {}", "exclusiveMaximum": "< {}"}
COUNTS = {"maxItems": "at most {} items", "maxLength": "at most {} characters"}

Schema = Mapping[str, Any]


def parameters_page() -> str:
    """The parameters of every method, with their defaults, ranges and descriptions."""
    return "\n".join(_parameters()) + "\n"


def operations_page() -> str:
    """Every operation of the public HTTP API, and every schema."""
    document: Schema = json.loads(SNAPSHOT.read_text(encoding="utf-8"))
    return "\n".join([*_operations(document["paths"]), *_schemas(document["components"]["schemas"])]) + "\n"


def service_operations_page() -> str:
    """Every operation of the model services, and every schema."""
    return "\n".join(_service_operations()) + "\n"


def profile_keys_page() -> str:
    """Every key of a profile."""
    schema = Profile.model_json_schema()
    introduction = (
        "# Keys of a profile\n",
        "Generated from the code by `python -m docs.generate`. [Profiles](profiles.md) explains how to write one,",
        "[`example-profile.toml`](example-profile.toml) shows one. A table that refers to another has its keys.\n",
    )
    tables = (schema["description"] + "\n", *_table(schema, schema["$defs"]), *_schemas(schema["$defs"], "Tables"))
    return "\n".join([*introduction, *tables]) + "\n"


PAGES: dict[str, Callable[[], str]] = {
    "reference/parameters.md": parameters_page,
    "reference/http-operations.md": operations_page,
    "reference/service-operations.md": service_operations_page,
    "reference/profile-keys.md": profile_keys_page,
    "reference/problem-types.md": problems_page,
    "reference/settings.md": settings_page,
    "reference/commands.md": commands_page,
    "reference/shipped-profiles.md": profiles_page,
    "images/gateway-places.svg": places_svg,
}


def whole_pages() -> list[str]:
    """The pages that have nothing written by hand."""
    return [name for name in PAGES if name.startswith("reference/")]


def _parameters() -> Iterator[str]:
    yield "# Parameters of methods\n"
    yield "Generated from the code by `python -m docs.generate`. A job sets them as `parameters` of a method, and"
    yield "`contrafact submit` by `--set NAME=VALUE`. A profile may have other defaults; they stand under each table."
    yield "[Methods](methods.md) explains the methods.\n"
    for name, method in METHODS.items():
        schema = method.parameters.model_json_schema()
        yield f"## `{name}`\n"
        yield from _table(schema, schema.get("$defs", {}))
        yield from _profile_defaults(name)
    nested: dict[str, Any] = {}
    for method in METHODS.values():
        nested |= method.parameters.model_json_schema().get("$defs", {})
    for title, schema in sorted(nested.items()):
        yield f"## {title}\n"
        if description := schema.get("description"):
            yield description + "\n"
        yield from _table(schema, nested)


def _profile_defaults(method: str) -> Iterator[str]:
    for profile in shipped_profiles():
        chosen = load_profile(profile).methods.get(method, {})
        short_parameters = [
            f"`{name}` = `{json.dumps(value)}`" for name, value in sorted(chosen.items()) if _is_short(value)
        ]
        if short_parameters:
            yield f"* Profile `{profile}`: {', '.join(short_parameters)}."
    yield ""


def _is_short(value: object) -> bool:
    """Thresholds are tables; they stay in the profile."""
    return not isinstance(value, Mapping)


def _table(schema: Schema, definitions: Mapping[str, Schema]) -> Iterator[str]:
    properties: Mapping[str, Schema] = schema.get("properties", {})
    if not properties:
        yield "No parameters.\n"
        return
    required = schema.get("required", [])
    yield "| name | default | values | description |"
    yield "|---|---|---|---|"
    for name, described in properties.items():
        default = "required" if name in required else _default(described)
        yield row(f"`{name}`", default, _values(described, definitions), _description(described))
    yield ""


def _description(schema: Schema) -> str:
    """Of a value, or of the type that an optional value has."""
    choices = [choice["description"] for choice in schema.get("anyOf", ()) if "description" in choice]
    return str(schema.get("description") or "; ".join(choices))


def _default(schema: Schema) -> str:
    if "default" not in schema:
        return "`{}`" if schema.get("type") == "object" else ""
    return f"`{json.dumps(schema['default'], ensure_ascii=False)}`"


def _values(schema: Schema, definitions: Mapping[str, Schema]) -> str:
    """The type of a value and its limits, in words; a schema of its own is a link."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return (
            _values(definitions[name], definitions)
            if "properties" not in definitions[name]
            else f"[{name}](#{name.lower()})"
        )
    if choices := schema.get("anyOf") or schema.get("oneOf"):
        return " or ".join(dict.fromkeys(_values(choice, definitions) for choice in choices))
    if "const" in schema or "enum" in schema:
        return ", ".join(f"`{json.dumps(value)}`" for value in schema.get("enum", [schema.get("const")]))
    limits = [words.format(schema[key]) for key, words in (BOUNDS | COUNTS).items() if key in schema]
    return ", ".join([_type(schema, definitions), *limits])


def _type(schema: Schema, definitions: Mapping[str, Schema]) -> str:
    kind = str(schema.get("type", "any"))
    if kind == "array":
        items = schema.get("items") or {}
        return f"list of {_values(items, definitions)}" if items else "list"
    if kind == "object" and isinstance(schema.get("additionalProperties"), Mapping):
        return f"object of {_values(schema['additionalProperties'], definitions)}"
    return {"date-time": "time", "binary": "file"}.get(schema.get("format", ""), kind)


def _operations(paths: Mapping[str, Mapping[str, Schema]]) -> Iterator[str]:
    yield "# HTTP operations\n"
    yield "Generated from the OpenAPI document by `python -m docs.generate`. [HTTP API](http-api.md) explains how to"
    yield "use them. The document is [`openapi.json`](openapi.json); a running gateway serves it, too. Every error is a"
    yield f"[{PROBLEM}](#{PROBLEM.lower()}). These can come from every operation:\n"
    common = {status: reply for status, reply in paths["/jobs"]["get"]["responses"].items() if status >= "400"}
    yield from _replies(common)
    for path, verbs in paths.items():
        for verb, operation in verbs.items():
            yield f"## `{verb.upper()} {path}`\n"
            yield operation["description"] + "\n"
            yield from _inputs(operation.get("parameters", []))
            yield from _body(operation.get("requestBody", {}))
            replies = operation["responses"].items()
            yield from _replies({status: reply for status, reply in replies if reply != common.get(status)})


def _service_operations() -> Iterator[str]:
    endpoints = [endpoint for endpoint in vars(Services).values() if isinstance(endpoint, Endpoint)]
    contracts: dict[type[Contract], None] = {}  # in order, each once
    yield "# Operations of the model services\n"
    yield "Generated from the code by `python -m docs.generate`. [Model services](services.md) explains their"
    yield "use. A running service serves its schemas at `/openapi.json`. Images are base64 PNG in the field `png`.\n"
    yield "| service | operation | request | reply |"
    yield "|---|---|---|---|"
    for endpoint in endpoints:
        contracts |= {endpoint.request: None, endpoint.reply: None}
        request, reply = (f"[{kind.__name__}](#{kind.__name__.lower()})" for kind in (endpoint.request, endpoint.reply))
        yield row(endpoint.service, f"`POST {endpoint.path}`", request, reply)
    for service, description in (("evaluator_service", MODELS), ("all", INFO)):
        contracts[description.reply] = None
        reply = description.reply.__name__
        yield row(service, f"`GET {description.path}`", "", f"[{reply}](#{reply.lower()})")
    yield ""
    _, document = models_json_schema([(contract, "validation") for contract in contracts])
    yield from _schemas(document["$defs"])


def _inputs(parameters: Sequence[Schema]) -> Iterator[str]:
    shown = [parameter for parameter in parameters if parameter["in"] != "path"]
    if not shown:
        return
    yield "| parameter | in | values | description |"
    yield "|---|---|---|---|"
    for parameter in shown:
        values = _values(parameter["schema"], {}).replace(" or null", "")
        yield row(f"`{parameter['name']}`", parameter["in"], values, parameter.get("description", ""))
    yield ""


def _body(body: Schema) -> Iterator[str]:
    for kind, content in body.get("content", {}).items():
        schema = content.get("schema", {})
        if "$ref" in schema:
            yield f"Body `{kind}`: {_linked(schema)}.\n"
            continue
        yield f"Body `{kind}`:\n"
        if "properties" not in schema:
            continue
        yield "| part | values | description |"
        yield "|---|---|---|"
        for name, part in schema["properties"].items():
            yield row(f"`{name}`", _linked(part), part.get("description", ""))
        yield ""


def _linked(schema: Schema) -> str:
    """As `_values`, where every reference is to a schema of the page."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "items" in schema:
        return f"list of {_linked(schema['items'])}"
    return _values(schema, {})


def _replies(responses: Mapping[str, Schema]) -> Iterator[str]:
    yield "| status | reply |"
    yield "|---|---|"
    for status, reply in sorted(responses.items()):
        kinds = reply.get("content", {})
        schema = kinds.get("application/json", {}).get("schema")
        if status >= "400":
            text = reply["description"]
        elif schema:
            text = _linked(schema)
        else:
            text = ", ".join(f"`{kind}`" for kind in kinds) or "no body"
        yield row(status, text)
    yield ""


def _schemas(schemas: Mapping[str, Schema], title: str = "Schemas") -> Iterator[str]:
    yield f"## {title}\n"
    for name, schema in sorted(schemas.items()):
        if "properties" not in schema:
            continue
        yield f"### {name}\n"
        if description := schema.get("description"):
            yield description + "\n"
        yield from _table(schema, schemas)


def main() -> None:
    """Write all pages."""
    for name, page in PAGES.items():
        (DOCS / name).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
