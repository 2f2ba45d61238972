"""How thresholds are chosen and written; the calibration itself needs weights and minutes."""

from __future__ import annotations

import tomllib

import numpy as np
import pytest

from tinyworld.calibrate_checks import REFUSED, drawn, proposals, threshold, toml, with_thresholds
from tinyworld.world import EDIT_FACTOR, differing_factors, sample_scene


def test_separated_scores_are_parted_in_the_middle() -> None:
    good, broken = np.linspace(0.6, 1.0, 100), np.linspace(0.0, 0.2, 100)
    assert threshold(good, broken) == pytest.approx(0.4)


def test_overlapping_scores_keep_false_rejects_within_their_share() -> None:
    random = np.random.default_rng(1)
    good, broken = random.normal(1, 1, 400), random.normal(0, 1, 400)
    limit = threshold(good, broken)
    assert (good < limit).mean() <= REFUSED
    assert (broken < limit).mean() > 0.1


def test_thresholds_are_written_once_and_read_as_they_were() -> None:
    profile = '[profile]\nname = "tiny"\n\n[thresholds.old]\ndefault = 1\n\n[defaults]\nmethods = ["dillema"]\n'
    limits = {"structure": {"default": 0.4, "weather": 0.3}, "label": {"default": 0.5}}
    once = with_thresholds(profile, toml(limits))
    assert tomllib.loads(once)["thresholds"] == limits
    assert with_thresholds(once, toml(limits)) == once
    assert tomllib.loads(once)["defaults"] == {"methods": ["dillema"]}


def test_proposals_change_what_they_say_and_nothing_else() -> None:
    random = np.random.default_rng(2)
    fields = set()
    for index in range(12):
        scene = sample_scene("calibration", index)
        for proposal in proposals(scene, random):
            change = proposal.edit.changes[0]
            assert differing_factors(scene, proposal.wanted) == {proposal.field}
            assert change.factor == EDIT_FACTOR[proposal.field]
            assert change.from_phrase in proposal.edit.caption
            assert change.to_phrase in proposal.edit.new_caption
            fields.add(proposal.field)
    assert len(fields) > 4
    images = drawn(scene, proposal, random)
    assert set(images) == {"good", "class", "gone", "unedited"}
    assert all(image.shape == images["good"].shape for image in images.values())
