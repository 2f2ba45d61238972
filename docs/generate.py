"""Writes the pages that follow from the code: `python -m docs.generate`. A test fails when they are not current.

`reference/parameters.md` comes from the methods' parameter models, `reference/http-operations.md` from the OpenAPI
document, `reference/profile-keys.md` from the schema of profiles, pages on settings, commands, shipped profiles and
problems from `docs.program_pages`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from docs.program_pages import commands_page, problems_page, profiles_page, row, settings_page
from gateway.app import openapi_document
from gateway.methods import METHODS
from shared.profiles.profile import Profile, load_profile, shipped_profiles

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
GATEWAY = "http://127.0.0.1:8000"
BOUNDS = {"minimum": "≥ {}", "exclusiveMinimum": "> {}", "maximum": "≤ {}", "exclusiveMaximum": "< {}"}
COUNTS = {"maxItems": "at most {} items", "maxLength": "at most {} characters"}

Schema = Mapping[str, Any]


def parameters_page() -> str:
    """The parameters of every method, with their defaults, ranges and descriptions."""
    return "\n".join(_parameters()) + "\n"


def operations_page() -> str:
    """How to read the OpenAPI document, and every operation of it."""
    return "\n".join(_operations(openapi_document()["paths"])) + "\n"


def profile_keys_page() -> str:
    """Every key of a profile."""
    schema = Profile.model_json_schema()
    introduction = (
        "# Keys of a profile\n",
        "Generated from the code by `python -m docs.generate`. [Profiles](profiles.md) explains how to write one,",
        "[`example-profile.toml`](example-profile.toml) shows one. A table that refers to another has its keys.\n",
    )
    tables = (schema["description"] + "\n", *_table(schema, schema["$defs"]), *_tables(schema["$defs"]))
    return "\n".join([*introduction, *tables]) + "\n"


PAGES: dict[str, Callable[[], str]] = {
    "reference/parameters.md": parameters_page,
    "reference/http-operations.md": operations_page,
    "reference/profile-keys.md": profile_keys_page,
    "reference/problem-types.md": problems_page,
    "reference/settings.md": settings_page,
    "reference/commands.md": commands_page,
    "reference/shipped-profiles.md": profiles_page,
}


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
    yield "Look up an operation of the gateway. Generated from the OpenAPI document by `python -m docs.generate`. [HTTP"
    yield "API](http-api.md) explains how to use the operations.\n"
    yield "Parameters, bodies, replies and their schemas are in the OpenAPI 3.1 document. A gateway serves it at"
    yield f"<{GATEWAY}/openapi.json>, without a key. Open it in any viewer of OpenAPI documents, generate a client"
    yield "from it, or print what you need:\n"
    yield "```console"
    yield f"$ curl -s {GATEWAY}/openapi.json | jq '.components.schemas.JobSpec'"
    yield f"""$ curl -s {GATEWAY}/openapi.json | jq '.paths["/jobs/{{job}}/results"].get.parameters'"""
    yield "```\n"
    yield "Errors are `ProblemDocument`s. Every operation can answer these:\n"
    yield "| status | reason |"
    yield "|---|---|"
    for status, reply in sorted(paths["/jobs"]["get"]["responses"].items()):
        if status >= "400":
            yield row(status, reply["description"])
    for tag, operations in _by_tag(paths).items():
        yield f"\n## {tag.capitalize()}\n"
        yield "| operation | what it does |"
        yield "|---|---|"
        yield from (row(f"`{name}`", about) for name, about in operations.items())


def _by_tag(paths: Mapping[str, Mapping[str, Schema]]) -> dict[str, dict[str, str]]:
    """The first paragraph of each operation's description, by tag and name."""
    tagged: dict[str, dict[str, str]] = {}
    for path, verbs in paths.items():
        for verb, operation in verbs.items():
            about = operation["description"].partition("\n\n")[0]
            tagged.setdefault(operation["tags"][0], {})[f"{verb.upper()} {path}"] = about
    return tagged


def _tables(schemas: Mapping[str, Schema]) -> Iterator[str]:
    yield "## Tables\n"
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
