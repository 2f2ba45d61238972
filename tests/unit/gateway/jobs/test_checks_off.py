"""Checks without a threshold are named, and a calibration brings its own thresholds into a job."""

from __future__ import annotations

import pytest

from gateway.jobs.choices import plan
from gateway.jobs.plans import checks_off, unchecked_methods
from gateway.methods import METHODS, JobMethod
from gateway.methods.counterfactual import FACTORS
from gateway.methods.dillema import DillemaParameters
from shared.profiles.profile import CheckCalibration, Profile, load_profile
from shared.schemas.effects import CheckErrors
from shared.schemas.jobs import JobSpec

CHECKED = ["dillema", "lance", "lance-r", "shifts"]


def job_spec(*methods: str, **fields: object) -> JobSpec:
    choices = [{"name": name} for name in methods]
    return JobSpec.model_validate({"task": "name it", "models": [], "methods": choices, **fields})


def off(profile: str, kind: str = "classification") -> dict[str, list[str]]:
    planned = CHECKED if profile != "modern" else [method for method in CHECKED if not METHODS[method].needs_thresholds]
    methods = plan(job_spec(*planned, "corruptions"), load_profile(profile), []).methods
    return checks_off(methods, "segmentation" if kind == "segmentation" else "classification")


@pytest.mark.parametrize("profile", ["paper", "modern"])
def test_profiles_for_photographs_name_the_checks_that_refuse_nothing(profile: str) -> None:
    named = off(profile)
    assert named["dillema"] == named["shifts"] == ["fit"]
    assert all("caption" not in checks for checks in named.values()), "it has a threshold, if only a default"
    assert all("label" not in checks for checks in named.values()), "the rank alone refuses"


def test_the_small_profile_has_a_threshold_for_every_check_but_the_one_that_its_fit_turned_off() -> None:
    assert off("tiny") == {"shifts": ["structure"]}


def of_dillema(**thresholds: dict[str, float]) -> JobMethod:
    return JobMethod("dillema", DillemaParameters(thresholds=thresholds))


def test_a_threshold_that_every_image_reaches_does_not_turn_a_check_on() -> None:
    """`structure` of `shifts` had a threshold of −0.0001: no agreement is below 0, and nothing called the check off."""
    always = of_dillema(structure={"default": -0.0001, "weather": 0.0}, caption={"default": -2.0}, label={"default": 0})
    assert checks_off([always], "classification") == {"dillema": ["structure", "caption", "fit"]}, "label also ranks"
    sometimes = of_dillema(structure={"default": -0.0001, "weather": 0.1}, caption={"default": -1.9})
    assert checks_off([sometimes], "classification") == {"dillema": ["structure (all but weather)", "label", "fit"]}
    noise_passes = of_dillema(structure={"default": 0.0}, caption={"default": -2.0})
    assert unchecked_methods([noise_passes], "classification") == ["dillema"]
    assert unchecked_methods([sometimes], "classification") == []


def test_the_combined_check_can_refuse_and_turns_no_other_check_off() -> None:
    """Plans said of jobs with `validity` that noise passes, and that all other checks refuse nothing."""
    combined = of_dillema(validity={"default": 0.3})
    assert unchecked_methods([combined], "classification") == []
    assert checks_off([combined], "classification") == {}
    assert unchecked_methods([of_dillema(validity={"default": 0.0})], "classification") == ["dillema"]


def test_a_check_that_refuses_nothing_for_some_factors_is_off_for_them() -> None:
    weather_only = of_dillema(caption={"default": -2, "weather": 0})
    assert "caption (all but weather)" in checks_off([weather_only], "classification")["dillema"]
    not_weather = of_dillema(caption={"default": 0, "weather": -2})
    assert "caption (weather)" in checks_off([not_weather], "classification")["dillema"]
    every_factor = of_dillema(caption={"default": -2, **dict.fromkeys(FACTORS, 0.1)})
    assert "caption" not in " ".join(checks_off([every_factor], "classification")["dillema"]), "no edit has the default"


def test_a_new_caption_that_may_lose_its_class_is_off() -> None:
    def named_off(recaption: bool, limit: float) -> bool:
        parameters = DillemaParameters(recaption=recaption, thresholds={"recaption": {"default": limit}})
        return "recaption" in checks_off([JobMethod("dillema", parameters)], "classification")["dillema"]

    assert named_off(True, 0.0)
    assert not named_off(True, 0.5)
    assert not named_off(False, 0.0), "the job does not ask for it"


def calibrated(method: str, thresholds: dict[str, dict[str, float]]) -> Profile:
    errors = {"weather": CheckErrors(valid=20, valid_accepted=18, invalid=20, invalid_accepted=4)}
    measured = CheckCalibration(judged_by="people", methods={method: errors}, thresholds={method: thresholds})
    return load_profile("tiny").model_copy(update={"calibration": {"streets": measured}})


@pytest.mark.parametrize("method", CHECKED)
def test_a_calibration_sets_the_thresholds_of_its_own_methods_only(method: str) -> None:
    thresholds = {"label": {"default": 0.12, "weather": 0.34}}
    thresholds |= {check: {"default": 0.1} for check in METHODS[method].needs_thresholds}
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


def test_arms_keep_the_thresholds_of_the_profile_that_a_calibration_has_none_for() -> None:
    own = load_profile("tiny").thresholds
    (unfitted,) = plan(job_spec("dillema", calibration="streets"), calibrated("dillema", {}), []).methods
    assert unfitted.thresholds_for_arms == own
    label = {"label": {"default": 0.12}}
    (fitted,) = plan(job_spec("dillema", calibration="streets"), calibrated("dillema", label), []).methods
    assert fitted.thresholds_for_arms == {**own, **label}
    (uncalibrated,) = plan(job_spec("dillema"), load_profile("tiny"), []).methods
    assert uncalibrated.thresholds_for_arms == uncalibrated.thresholds == own
