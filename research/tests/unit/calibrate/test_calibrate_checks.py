"""Thresholds: how they are chosen, reported and written."""

from __future__ import annotations

import tomllib
from collections import Counter
from typing import get_args

import numpy as np
import pytest

from gateway.analysis.thresholds import REFUSED
from gateway.methods.checks import judge
from gateway.methods.counterfactual import Change, Edit, Factor
from research.calibrate.broken import Kind, Trial, calibration_edits
from research.calibrate.thresholds import held_out_scores, limits, table, thresholds, toml, with_thresholds
from tests.support.scene_fields import differing_fields
from tinyworld.objects.captions import read
from tinyworld.objects.proposals import FIELDS, proposal, proposals
from tinyworld.objects.world import EDIT_FACTOR, sample_scene

KINDS = get_args(Kind)
# Which score a fault lowers.
HURTS = {"good": "", "class": "label", "gone": "structure", "unedited": "caption", "second": "fit"}


def trial(kind: Kind, random: np.random.Generator, scene: int, factor: Factor = "weather", fault: float = 5.0) -> Trial:
    scores = {check: float(random.normal()) for check in ("structure", "caption", "label", "fit")}
    if kind != "good":
        scores[HURTS[kind]] -= fault
    edit = Edit((Change(factor, "a", "b", "a", "b"),), "an a", "a b")
    return Trial(scene, kind, edit, {**scores, "label_margin": 0.5})


def trials(count: int, fault: float = 5.0, factor: Factor = "weather") -> list[Trial]:
    random = np.random.default_rng(1)
    return [trial(kind, random, scene, factor, fault) for scene in range(count) for kind in KINDS]


def test_visible_faults_are_rarely_accepted_while_good_images_pass() -> None:
    scored = trials(200)
    chosen = {check: {"default": lowest} for check, lowest in limits(scored).items()}
    passed = {kind: [judge(t.scores, t.edit, chosen).accepted for t in scored if t.kind == kind] for kind in KINDS}
    assert np.mean(passed["good"]) >= 1 - REFUSED
    assert all(np.mean(passed[kind]) <= 0.03 for kind in KINDS[1:])


def test_invisible_faults_cost_no_good_images() -> None:
    scored = [trial for trial in trials(100, fault=0.0) if trial.kind != "second"]
    chosen = {check: {"default": lowest} for check, lowest in limits(scored).items()}
    good = [judge(trial.scores, trial.edit, chosen).accepted for trial in scored if trial.kind == "good"]
    assert np.mean(good) >= 1 - REFUSED


def test_a_factor_with_few_good_images_uses_the_threshold_of_all_factors() -> None:
    chosen = thresholds([*trials(60), *trials(5, factor="object")])
    assert all(set(values) == {"default", "weather"} for values in chosen.values())


def test_without_good_images_the_error_says_what_to_do() -> None:
    with pytest.raises(ValueError, match="take more images"):
        limits([trial for trial in trials(3) if trial.kind != "good"])


def test_figures_are_measured_on_held_out_scenes() -> None:
    judged = held_out_scores(trials(120))
    assert len(judged) == 120 * len(KINDS)
    lines = table(judged)
    assert lines[0].startswith("all: AUROC 0.9")
    assert any(line.startswith("weather: ") for line in lines)
    assert sum(line.strip().startswith("second: ") for line in lines) == 2
    for _, accepted, worst in judged:
        assert accepted == (worst >= 0)


def test_thresholds_are_written_once_and_read_as_they_were() -> None:
    profile = '[profile]\nname = "tiny"\n\n[thresholds.old]\ndefault = 1\n\n[defaults]\nmethods = ["dillema"]\n'
    chosen = {"structure": {"default": 0.4, "weather": 0.3}, "label": {"default": 0.5}}
    once = with_thresholds(profile, toml(chosen))
    assert tomllib.loads(once)["thresholds"] == chosen
    assert with_thresholds(once, toml(chosen)) == once
    assert tomllib.loads(once)["defaults"] == {"methods": ["dillema"]}


def test_proposals_change_what_they_say_and_nothing_else() -> None:
    random = np.random.default_rng(2)
    fields = set()
    for index in range(12):
        scene = sample_scene("calibration", index)
        for suggestion in proposals(scene, random):
            change = suggestion.edit.changes[0]
            assert differing_fields(scene, suggestion.target) == {suggestion.field}
            assert change.factor == EDIT_FACTOR[suggestion.field]
            assert change.from_phrase in suggestion.edit.caption
            assert change.to_phrase in suggestion.edit.new_caption
            fields.add(suggestion.field)
    assert len(fields) > 4


def test_a_caption_that_states_the_field_is_found() -> None:
    random = np.random.default_rng(3)
    scenes = [sample_scene("calibration", index) for index in range(20)]
    assert all(proposal(scene, "weather", random) for scene in scenes)
    alone = next(scene for scene in scenes if scene.companion == "none")
    assert proposal(alone, "companion", random) is None


def test_edits_use_each_factor_equally_often_and_each_scene_once() -> None:
    edits = list(calibration_edits(20))
    assert set(Counter(edit.factor for edit in edits).values()) == {4}
    assert {edit.field for edit in edits} == set(FIELDS)
    assert len({edit.scene.geometry_seed for edit in edits}) == 20


def test_new_captions_state_the_new_value_and_everything_else_as_before() -> None:
    for index in range(60):
        random = np.random.default_rng(index)
        for suggestion in proposals(sample_scene("calibration", index), random):
            before, after = read(suggestion.edit.caption), read(suggestion.edit.new_caption)
            assert after == {**before, suggestion.field: getattr(suggestion.target, suggestion.field)}, suggestion.edit
