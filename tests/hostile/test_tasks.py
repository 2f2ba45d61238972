"""Hostile task descriptions with the shipped language model: schemas hold, and no class word changes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from gateway.methods.counterfactual import MethodImage, TaskDescription
from gateway.methods.dillema import DillemaParameters, dillema, keyword_messages, keyword_schema
from gateway.methods.words import names_class
from llm_service.generation import build_validator
from shared.media.images import encode
from shared.problems import InvalidInput
from shared.schemas.base import ImagePayload
from shared.schemas.jobs import JobSpec
from shared.schemas.language import GenerateRequest, Message
from tests.support.captioned_services import CAPTION, Services, captioned
from tests.support.hostile.tasks import CONTROL_WORDS, SUBMITTED
from tinyworld.objects.captions import read
from tinyworld.objects.world import CLASSES

PICTURE = ImagePayload(png=encode(np.full((32, 32, 3), 128, np.uint8)))


@pytest.fixture(scope="module")
def services() -> Iterator[Services]:
    with captioned() as clients:
        yield clients


def generate(services: Services, messages: list[Message]) -> object:
    request = GenerateRequest(messages=messages, json_schema=keyword_schema(8), max_tokens=512, temperature=0)
    return services.generate(request).value


def described(task: str) -> TaskDescription:
    """The task as it comes out of a submitted spec."""
    return TaskDescription(JobSpec(task_description=task).task_description, CLASSES)


@pytest.mark.parametrize("task", SUBMITTED, ids=lambda task: task[:30])
def test_whatever_the_task_says_the_schema_holds(services: Services, task: str) -> None:
    value = generate(services, keyword_messages(described(task), CAPTION, "bus"))
    assert build_validator(keyword_schema(8)).is_valid(value)


@pytest.mark.parametrize("task", SUBMITTED, ids=lambda task: task[:30])
def test_a_task_is_one_line_of_the_prompt(task: str) -> None:
    prompt = keyword_messages(described(task), CAPTION, "bus")[-1].content
    assert [line.partition(":")[0] for line in prompt.splitlines()] == ["Task", "Class", "Caption"]


@pytest.mark.slow
@pytest.mark.parametrize("task", SUBMITTED[4:6], ids=lambda task: task[:30])
def test_whatever_the_task_says_no_class_word_changes(services: Services, task: str) -> None:
    check_edits(services, described(task))


@pytest.mark.slow
@pytest.mark.parametrize("task", SUBMITTED, ids=lambda task: task[:30])
@pytest.mark.parametrize("seed", range(3))
def test_no_class_word_changes_under_other_seeds_either(services: Services, task: str, seed: int) -> None:
    check_edits(services, described(task), seed)


@pytest.mark.parametrize("words", CONTROL_WORDS)
def test_control_tokens_of_the_model_are_refused(services: Services, words: str) -> None:
    with pytest.raises(InvalidInput, match="control word"):
        generate(services, keyword_messages(described(words), CAPTION, "bus"))


def check_edits(services: Services, task: TaskDescription, seed: int = 1) -> None:
    """Every accepted edit of a red bus in the city leaves a bus, brings in no other class, and says what it changed."""
    source = MethodImage("source-1", PICTURE, "bus")
    rows = list(dillema(source, task, services, DillemaParameters(counterfactuals_per_image=4), seed))
    edits = [row for row in rows if row.arm == "edit" and row.edit is not None]
    assert edits
    for row in edits:
        assert row.edit is not None
        if not row.verdict.accepted:
            assert row.verdict.check
            assert row.image is None
            continue
        assert names_class(row.edit.new_caption, "bus")
        assert read(row.edit.new_caption).get("label", "bus") == "bus"
        for label in CLASSES:
            if label != "bus":
                assert not names_class(row.edit.new_caption, label)
            for change in row.edit.changes:
                assert not names_class(change.from_phrase, label)
                assert not names_class(change.to_phrase, label)
