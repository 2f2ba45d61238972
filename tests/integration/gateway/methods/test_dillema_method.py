"""DILLEMA with the shipped language model behind its service; the other services are small."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from gateway.jobs.choices import plan
from gateway.jobs.designs import planned_renderings
from gateway.methods import dillema as steps
from gateway.methods.counterfactual import MethodCounterfactual, MethodImage, TaskDescription
from gateway.methods.dillema import DillemaParameters, dillema
from gateway.methods.questions import Question
from shared.media.images import encode
from shared.profiles.profile import load_profile
from shared.schemas.base import ImagePayload
from shared.schemas.caption import CaptionReply, CaptionRequest
from shared.schemas.jobs import JobSpec
from shared.schemas.language import GenerateReply, GenerateRequest
from tests.support.captioned_services import CAPTION, Services
from tests.support.json_values import value_at
from tinyworld.objects.captions import read
from tinyworld.objects.world import CLASSES

STATED = read(CAPTION)
PICTURE = encode(np.full((32, 32, 3), 128, np.uint8))
TASK = TaskDescription("classify the vehicle in a street photo", CLASSES)


def dillema_of(shipped: Services, seed: int = 1, **parameters: object) -> list[MethodCounterfactual]:
    source = MethodImage("source-1", ImagePayload(png=PICTURE), "bus")
    return list(dillema(source, TASK, shipped, DillemaParameters.model_validate(parameters), seed))


def edits_of(rows: list[MethodCounterfactual]) -> list[MethodCounterfactual]:
    return [row for row in rows if row.arm == "edit" and row.verdict.accepted]


@pytest.mark.slow
def test_weather_and_time_are_each_changed_twice(shipped: Services) -> None:
    rows = dillema_of(shipped, factors=["weather"])
    edits = edits_of(rows)
    changes = [change for row in edits if row.edit for change in row.edit.changes]
    assert Counter(change.from_phrase for change in changes) == {"rainy": 2, "day": 2}
    assert len({change.to_value for change in changes}) == 4
    for row in edits:
        assert row.edit is not None
        change = row.edit.changes[0]
        field = "weather" if change.from_phrase == "rainy" else "time"
        assert read(row.edit.new_caption) == STATED | {field: change.to_value}


@pytest.mark.slow
def test_every_edit_has_its_null_arm(shipped: Services) -> None:
    rows = dillema_of(shipped)
    assert [row.ordinal for row in rows] == list(range(len(rows)))
    for row in edits_of(rows):
        assert row.null_ordinal is not None
        null = rows[row.null_ordinal]
        assert null.arm == "null"
        assert null.seed == row.seed
        assert value_at(null.lineage, "rendering", "prompt") == CAPTION
        assert value_at(null.lineage, "rendering", "region") == value_at(row.lineage, "rendering", "region")
        assert null.image is not None
    assert len(edits_of(rows)) == 4
    assert len({row.seed for row in edits_of(rows)}) == 4


@pytest.mark.slow
def test_an_ablation_asks_without_the_task_and_other_jobs_are_as_before(shipped: Services) -> None:
    def prompts(*, task_in_prompts: bool) -> list[str]:
        rows = dillema_of(shipped, task_in_prompts=task_in_prompts)
        first = value_at(next(row for row in rows if row.arm == "edit").lineage, "exchanges", 0, "messages")
        assert isinstance(first, list)
        return [str(message["content"]) for message in first]

    assert TASK.text in prompts(task_in_prompts=True)[-1]
    assert TASK.text not in "".join(prompts(task_in_prompts=False))
    assert "task_in_prompts" not in DillemaParameters().model_dump(mode="json")


def test_the_same_seed_gives_the_same_and_shares_null_arms(shipped: Services) -> None:
    first = dillema_of(shipped, same_seed=True)
    assert first == dillema_of(shipped, same_seed=True)
    assert len({row.seed for row in edits_of(first)}) == 1
    assert sum(row.arm == "null" for row in first) <= 2
    assert dillema_of(shipped, seed=2) != dillema_of(shipped)


def test_one_caption_under_several_seeds(shipped: Services) -> None:
    edits = edits_of(dillema_of(shipped, same_caption=True, counterfactuals_per_image=3))
    assert len({row.edit for row in edits}) == 1
    assert len({row.seed for row in edits}) == len(edits) == 3


@pytest.mark.slow
def test_profile_paper_has_the_arrangement_of_the_paper(shipped: Services, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two sampled captions, one new caption with three changes, five images of it with a seed each."""
    spec = JobSpec.model_validate({"task": TASK.text, "methods": ["dillema"], "models": []})
    (planned,) = plan(spec, load_profile("paper"), []).methods
    (most,) = planned_renderings([planned], images=10)
    assert (most.edits, most.null_arms) == (50, 50)
    requests: list[CaptionRequest] = []
    caption = shipped.caption

    def recorded(request: CaptionRequest) -> CaptionReply:
        requests.append(request)
        return caption(request)

    monkeypatch.setattr(shipped, "caption", recorded)
    rows = dillema_of(shipped, **planned.parameters.model_dump())
    (request,) = requests
    sampled = (request.captions_per_image, request.top_p, request.temperature, request.max_tokens, request.prompt)
    assert sampled == (2, 0.9, 1.0, 30, "a photo of")
    assert request.seed > 0
    rendered = [row for row in rows if row.arm == "edit" and row.image is not None]
    assert len(rendered) == len({row.seed for row in rendered}) == 5
    (edit,) = {row.edit for row in rendered}
    assert edit is not None
    assert len({change.from_phrase for change in edit.changes}) == 3
    assert all(change.to_phrase in edit.new_caption for change in edit.changes)
    assert {value_at(row.lineage, "rendering", "region") for row in rendered} == {"full"}
    assert sum(row.arm == "null" for row in rows) == 5


