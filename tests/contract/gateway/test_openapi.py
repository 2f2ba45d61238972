"""The OpenAPI document: complete, with valid examples, and it keeps its promises to clients.

After a change that is meant, `python -m tests.contract.gateway.test_openapi` adds new promises to
`openapi-promises.txt`.

A promise may be broken if the changelog names it, in backticks, under `### Breaking` of what is unreleased. It may also
be broken by a new major version, or a new minor one before 1.0; then writing the snapshot begins the list anew.
"""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path
from typing import Any

import pytest

from gateway.api.examples import EXAMPLES
from gateway.app import openapi_document
from shared import __version__
from shared.schemas.base import Contract
from tests.support.api_promises import breaks, promises
from tests.support.gateway_under_test import serve_gateway
from tests.support.paths import REPOSITORY

PROMISES = Path(__file__).parent / "openapi-promises.txt"
PROMISED = {
    "POST /jobs", "GET /jobs", "GET /jobs/{job}", "GET /jobs/{job}/plan",
    "POST /jobs/{job}/cancel", "POST /jobs/{job}/retry", "DELETE /jobs/{job}",
    "GET /jobs/{job}/results", "GET /jobs/{job}/results/{counterfactual}", "GET /jobs/{job}/events",
    "GET /jobs/{job}/failure-points", "GET /jobs/{job}/report", "GET /jobs/{job}/export",
    "PUT /jobs/{job}/reviews/{counterfactual}", "GET /jobs/{job}/reviews", "POST /jobs/{job}/report",
    "GET /jobs/{job}/own-images", "PUT /jobs/{job}/own-images/{image}",
    "GET /jobs/{job}/calibration", "GET /jobs/{job}/comparison",
    "POST /jobs/{job}/confirmation",
    "POST /jobs/{job}/doses",
    "GET /jobs/{job}/findings", "PUT /jobs/{job}/findings/{finding}",
    "POST /jobs/{job}/studies", "GET /jobs/{job}/studies", "GET /studies/{study}", "DELETE /studies/{study}",
    "POST /studies/{study}/invitations", "GET /studies/{study}/results", "GET /studies/{study}/items.csv",
    "GET /studies/{study}/items/{item}/{side}", "GET /studies/{study}/answers.csv", "PUT /studies/{study}/answers.csv",
    "POST /suites", "GET /suites", "GET /suites/{suite}", "DELETE /suites/{suite}",
    "GET /suites/{suite}/counterfactuals", "GET /suites/{suite}/export",
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


def stored_promises() -> tuple[str, set[str]]:
    """The version that gave the promises, and the promises."""
    version, *lines = PROMISES.read_text(encoding="utf-8").splitlines()
    return version.removeprefix("version "), set(lines)


def may_break(before: str, after: str) -> bool:
    """Whether a version number says that promises of an earlier one are broken."""
    (old_major, old_minor), (major, minor) = (tuple(map(int, text.split(".")[:2])) for text in (before, after))
    return major != old_major or (major == 0 and minor != old_minor)


def announced(changelog: str) -> set[str]:
    """What the changelog names in backticks under `### Breaking` of what is unreleased."""
    unreleased = changelog.partition("## [Unreleased]")[2].partition("\n## [")[0]
    breaking = unreleased.partition("\n### Breaking\n")[2].partition("\n### ")[0]
    return set(re.findall(r"`([^`]+)`", breaking))


def test_promises_are_kept_or_their_break_is_announced(document: dict[str, Any]) -> None:
    version, before = stored_promises()
    if may_break(version, __version__):
        return
    names = announced((REPOSITORY / "CHANGELOG.md").read_text(encoding="utf-8"))
    broken = breaks(before, promises(document))
    unannounced = [line for line in broken if line.removesuffix(": removed") not in names]
    assert not unannounced, "clients rely on this; see this file's docstring"


def test_what_breaks_a_client(document: dict[str, Any]) -> None:
    before = promises(document)
    changed = json.loads(json.dumps(document))
    del changed["paths"]["/repairs"]
    schemas = changed["components"]["schemas"]
    del schemas["JobView"]["properties"]["id"]
    schemas["JobSpec"]["properties"]["ground_truth"]["enum"].remove("none")
    schemas["JobSpec"]["required"].append("seed")
    assert breaks(before, promises(changed)) == sorted(
        [
            *(f"{line}: removed" for line in before if line.startswith("GET /repairs ") or line == "GET /repairs"),
            "JobView.id: removed",
            "JobSpec.ground_truth = none: removed",
            "JobSpec.seed is required in requests",
        ]
    )


def test_what_breaks_no_client(document: dict[str, Any]) -> None:
    before = promises(document)
    changed = json.loads(json.dumps(document))
    schemas = changed["components"]["schemas"]
    schemas["JobSpec"]["properties"]["more"] = {"enum": ["a"], "type": "string"}
    schemas["JobSpec"]["required"].remove("task_description")
    schemas["JobView"]["properties"]["more"] = {"type": "string"}
    schemas["JobView"]["required"].append("more")
    schemas["New"] = {"properties": {"a": {"type": "string"}}, "required": ["a"]}
    schemas["JobSpec"]["properties"]["new"] = {"$ref": "#/components/schemas/New"}
    assert breaks(before, promises(changed)) == []


def test_breaks_are_announced_by_the_version_or_the_changelog() -> None:
    assert [may_break("0.1.0", after) for after in ("0.1.9", "0.2.0", "1.0.0")] == [False, True, True]
    assert [may_break("1.1.0", after) for after in ("1.2.0", "2.0.0")] == [False, True]
    released = "\n## [0.1.0]\n### Breaking\n- `GET /old` is gone.\n"
    text = (
        f"## [Unreleased]\n### Added\n- `GET /new`\n### Breaking\n- `JobView.id` is gone.\n### Fixed\n- `c`\n{released}"
    )
    assert announced(text) == {"JobView.id"}


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


def write_promises() -> None:
    """Add the document's promises to the list; after a version that may break some, list only these."""
    version, before = stored_promises()
    promised = set() if may_break(version, __version__) else before
    first = __version__ if may_break(version, __version__) else version
    lines = sorted(promised | promises(openapi_document()))
    PROMISES.write_text("\n".join([f"version {first}", *lines]) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write_promises()
