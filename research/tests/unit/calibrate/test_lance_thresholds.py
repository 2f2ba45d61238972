"""LANCE's thresholds are written into the profile beside those of ControlNet edits, which stay as they are."""

from __future__ import annotations

import tomllib
from typing import get_args

import numpy as np
import pytest

from gateway.methods import METHODS
from gateway.methods.checks import EDITED_CHECKS, judge
from gateway.methods.counterfactual import Change, Edit
from gateway.methods.inverted import SweepParameters
from gateway.methods.lance import LanceParameters
from research.calibrate.broken import Kind, Trial
from research.calibrate.edits import toml, with_thresholds
from research.calibrate.thresholds import thresholds
from research.calibrate.thresholds import with_thresholds as with_others
from shared.profiles.profile import SHIPPED, load_profile

KINDS = get_args(Kind)
EDIT = Edit((Change("weather", "by day", "at night", "day", "night"),), "a bus by day", "a bus at night")


def test_both_kinds_of_thresholds_can_be_written_again_and_again() -> None:
    first = toml({"direction": {"default": 0.1, "weather": 0.2}})
    second = toml({"likeness": {"default": 0.7}})
    others = "[thresholds.label]\ndefault = 0.5\n"
    text = (SHIPPED / "tiny.toml").read_text()
    written = with_thresholds(with_others(with_thresholds(with_thresholds(text, first), second), others), first)
    assert written.count("research.calibrate.edits") == 1
    profile, before = tomllib.loads(written), tomllib.loads(text)
    assert profile["thresholds"] == {"label": {"default": 0.5}}
    for name, method in METHODS.items():
        parameters = profile["methods"].get(name, {})
        if issubclass(method.parameters, SweepParameters):
            assert parameters.pop("thresholds") == {"direction": {"default": 0.1, "weather": 0.2}}
        was = {key: value for key, value in before["methods"].get(name, {}).items() if key != "thresholds"}
        assert {key: value for key, value in parameters.items() if key != "thresholds"} == was


def test_thresholds_for_edits_are_over_their_own_checks() -> None:
    random = np.random.default_rng(1)
    faults = dict(zip(KINDS, ("", "label", "likeness", "direction", "match"), strict=True))
    trials = [Trial(scene, kind, EDIT, _scores(random, faults[kind])) for scene in range(40) for kind in KINDS]
    chosen = thresholds(trials, EDITED_CHECKS)
    assert set(chosen) == set(EDITED_CHECKS)
    passed = {
        kind: [judge(t.scores, EDIT, chosen, EDITED_CHECKS).accepted for t in trials if t.kind == kind]
        for kind in KINDS
    }
    assert np.mean(passed["good"]) >= 0.87
    assert all(np.mean(passed[kind]) <= 0.05 for kind in KINDS[1:])


def _scores(random: np.random.Generator, fault: str) -> dict[str, float]:
    scores: dict[str, float] = {check: float(random.normal(0.5, 0.05)) for check in EDITED_CHECKS}
    if fault:
        scores[fault] -= 0.3
    return {**scores, "label_margin": 0.5}


def test_the_papers_thresholds_stand_in_the_profile_paper_only() -> None:
    papers = {"direction": 0.2, "likeness": 0.7, "match": 0.2}
    chosen = LanceParameters.model_validate(load_profile("paper").methods["lance"])
    assert {check: limits["default"] for check, limits in chosen.thresholds.items()} == papers
    assert chosen.inversion == "null_text"
    for name in ("tiny", "modern"):
        parameters = load_profile(name).methods.get("lance", {})
        assert LanceParameters.model_validate(parameters).thresholds != chosen.thresholds


@pytest.mark.parametrize("name", ["tiny", "paper", "modern"])
def test_every_profile_says_what_lance_needs_or_that_it_is_missing(name: str) -> None:
    profile = load_profile(name)
    assert profile.evaluator.text_embedder is not None or "lance" not in profile.defaults.methods
