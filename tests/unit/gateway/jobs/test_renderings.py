"""What a job renders at most: sham arms are part of the plan, and cost as much as null arms."""

from __future__ import annotations

import pytest
from pydantic import JsonValue

from gateway.jobs.designs import planned_renderings
from gateway.jobs.plans import PlannedJob, describe_plan
from gateway.jobs.sequences import PlannedImage
from gateway.methods import METHODS, JobMethod
from shared.schemas.evaluation import AskedQuestion, TokenUsage


@pytest.mark.parametrize(
    ("method", "parameters", "expected"),
    [
        ("lance", {"counterfactuals_per_image": 4, "self_fractions": [0.3, 0.5, 0.7]}, (12, 3, 3)),
        ("lance", {"counterfactuals_per_image": 2, "self_fractions": [0.3, 0.5], "reference": "null"}, (4, 2, 0)),
        ("lance-r", {"counterfactuals_per_image": 1, "self_fractions": [0.3, 0.5]}, (2, 1, 1)),
        ("shifts", {"shifts": ["at night", "in fog", "in rain"]}, (3, 1, 1)),
        ("dillema", {"counterfactuals_per_image": 5}, (5, 5, 0)),
        ("dillema", {"counterfactuals_per_image": 5, "same_seed": True, "reference": "sham"}, (5, 2, 2)),
        ("dillema", {"counterfactuals_per_image": 3, "seeds_per_edit": 2}, (6, 6, 0)),
        ("dillema", {"counterfactuals_per_image": 3, "seeds_per_edit": 2, "same_seed": True}, (6, 4, 0)),
        ("corruptions", {"corruptions": ["fog"]}, (5, 1, 0)),
        ("compose", {"backgrounds_per_image": 3, "scales": [0.5], "places": []}, (5, 1, 0)),
        ("instruct", {"counterfactuals_per_image": 3, "seeds_per_edit": 2}, (6, 2, 0)),
        ("instruct", {"instructions": ["make it night", "let it snow"]}, (2, 1, 0)),
        ("reconstruction", {}, (1, 0, 0)),
    ],
)
def test_a_plan_says_what_every_method_renders(
    method: str, parameters: dict[str, JsonValue], expected: tuple[int, int, int]
) -> None:
    typed = METHODS[method].parameters.model_validate(parameters)
    (plan,) = planned_renderings([JobMethod(method, typed)], images=10)
    assert (plan.edits, plan.null_arms, plan.sham_arms) == tuple(10 * count for count in expected)


def test_a_plan_counts_each_question_about_each_picture() -> None:
    typed = METHODS["shifts"].parameters.model_validate({"shifts": ["at night", "in fog"], "reference": "null"})
    job = PlannedJob(
        task_description="answer",
        kind="vqa",
        methods=[JobMethod("shifts", typed)],
        models=["assistant"],
        classes=[],
        profile="tiny",
        seed=0,
        design="free",
        chosen_by=None,
        budget=None,
        test_set=[],
        outside_domain="",
        calibrations=[],
        asked={"assistant": AskedQuestion(question="", usage=TokenUsage())},
    )
    images = [PlannedImage(str(number), ["number"], None, 64, True, questions=3) for number in range(4)]
    (planned,) = describe_plan(job, images, 64).questions
    assert planned.questions == 3 * 4 * (2 + 3)  # with and without the picture, then two edits and a null arm
