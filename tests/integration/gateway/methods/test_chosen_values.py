"""Methods of a balanced job: every source image gets the chosen values, in the shipped language model's words."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from gateway.methods.counterfactual import MethodCounterfactual, MethodImage, TaskDescription
from gateway.methods.dillema import DillemaParameters, dillema
from gateway.methods.lance import LanceParameters, lance
from shared.media.images import encode
from shared.schemas.base import ImagePayload
from tests.support.captioned_services import CAPTION, Services, captioned
from tests.support.lance_services import LanceServices
from tinyworld.objects.captions import read
from tinyworld.objects.world import CLASSES

STATED = read(CAPTION)
PICTURE = encode(np.full((32, 32, 3), 128, np.uint8))
TASK = TaskDescription("classify the vehicle in a street photo", CLASSES)
VALUES = ["weather=snow", "weather=night", "weather=fog"]


def edits_of(shipped: Services, image: str = "source-1", **parameters: object) -> list[MethodCounterfactual]:
    source = MethodImage(image, ImagePayload(png=PICTURE), "bus")
    rows = dillema(source, TASK, shipped, DillemaParameters.model_validate(parameters), 1)
    return [row for row in rows if row.arm == "edit"]


@pytest.mark.slow
def test_each_value_is_one_edit_of_every_image(shipped: Services) -> None:
    for image in ("source-1", "source-2"):
        rows = edits_of(shipped, image, values=VALUES)
        changes = [row.edit.changes[0] for row in rows if row.edit]
        assert [(change.factor, change.to_value) for change in changes] == [
            ("weather", "snow"),
            ("weather", "night"),
            ("weather", "fog"),
        ]
        assert all(row.verdict.accepted for row in rows)
        for row, field in zip(rows, ("weather", "time", "weather"), strict=True):
            assert row.edit is not None
            assert read(row.edit.new_caption) == STATED | {field: row.edit.changes[0].to_value}


def test_a_value_that_the_caption_states_is_refused(shipped: Services) -> None:
    (row,) = edits_of(shipped, values=["weather=rain"])
    assert (row.verdict.accepted, row.verdict.check, row.image) == (False, "no change", None)


@pytest.mark.slow
@pytest.mark.parametrize("value", ["weather=zeppelin", "object=dog"])
def test_a_value_without_a_phrase_is_refused(shipped: Services, value: str) -> None:
    """The small model knows no word for the first; the caption has nothing beside the bus for the second."""
    (row,) = edits_of(shipped, values=[value])
    assert (row.verdict.accepted, row.verdict.check) == (False, "chosen value")
    assert row.edit is not None
    assert row.edit.changes[0].to_value == value.partition("=")[2]


@pytest.mark.slow
def test_a_value_is_rendered_alike_whatever_other_values_there_are(shipped: Services) -> None:
    (alone,) = edits_of(shipped, values=["weather=night"])
    among = next(row for row in edits_of(shipped, values=VALUES) if row.edit and "night" in row.edit.new_caption)
    assert (alone.seed, alone.edit, alone.image) == (among.seed, among.edit, among.image)
    assert len({row.seed for row in edits_of(shipped, values=VALUES, same_seed=True)}) == 1


@pytest.fixture(scope="module")
def shipped_for_lance() -> Iterator[Services]:
    """As `shipped`; the others also embed texts."""
    with captioned(LanceServices()) as services:
        yield services


def lance_edits_of(services: Services, image: str = "source-1", **parameters: object) -> list[MethodCounterfactual]:
    """LANCE's edits; the checks of images accept anything, because those services are small."""
    source = MethodImage(image, ImagePayload(png=PICTURE), "bus")
    lenient = {"thresholds": {"caption": {"default": -2.0}}, "self_fractions": [0.5], "steps": 2, "caption_prompt": ""}
    rows = lance(source, TASK, services, LanceParameters.model_validate(lenient | parameters), 1)
    return [row for row in rows if row.arm == "edit"]


@pytest.mark.slow
def test_lance_makes_each_value_one_edit_of_every_image(shipped_for_lance: Services) -> None:
    for image in ("source-1", "source-2"):
        rows = lance_edits_of(shipped_for_lance, image, values=VALUES)
        changes = [row.edit.changes[0] for row in rows if row.edit]
        assert [(change.factor, change.to_value) for change in changes] == [
            ("weather", "snow"),
            ("weather", "night"),
            ("weather", "fog"),
        ]
        for row, field in zip(rows, ("weather", "time", "weather"), strict=True):
            assert row.verdict.accepted, row.verdict
            assert row.image is not None
            assert row.edit is not None
            assert read(row.edit.new_caption) == STATED | {field: row.edit.changes[0].to_value}


@pytest.mark.slow
def test_lance_refuses_a_value_that_the_caption_states_or_that_has_no_phrase(shipped_for_lance: Services) -> None:
    stated, unknown = lance_edits_of(shipped_for_lance, values=["weather=rain", "weather=zeppelin"])
    assert (stated.verdict.accepted, stated.verdict.check, stated.image) == (False, "no change", None)
    assert (unknown.verdict.accepted, unknown.verdict.check, unknown.image) == (False, "chosen value", None)
