"""Boxes on the wire: in pixels, finite, with an area."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from shared.schemas.base import MAX_BOXES
from shared.schemas.boxes import DetectReply

BOX = {"box": [-2.5, 0, 30, 20.25], "label": "car", "score": 0.5}


def reply(*boxes: dict[str, Any]) -> DetectReply:
    return DetectReply.model_validate({"classes": ["car", "bus"], "boxes": [boxes, []]})


def test_boxes_may_reach_beyond_the_image_and_an_image_may_have_none() -> None:
    (box,), nothing = reply(BOX).boxes
    assert (box.box, box.label, box.score, nothing) == ((-2.5, 0, 30, 20.25), "car", 0.5, [])


@pytest.mark.parametrize(
    "wrong",
    [
        {"box": [10, 0, 10, 20]},
        {"box": [0, 20, 30, 10]},
        {"box": [0, 0, float("nan"), 20]},
        {"box": [0, 0, float("inf"), 20]},
        {"box": [0, 0, 20]},
        {"score": 1.5},
        {"label": "tram"},
    ],
)
def test_other_boxes_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        reply({**BOX, **wrong})


def test_an_image_has_up_to_a_thousand_boxes() -> None:
    assert len(reply(*[BOX] * MAX_BOXES).boxes[0]) == MAX_BOXES
    with pytest.raises(ValidationError):
        reply(*[BOX] * (MAX_BOXES + 1))
