"""`kind` and `task_description` were both called `task` once: input may still call them so, output never does."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from pydantic import JsonValue, ValidationError

from shared.profiles.profile import CheckCalibration
from shared.schemas.evaluation import ModelUnderTestInfo
from shared.schemas.jobs import JobSpec
from shared.schemas.models import ModelDescription
from shared.schemas.results import HowMade

SENTENCE, KIND = "classify the vehicle", "segmentation"
MODEL: dict[str, JsonValue] = {"name": "m", "classes": ["car"], "weights": "", "revision": "", "licence": ""}
MADE: dict[str, JsonValue] = {
    "job": "j", "profile": "tiny", "seed": 0, "parameters": {}, "services": {}, "versions": {}, "analysis_seed": 0
}  # fmt: skip
ERRORS: dict[str, JsonValue] = {
    "judged_by": "people",
    "methods": {"lance": {"default": {"valid": 1, "valid_accepted": 1, "invalid": 1, "invalid_accepted": 0}}},
}


@pytest.mark.parametrize(
    ("contract", "name", "value", "others"),
    [
        (JobSpec, "task_description", SENTENCE, {}),
        (HowMade, "task_description", SENTENCE, MADE),
        (ModelDescription, "kind", KIND, {}),
        (ModelUnderTestInfo, "kind", KIND, MODEL),
        (CheckCalibration, "kind", KIND, ERRORS),
    ],
)
def test_both_names_are_read_and_the_new_one_is_written(
    contract: type[JobSpec], name: str, value: str, others: Mapping[str, JsonValue]
) -> None:
    earlier, today = (contract.model_validate({called: value, **others}) for called in ("task", name))
    assert earlier == today
    written = today.model_dump(mode="json", by_alias=True)
    assert (written[name], "task" in written) == (value, False)
    with pytest.raises(ValidationError):
        contract.model_validate({"task": value, name: value, **others})


def test_a_refusal_lists_the_names_of_today() -> None:
    with pytest.raises(ValidationError, match=r"sort.*kind, classes"):
        ModelDescription.model_validate({"sort": "segmentation"})