@pytest.mark.slow
def test_several_edits_in_one_caption(shipped: Services) -> None:
    for row in edits_of(dillema_of(shipped, edits_per_counterfactual=3)):
        assert row.edit is not None
        assert len(row.edit.changes) == 3
        assert all(change.to_phrase in row.edit.new_caption for change in row.edit.changes)


@pytest.mark.slow
def test_more_renderings_than_a_message_holds(shipped: Services) -> None:
    rows = dillema_of(shipped, counterfactuals_per_image=8)
    assert len(edits_of(rows)) == 8
    assert sum(row.image is not None for row in rows) == 16


@pytest.mark.slow
def test_a_ground_truth_that_the_edits_touch_refuses_them(shipped: Services) -> None:
    source = MethodImage("source-1", ImagePayload(png=PICTURE), "rain")
    task = TaskDescription("classify the vehicle", ("rain", "snow", "fog"))
    rows = list(dillema(source, task, shipped, DillemaParameters(factors=("weather",)), 1))
    assert not any(change.from_phrase == "rainy" for row in edits_of(rows) if row.edit for change in row.edit.changes)
    refused = [row for row in rows if not row.verdict.accepted]
    assert all(row.image is None and row.verdict.reason for row in refused)


@pytest.mark.slow
def test_the_lineage_holds_prompts_and_replies(shipped: Services) -> None:
    for row in edits_of(dillema_of(shipped)):
        questions = [exchange["question"] for exchange in row.lineage["exchanges"]]
        assert questions == ["keywords", "alternatives", "rewrite"]
        assert all(exchange["messages"][-1]["content"] and exchange["reply"] for exchange in row.lineage["exchanges"])


@pytest.mark.slow
def test_protected_regions_that_are_lost_refuse_an_image(shipped: Services) -> None:
    rows = dillema_of(shipped, protect=["pedestrian"], factors=["weather"], counterfactuals_per_image=6)
    rendered = [row for row in rows if row.image is not None]
    lost = [row for row in rendered if row.edit and "fog" in row.edit.new_caption]
    assert lost
    assert {row.verdict.check for row in lost} == {"protected"}
    assert all("pedestrian" in row.verdict.reason and "0.20" in row.verdict.reason for row in lost)
    assert all(row.verdict.accepted for row in rendered if row not in lost)
    for row in rendered:
        assert row.scores["protected"] == (0.2 if row in lost else 0.9)
        assert row.lineage["protected"][0]["label"] == "pedestrian"
    assert all("protected" not in row.lineage for row in dillema_of(shipped) if row.image is not None)


@pytest.mark.slow
def test_edits_that_name_protected_classes_are_rejected_before_rendering(shipped: Services) -> None:
    rows = dillema_of(shipped, protect=["city"])
    named = [row for row in rows if row.edit and any("city" in change.from_phrase for change in row.edit.changes)]
    assert named
    assert {(row.verdict.check, row.image) for row in named} == {("protected class", None)}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("question", "from_phrases"),
    [(steps.KEYWORDS, []), (steps.ALTERNATIVES, ["rainy"]), (steps.REWRITE, ["rainy"])],
    ids=lambda value: value.name if isinstance(value, Question) else "",
)
def test_a_question_without_a_valid_reply_refuses_its_edits_by_name_and_is_not_asked_again(
    shipped: Services, monkeypatch: pytest.MonkeyPatch, question: Question[Any], from_phrases: list[str]
) -> None:
    requests: list[str] = []
    generate = shipped.generate

    def cut_short(request: GenerateRequest) -> GenerateReply:
        """Replies to the question are cut off, in both of the service's attempts."""
        requests.append(request.model_dump_json())
        if request.messages[0].content == question.system:
            request = request.model_copy(update={"max_tokens": 2})
        return generate(request)

    monkeypatch.setattr(shipped, "generate", cut_short)
    rows = dillema_of(shipped, factors=["weather"])
    assert rows
    assert {(row.verdict.accepted, row.verdict.check, row.image) for row in rows} == {(False, "invalid reply", None)}
    assert all("cut off after 2 tokens" in row.verdict.reason for row in rows)
    assert all(row.lineage["exchanges"][-1]["question"] == question.name for row in rows)
    changed = {change.from_phrase for row in rows if row.edit for change in row.edit.changes}
    assert changed >= set(from_phrases)
    assert bool(changed) == bool(from_phrases)
    assert len(set(requests)) == len(requests)


@pytest.mark.slow
def test_several_seeds_render_each_edit_several_times_with_null_arms_of_their_own(shipped: Services) -> None:
    """With `same_seed` all edits share these seeds, and so the null arms."""
    for same_seed in (False, True):
        rows = dillema_of(shipped, counterfactuals_per_image=2, seeds_per_edit=3, same_seed=same_seed)
        by_caption: dict[str, list[int]] = {}
        for row in rows:
            if row.arm == "edit" and row.image is not None and row.edit is not None:
                by_caption.setdefault(row.edit.new_caption, []).append(row.seed)
        assert len(by_caption) == 2
        assert all(len(set(seeds)) == len(seeds) == 3 for seeds in by_caption.values())
        assert len({seed for seeds in by_caption.values() for seed in seeds}) == (3 if same_seed else 6)
