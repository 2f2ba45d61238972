"""Which methods a trial runs by default: all that reach a part of the profile. And what it says of its photograph."""

from pathlib import Path

import numpy as np
import pytest

from gateway.methods import JobMethod
from gateway.model_services.clients import ModelServices
from gateway.trial.try_image import TrialImage, planned_methods, try_image
from shared.media.images import encode
from shared.problems import InvalidInput
from shared.profiles.profile import load_profile
from shared.schemas.jobs import JobSpec

SPEC = JobSpec(task_description="classify the vehicle", models=[])


@pytest.mark.parametrize("profile", ["modern", "modern-24gb", "modern-80gb"])
def test_a_profile_with_two_editors_gets_methods_of_both(profile: str) -> None:
    planned = planned_methods([], SPEC, load_profile(profile), [])
    names = {method.name for method in planned if isinstance(method, JobMethod)}
    assert {"dillema", "instruct"} <= names
    assert planned[0].name == load_profile(profile).defaults.methods[0], "the profile's own method comes first"


def test_a_method_that_the_profile_cannot_run_is_named_or_refused() -> None:
    skipped = {step.name: step for step in planned_methods([], SPEC, load_profile("paper"), [])}["instruct"]
    assert not isinstance(skipped, JobMethod)
    assert "[diffusion.instruct]" in skipped.outcome
    with pytest.raises(InvalidInput, match="needs"):
        planned_methods(["instruct"], SPEC, load_profile("paper"), [])


def test_a_photograph_that_is_scaled_down_is_said_to_be(tmp_path: Path) -> None:
    photograph = TrialImage(encode(np.zeros((30, 40, 3), np.uint8)), "classify the vehicle")
    services = ModelServices({})
    try:
        for side, outcome in [
            (20, "20 × 15 pixels, scaled down from 40 × 30 (CONTRAFACT_WORKING_SIDE)"),
            (40, "40 × 30 pixels"),
        ]:
            step = next(try_image(services, {}, load_profile("tiny"), photograph, tmp_path, working_side=side))
            assert (step.name, step.outcome) == ("image", outcome)
    finally:
        services.close()
