"""Thresholds that a job or profile may set: every accepted table judges every edit, and a mistake is named."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from gateway.jobs.choices import plan
from gateway.methods import METHODS
from gateway.methods.checks import CHECKS, LIMITS, UNCALIBRATED, factors_off, judge
from gateway.methods.counterfactual import FACTORS, Change, Edit, Factor
from gateway.methods.similarity import check_meaning
from shared.problems import InvalidInput
from shared.profiles.profile import load_profile
from shared.schemas.jobs import JobSpec
from shared.schemas.thresholds import IMAGE_CHECKS, TEXT_CHECKS, ImageThresholds, TextThresholds

IMAGES = TypeAdapter(ImageThresholds)
TEXTS = TypeAdapter(TextThresholds)
limits = st.floats(-3, 3)
names = st.one_of(st.sampled_from(["default", *FACTORS]), st.text(max_size=8))
tables = st.dictionaries(
    st.one_of(st.sampled_from([*IMAGE_CHECKS, *TEXT_CHECKS]), st.text(max_size=8)),
    st.dictionaries(names, st.one_of(limits, st.floats()), max_size=4),
    max_size=3,
)
correct = st.dictionaries(
    st.sampled_from(IMAGE_CHECKS),
    st.dictionaries(st.sampled_from(FACTORS), limits).flatmap(
        lambda by_factor: limits.map(lambda limit: {"default": limit, **by_factor})
    ),
)


def edit_of(*factors: Factor) -> Edit:
    return Edit(tuple(Change(factor, "old", "new", "old", "new") for factor in factors), "an old bus", "a new bus")


def scored(value: float) -> dict[str, float]:
    return {**dict.fromkeys(IMAGE_CHECKS, value), "label_margin": 1.0}


def test_every_check_of_every_method_can_have_a_threshold() -> None:
    assert set(CHECKS) == set(IMAGE_CHECKS)
    of_methods = {check for method in METHODS.values() for check in (*method.checks, *method.default_thresholds)}
    assert of_methods | set(UNCALIBRATED) | set(LIMITS) | {"validity"} == set(IMAGE_CHECKS)


@given(tables, st.sampled_from(FACTORS), limits)
def test_a_table_is_refused_with_a_reason_or_judges_every_edit(
    thresholds: dict[str, dict[str, float]], factor: Factor, score: float
) -> None:
    for adapter, known in ((IMAGES, IMAGE_CHECKS), (TEXTS, TEXT_CHECKS)):
        mistaken = any(
            check not in known
            or not {"default"} <= set(by_factor) <= {"default", *FACTORS}
            or not all(map(math.isfinite, by_factor.values()))
            for check, by_factor in thresholds.items()
        )
        if mistaken:
            with pytest.raises(ValidationError, match=r"choose from|needs a threshold|finite number"):
                adapter.validate_python(thresholds)
            continue
        assert adapter.validate_python(thresholds) == thresholds
        judge(scored(score), edit_of(factor, "weather"), thresholds, IMAGE_CHECKS)
        check_meaning(edit_of(factor, "weather"), dict.fromkeys(TEXT_CHECKS, score), thresholds)


@given(correct, st.sampled_from(FACTORS))
def test_a_check_is_off_for_a_factor_exactly_if_the_lowest_scores_pass(
    thresholds: dict[str, dict[str, float]], factor: Factor
) -> None:
    for check, by_factor in IMAGES.validate_python(thresholds).items():
        lowest = {"direction": 0.0, "label_margin": 1.0, check: CHECKS[check].lowest}
        passes = judge(lowest, edit_of(factor), {check: by_factor}, [check]).accepted
        assert (factor in factors_off(check, by_factor)) == passes


@pytest.mark.parametrize(
    ("parameter", "table", "message"),
    [
        ("thresholds", {"caption": {"weather": 0.1}}, "`caption` needs a threshold named `default`"),
        ("thresholds", {"captoin": {"default": 0.1}}, "there is no check 'captoin'; choose from structure, caption"),
        ("thresholds", {"caption": {"default": 0.1, "wether": 0.1}}, "'wether', which is no factor; choose from"),
        ("second_thresholds", {"caption": {"weather": 0.1}}, "`caption` needs a threshold named `default`"),
        ("arm_thresholds", {"likeness": {"weather": 0.5}}, "`likeness` needs a threshold named `default`"),
        ("arm_thresholds", {"likenes": {"default": 0.5}}, "there is no check 'likenes'; choose from structure"),
        ("text_thresholds", {"class_kept": {"weather": 0.1}}, "`class_kept` needs a threshold named `default`"),
        ("text_thresholds", {"caption": {"default": 0.1}}, "there is no check 'caption'; choose from class_words"),
    ],
)
def test_a_job_with_a_mistaken_threshold_is_refused(
    parameter: str, table: dict[str, dict[str, float]], message: str
) -> None:
    """The plan accepted `{"caption": {"weather": 0.1}}`, and the first edit of another factor raised a KeyError."""
    methods = [{"name": "lance", "parameters": {parameter: table}}]
    spec = JobSpec.model_validate({"task": "name it", "models": [], "methods": methods})
    with pytest.raises(InvalidInput, match=message):
        plan(spec, load_profile("tiny"), [])
