"""DILLEMA with the shipped language model behind its real service; pictures and scores are arithmetic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest

from gateway.methods.counterfactual import Counterfactual, SourceImage, TaskDescription
from gateway.methods.dillema import DillemaParameters, dillema
from shared.images import encode
from shared.schemas.base import ImagePayload
from tests.integration.captioned_services import CAPTION, Services, captioned
from tinyworld.objects.captions import read
from tinyworld.objects.world import CLASSES

STATED = read(CAPTION)
PICTURE = encode(np.full((32, 32, 3), 128, np.uint8))
TASK = TaskDescription("classify the vehicle in a street photo", CLASSES)


@pytest.fixture(scope="module")
def services() -> Iterator[Services]:
    with captioned() as made:
        yield made


def made_of(services: Services, seed: int = 1, **parameters: object) -> list[Counterfactual]:
    source = SourceImage("source-1", ImagePayload(png=PICTURE), "bus")
    return list(dillema(source, TASK, services, DillemaParameters.model_validate(parameters), seed))


def edits_of(found: list[Counterfactual]) -> list[Counterfactual]:
    return [one for one in found if one.arm == "edit" and one.verdict.accepted]


def test_weather_and_time_are_each_changed_twice(services: Services) -> None:
    found = made_of(services, factors=["weather"])
    edits = edits_of(found)
    changes = [change for one in edits if one.edit for change in one.edit.changes]
    assert Counter(change.from_phrase for change in changes) == {"rainy": 2, "day": 2}
    assert len({change.to_value for change in changes}) == 4
    for one in edits:
        assert one.edit is not None
        change = one.edit.changes[0]
        field = "weather" if change.from_phrase == "rainy" else "time"
        assert read(one.edit.new_caption) == STATED | {field: change.to_value}


def test_every_edit_has_its_null_arm(services: Services) -> None:
    found = made_of(services)
    assert [one.ordinal for one in found] == list(range(len(found)))
    for one in edits_of(found):
        assert one.null_ordinal is not None
        null = found[one.null_ordinal]
        assert null.arm == "null"
        assert null.seed == one.seed
        assert null.lineage["rendering"]["prompt"] == CAPTION
        assert null.lineage["rendering"]["region"] == one.lineage["rendering"]["region"]
        assert null.image is not None
    assert len(edits_of(found)) == 4
    assert len({one.seed for one in edits_of(found)}) == 4


def test_the_same_seed_gives_the_same_and_shares_null_arms(services: Services) -> None:
    first = made_of(services, same_seed=True)
    assert first == made_of(services, same_seed=True)
    assert len({one.seed for one in edits_of(first)}) == 1
    assert sum(one.arm == "null" for one in first) <= 2
    assert made_of(services, seed=2) != made_of(services)


def test_one_caption_under_several_seeds(services: Services) -> None:
    edits = edits_of(made_of(services, same_caption=True, counterfactuals_per_image=3))
    assert len({one.edit for one in edits}) == 1
    assert len({one.seed for one in edits}) == len(edits) == 3


def test_several_edits_in_one_caption(services: Services) -> None:
    for one in edits_of(made_of(services, edits_per_counterfactual=3)):
        assert one.edit is not None
        assert len(one.edit.changes) == 3
        assert all(change.to_phrase in one.edit.new_caption for change in one.edit.changes)


def test_more_renderings_than_a_message_holds(services: Services) -> None:
    found = made_of(services, counterfactuals_per_image=8)
    assert len(edits_of(found)) == 8
    assert sum(one.image is not None for one in found) == 16


def test_a_ground_truth_that_the_edits_touch_refuses_them(services: Services) -> None:
    source = SourceImage("source-1", ImagePayload(png=PICTURE), "rain")
    task = TaskDescription("classify the vehicle", ("rain", "snow", "fog"))
    found = list(dillema(source, task, services, DillemaParameters(factors=("weather",)), 1))
    assert not any(change.from_phrase == "rainy" for one in edits_of(found) if one.edit for change in one.edit.changes)
    refused = [one for one in found if not one.verdict.accepted]
    assert all(one.image is None and one.verdict.reason for one in refused)


def test_the_lineage_holds_prompts_and_replies(services: Services) -> None:
    for one in edits_of(made_of(services)):
        questions = [exchange["question"] for exchange in one.lineage["exchanges"]]
        assert questions == ["keywords", "alternatives", "rewrite"]
        assert all(exchange["messages"][-1]["content"] and exchange["reply"] for exchange in one.lineage["exchanges"])


def test_protected_regions_that_are_lost_refuse_an_image(services: Services) -> None:
    found = made_of(services, protect=["pedestrian"], factors=["weather"], counterfactuals_per_image=6)
    rendered = [one for one in found if one.image is not None]
    lost = [one for one in rendered if one.edit and "fog" in one.edit.new_caption]
    assert lost
    assert {one.verdict.check for one in lost} == {"protected"}
    assert all("the pedestrian of 1.0% of the image overlaps its place by 0.20" in one.verdict.reason for one in lost)
    assert all(one.verdict.accepted for one in rendered if one not in lost)
    for one in rendered:
        assert one.scores["protected"] == (0.2 if one in lost else 0.9)
        assert one.lineage["protected"][0]["label"] == "pedestrian"
    assert all("protected" not in one.lineage for one in made_of(services) if one.image is not None)


def test_edits_that_name_what_is_protected_are_refused_before_they_are_rendered(services: Services) -> None:
    found = made_of(services, protect=["city"])
    named = [one for one in found if one.edit and any("city" in change.from_phrase for change in one.edit.changes)]
    assert named
    assert {(one.verdict.check, one.image) for one in named} == {("protected class", None)}
