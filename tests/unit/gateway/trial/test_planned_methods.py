"""Which methods a trial runs by default: all that reach a part of the profile."""

import pytest

from gateway.methods import JobMethod
from gateway.trial.try_image import planned_methods
from shared.problems import InvalidInput
from shared.profiles import load_profile
from shared.schemas.jobs import JobSpec

SPEC = JobSpec(task_description="classify the vehicle", models=[])


@pytest.mark.parametrize("profile", ["modern", "modern-80gb"])
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
