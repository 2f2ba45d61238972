"""The wording of the reasons for which images are rejected."""

from __future__ import annotations

import numpy as np
import pytest

from gateway.methods.checks import judge
from gateway.methods.controlled import HeldShapes, judge_regions
from gateway.methods.counterfactual import Change, Edit
from shared.media.images import encode
from shared.schemas.base import ImagePayload
from shared.schemas.diffusion import ProtectedRegion, ProtectionReply, RegionOutcome

EDIT = Edit((Change("weather", "by day", "at night", "day", "night"),), "a bus by day", "a bus at night")
PICTURE = ImagePayload(png=encode(np.zeros((8, 8, 3), np.uint8)))
NULL = RegionOutcome(iou=0.9, outline=4.0, inside=(90.0,) * 3, around=(90.0,) * 3)


@pytest.mark.parametrize(
    ("check", "reason"),
    [
        ("structure", "the image keeps only 20% of the outlines that must stay; expected at least 50%"),
        ("shapes", "a segmenter finds the classes of the mask 20% as well as in the source; expected at least 50%"),
        ("things", "20% of the things that a segmenter finds in the source kept their places; expected at least 50%"),
        ("recaption", "its new caption names 20% of what a caption of the source names; expected at least 50%"),
        ("fit", "the image fits its caption less well than the source fits its own: 0.200; expected at least 0.500"),
        ("label", "the ground truth has a probability of only 20%; expected at least 50%"),
    ],
)
def test_a_check_states_its_score_and_its_threshold(check: str, reason: str) -> None:
    scores = {check: 0.2, "label_margin": 0.1}
    assert judge(scores, EDIT, {check: {"default": 0.5}}, checks=(check,)).reason == reason


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"iou": 0.1},
            "1 of 2 protected regions moved; the pedestrian of 0.2% of the image overlaps its place "
            "by 0.10; expected at least 0.50",
        ),
        ({"outline": 9.0}, "its outline is 2.2 times as sharp as in the null arm; expected at most 2.0"),
        (
            {"inside": (88.0,) * 3, "around": (30.0,) * 3},
            "the pedestrian of 0.2% of the image kept the old light: its colour changed 3% as much as its "
            "surroundings'; expected at least 15%",
        ),
    ],
)
def test_a_protected_region_states_what_became_of_it(changes: dict[str, object], words: str) -> None:
    regions = [ProtectedRegion(label="pedestrian", share=share, box=(0, 0, 4, 4)) for share in (0.002, 0.03)]
    outcomes = [NULL.model_copy(update=changes), NULL]
    reply = ProtectionReply(mask=PICTURE, regions=regions, outcomes=[outcomes])
    verdict, _, _ = judge_regions(reply, outcomes, [NULL, NULL], HeldShapes())
    assert words in verdict.reason
