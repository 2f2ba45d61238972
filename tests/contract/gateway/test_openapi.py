"""The OpenAPI document: a complete snapshot with valid examples.

After a change that is meant, write the new snapshot with `python -m tests.contract.gateway.test_openapi`.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest

from gateway.api.examples import EXAMPLES
from shared.schemas.base import Contract
from tests.support.gateway_under_test import serve_gateway
from tests.support.paths import REPOSITORY

SNAPSHOT = Path(__file__).parent / "openapi.json"
PROMISED = {
    "POST /jobs", "GET /jobs", "GET /jobs/{job}", "GET /jobs/{job}/plan",
    "POST /jobs/{job}/cancel", "POST /jobs/{job}/retry", "DELETE /jobs/{job}",
    "GET /jobs/{job}/results", "GET /jobs/{job}/results/{counterfactual}", "GET /jobs/{job}/events",
    "GET /jobs/{job}/failure-points", "GET /jobs/{job}/report", "GET /jobs/{job}/export",
    "PUT /jobs/{job}/reviews/{counterfactual}", "GET /jobs/{job}/reviews", "POST /jobs/{job}/report",
    "GET /jobs/{job}/calibration",
    "POST /jobs/{job}/confirmation",
    "POST /jobs/{job}/doses",
    "POST /suites", "GET /suites", "GET /suites/{suite}", "DELETE /suites/{suite}",
    "POST /suites/{suite}/runs", "GET /suites/{suite}/runs/{run}", "GET /suites/{suite}/runs/{run}/results",
    "PUT /images/{digest}", "GET /images/{digest}", "HEAD /images/{digest}",
    "POST /models", "GET /models/{model}", "DELETE /models/{model}", "POST /jobs/{job}/models",
    "POST /jobs/{job}/repairs", "GET /repairs", "GET /repairs/{repair}", "POST /repairs/{repair}/cancel",
    "DELETE /repairs/{repair}", "GET /repairs/{repair}/model",
    "GET /methods", "GET /models", "GET /profiles", "GET /healthz", "GET /readyz",
}  # fmt: skip


def served_document() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as directory, serve_gateway(Path(directory)) as gateway:
        reply = gateway.client.get("/openapi.json")
        assert reply.status_code == 200, reply.text
        document: dict[str, Any] = reply.json()
    return document


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return served_document()


def operations(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {
        f"{verb.upper()} {path}": operation
        for path, verbs in document["paths"].items()
        for verb, operation in verbs.items()
    }


def test_it_is_the_snapshot(document: dict[str, Any]) -> None:
    assert document == json.loads(SNAPSHOT.read_text(encoding="utf-8")), "see this file's docstring"


def test_it_is_complete(document: dict[str, Any]) -> None:
    described = operations(document)
    assert set(described) == PROMISED
    for name, operation in described.items():
        assert operation["description"], name
        for status, reply in operation["responses"].items():
            if status.startswith(("4", "5")):
                assert "application/problem+json" in reply["content"], f"{name} {status}"
        for parameter in operation.get("parameters", []):
            assert parameter["schema"], f"{name} {parameter['name']}"
    multipart = described["POST /jobs"]["requestBody"]["content"]
    assert set(multipart) == {"multipart/form-data", "application/json"}


def test_every_reference_leads_somewhere(document: dict[str, Any]) -> None:
    text = json.dumps(document)
    for part in text.split('"#/components/schemas/')[1:]:
        assert part.partition('"')[0] in document["components"]["schemas"]


@pytest.mark.parametrize("model", EXAMPLES, ids=lambda model: model.__name__)
def test_examples_are_true(model: type[Contract]) -> None:
    text = json.dumps(EXAMPLES[model])
    written = model.model_validate_json(text).model_dump(mode="json", exclude_unset=True)
    assert written == json.loads(text)


def test_every_operation_is_in_the_docs(document: dict[str, Any]) -> None:
    page = (REPOSITORY / "docs" / "reference" / "http-operations.md").read_text(encoding="utf-8")
    for name in operations(document):
        verb, _, path = name.partition(" ")
        assert f"`{verb} {path}`" in page, f"docs/reference/http-operations.md does not say `{verb} {path}`"


if __name__ == "__main__":
    SNAPSHOT.write_text(json.dumps(served_document(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
