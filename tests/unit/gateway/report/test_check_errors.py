"""Which errors of the checks a report uses."""

from __future__ import annotations

import pytest

from gateway.database.tables import Job
from gateway.methods import read_method
from gateway.report.build import _calibration
from shared.profiles.profile import CheckCalibration
from shared.schemas.base import JsonObject
from shared.schemas.effects import CheckErrors
from tests.support.service_infos import evaluator_with_scorer

ERRORS = {"default": CheckErrors(valid=200, valid_accepted=180, invalid=200, invalid_accepted=6)}
MEASURED = CheckCalibration(judged_by="people", scorer="a" * 40, methods={"dillema": ERRORS})


def job_of(**parameters: JsonObject) -> Job:
    return Job(methods=[read_method("dillema", {**parameters})])


@pytest.mark.parametrize(("scorer", "used"), [("a" * 40, True), ("b" * 40, False), ("", False)])
def test_errors_hold_for_the_scorer_that_they_were_measured_with(scorer: str, used: bool) -> None:
    services = [evaluator_with_scorer(scorer)] if scorer else []
    calibration = _calibration("tinyworld", MEASURED, services, job_of())
    assert (bool(calibration.errors), "aaaaaaaaaaaa" in calibration.not_used) == (used, not used)


def test_errors_hold_at_the_thresholds_at_which_they_were_measured() -> None:
    moved = MEASURED.model_copy(update={"thresholds": {"dillema": {"label": {"default": 0.5}}}})
    services = [evaluator_with_scorer("a" * 40)]
    other = _calibration("tinyworld", moved, services, job_of())
    assert (other.errors, "thresholds" in other.not_used) == ({}, True)
    same = _calibration("tinyworld", moved, services, job_of(thresholds={"label": {"default": 0.5}}))
    assert same.errors == {"dillema": ERRORS}
