"""The trial of language models on the cut-outs' descriptions: which captions are asked about, and what is counted."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gateway.methods.counterfactual import Change, Edit, MethodImage, Verdict
from gateway.methods.schedule import Proposal
from research.photographs.backgrounds import VALUES
from research.photographs.cutouts import Cutout
from research.photographs.language import PLACES, TriedEdit, captions, in_turn, of_edits, tried
from shared.schemas.base import ImagePayload

PIXELS = np.zeros((2, 2, 4), np.uint8)


def cutout(name: str, label: str, description: str) -> Cutout:
    return Cutout(name, label, PIXELS, description)


def test_classes_take_turns_and_cut_outs_without_a_description_are_left_out() -> None:
    birds = [cutout("crow", "bird", "A crow."), cutout("owl", "bird", "An owl."), cutout("hen", "bird", "")]
    chosen = in_turn([*birds, cutout("bus", "vehicle", "A bus.")])
    assert [picture.name for picture in chosen] == ["crow", "bus", "owl"]


def test_a_caption_is_the_description_on_a_background_of_the_trial() -> None:
    chosen = [cutout(str(number), "bird", "A crow.") for number in range(7)]
    texts = [caption for _, caption in captions(chosen)]
    assert texts[0] == "A crow in front of a water drop."
    assert texts[6] == texts[0]
    assert len(set(texts)) == len(PLACES)
    assert set(PLACES) == set(VALUES.values()), "the backgrounds of the trial"


def test_accepted_edits_are_counted_and_shown() -> None:
    image = MethodImage("crow", ImagePayload(png=b"-"), "bird")
    change = Change("background", "on a meadow", "in a city", "meadow", "city")
    edit = Edit((change,), "A crow on a meadow.", "A crow in a city.")
    row = tried("lance", image, Proposal(edit, 1))
    assert row == TriedEdit(
        "lance", "bird", edit.caption, "background", "on a meadow", "in a city", edit.new_caption, "", ""
    )
    refused = tried("lance", image, Proposal(edit, 1, Verdict(False, "word diff", "too much")))
    text = of_edits([row, refused, replace(refused, check="other class"), refused])
    assert "25.0% (1 of 4" in text
    assert "word diff 2, other class 1" in text
    assert text.count("A crow in a city.") == 1
