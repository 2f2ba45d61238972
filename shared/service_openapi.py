"""The parts of a model service's OpenAPI document that FastAPI cannot see, because it does not parse the bodies."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from fastapi import FastAPI

from shared.problems import MEDIA_TYPE
from shared.schemas.base import Contract
from shared.service_requests import DEADLINE_HEADER, MAX_DEADLINE_SECONDS

Schemas = dict[str, Any]  # JSON schema by name


def describe_request(body: type[Contract], schemas: Schemas) -> dict[str, Any]:
    """The description of an endpoint's body and deadline. Adds the body's schemas to `schemas`."""
    schema = body.model_json_schema(ref_template="#/components/schemas/{model}")
    schemas |= schema.pop("$defs", {})
    schemas[body.__name__] = schema
    reference = {"$ref": f"#/components/schemas/{body.__name__}"}
    seconds = {"type": "number", "exclusiveMinimum": 0, "maximum": MAX_DEADLINE_SECONDS}
    return {
        "requestBody": {"required": True, "content": {"application/json": {"schema": reference}}},
        "parameters": [{"name": DEADLINE_HEADER, "in": "header", "required": False, "schema": seconds}],
    }


def problem_responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """OpenAPI's `responses` for problem documents."""
    content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/ProblemDocument"}}}
    return {status: {"description": HTTPStatus(status).phrase, "content": content} for status in statuses}


def extend_openapi(app: FastAPI, schemas: Schemas) -> None:
    """Add `schemas`, as they are when the document is read, to an app's OpenAPI document."""
    plain_openapi = app.openapi

    def openapi() -> dict[str, Any]:
        document = plain_openapi()
        document.setdefault("components", {}).setdefault("schemas", {}).update(schemas)
        return document

    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI's documented way to extend the document
