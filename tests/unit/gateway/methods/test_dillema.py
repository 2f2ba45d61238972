"""DILLEMA's prompts, schemas and parameters, as pure functions."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from gateway.methods import METHODS
from gateway.methods.counterfactual import Change, Edit, Factor, TaskDescription
from gateway.methods.dillema import (
    DillemaParameters,
    alternative_messages,
    alternative_schema,
    keyword_messages,
    keyword_schema,
    region_of,
    rewrite_messages,
    rewrite_schema,
)
from shared.schemas.language import Message
from tests.support.paths import REPOSITORY

TASK = TaskDescription("classify the vehicle", ("bus", "car"))
CAPTION = "A red bus is in a city. It is a rainy day."


def _edit(*factors: Factor) -> Edit:
    return Edit(tuple(Change(factor, "a", "b", "a", "b") for factor in factors), "a", "b")


@pytest.mark.parametrize(
    ("control_region", "factors", "region"),
    [
        ("full", ("background",), "full"),
        ("full", ("weather",), "full"),
        ("keep", ("background",), "object"),
        ("keep", ("weather", "background"), "object"),
        ("keep", ("weather",), "structure"),
        ("keep", ("adjective", "domain"), "structure"),
    ],
)
def test_regions(control_region: Any, factors: tuple[Factor, ...], region: str) -> None:
    assert region_of(_edit(*factors), DillemaParameters(control_region=control_region)) == region
    masked = "full" if control_region == "full" else "structure"
    assert region_of(_edit(*factors), DillemaParameters(control_region=control_region), masked=True) == masked


QUESTIONS = {
    "keywords": keyword_messages(TASK, CAPTION, "bus"),
    "alternatives": alternative_messages(TASK, CAPTION, "bus", "rainy"),
    "rewrite": rewrite_messages(TASK, CAPTION, "bus", [("rainy", "snowy"), ("red", "blue")]),
}


@pytest.mark.parametrize("question", QUESTIONS)
def test_every_question_has_task_class_caption_and_one_example(question: str) -> None:
    messages = QUESTIONS[question]
    assert [message.role for message in messages] == ["system", "user", "assistant", "user"]
    for needed in ("classify the vehicle", "Class: bus", CAPTION):
        assert needed in messages[-1].content


def test_without_ground_truth_no_class_is_claimed() -> None:
    assert "Class" not in keyword_messages(TASK, CAPTION, None)[-1].content


def test_all_changes_are_asked_for() -> None:
    question: Message = QUESTIONS["rewrite"][-1]
    assert question.content.endswith("\nChange: rainy -> snowy\nChange: red -> blue")


def _unbounded(schema: dict[str, Any]) -> list[dict[str, Any]]:
    """Parts of a schema that let a reply grow without end."""
    here: list[dict[str, Any]] = []
    kind = schema.get("type")
    if (kind == "string" and "maxLength" not in schema) or (kind == "array" and "maxItems" not in schema):
        here.append(schema)
    if kind == "object" and schema.get("additionalProperties") is not False:
        here.append(schema)
    inner = [*schema.get("properties", {}).values(), *([schema["items"]] if "items" in schema else [])]
    return here + [unbounded for part in inner for unbounded in _unbounded(part)]


@pytest.mark.parametrize("schema", [keyword_schema(8), alternative_schema(3), rewrite_schema()])
def test_replies_are_bounded(schema: dict[str, Any]) -> None:
    assert _unbounded(schema) == []


def test_parameters_are_documented_and_unknown_ones_refused() -> None:
    described = DillemaParameters.model_json_schema()["properties"]
    assert all(parameter["description"].endswith(".") for parameter in described.values())
    page = (REPOSITORY / "docs" / "reference" / "parameters.md").read_text()
    assert all(f"`{parameter}`" in page for parameter in described)
    with pytest.raises(ValidationError, match="unknown field counterfactuals"):
        DillemaParameters.model_validate({"counterfactuals": 3})
    with pytest.raises(ValidationError, match="choose one of them"):
        DillemaParameters(same_caption=True, same_seed=True)


def test_the_method_is_listed() -> None:
    spec = METHODS["dillema"]
    assert spec.parameters is DillemaParameters
    assert spec.revision
