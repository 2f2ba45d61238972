"""Checks without a threshold are named, and a calibration brings its own thresholds into a job."""

from __future__ import annotations

import pytest

from gateway.jobs.checks_off import checks_off
from gateway.jobs.choices import plan
from gateway.methods import METHODS
from shared.profiles import CheckCalibration, Profile, load_profile
from shared.schemas.effects import CheckErrors
from shared.schemas.jobs import JobSpec

CHECKED = ["dillema", "lance", "lance-r", "shifts"]


def job_spec(*methods: str, **fields: object) -> JobSpec:
    choices = [{"name": name} for name in methods]
    return JobSpec.model_validate({"task": "name it", "models": [], "methods": choices, **fields})


def off(profile: str, kind: str = "classification") -> dict[str, list[str]]:
    methods = plan(job_spec(*CHECKED, "corruptions"), load_profile(profile), []).methods
    return checks_off(methods, "segmentation" if kind == "segmentation" else "classification")


@pytest.mark.parametrize("profile", ["paper", "modern"])
def test_profiles_for_photographs_name_the_checks_that_refuse_nothing(profile: str) -> None:
    named = off(profile)
    assert named["dillema"] == named["shifts"] == ["label", "fit"]
    assert all("label" in named[method] for method in ("lance", "lance-r"))
    assert all("caption" not in checks for checks in named.values()), "it has a threshold, if only a default"
    assert all("label" not in checks for checks in off(profile, "segmentation").values())


def test_the_small_profile_has_a_threshold_for_every_check() -> None:
    assert off("tiny") == {}


def calibrated(method: str, thresholds: dict[str, dict[str, float]]) -> Profile:
    errors = {"weather": CheckErrors(valid=20, valid_accepted=18, invalid=20, invalid_accepted=4)}
    measured = CheckCalibration(judged_by="people", methods={method: errors}, thresholds={method: thresholds})
    return load_profile("tiny").model_copy(update={"calibration": {"streets": measured}})


@pytest.mark.parametrize("method", CHECKED)
def test_a_calibration_sets_the_thresholds_of_its_own_methods_only(method: str) -> None:
    thresholds = {"label": {"default": 0.12, "weather": 0.34}}
    profile = calibrated(method, thresholds)
    other = CHECKED[CHECKED.index(method) - 1]
    planned = {
        planned_method.name: planned_method
        for planned_method in plan(job_spec(method, other, calibration="streets"), profile, []).methods
    }
    assert planned[method].thresholds == {**METHODS[method].default_thresholds, **thresholds}
    before = {
        planned_method.name: planned_method for planned_method in plan(job_spec(method, other), profile, []).methods
    }
    assert planned[other].thresholds == before[other].thresholds
    assert before[method].thresholds != planned[method].thresholds


def test_checks_that_were_off_when_the_errors_were_measured_stay_off() -> None:
    (method,) = plan(job_spec("dillema", calibration="streets"), calibrated("dillema", {}), []).methods
    assert method.thresholds == {}
