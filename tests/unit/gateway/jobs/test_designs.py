"""What a balanced design makes of a job's methods: the same values for every image, within the budget."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from pydantic import JsonValue, ValidationError

from gateway.jobs.choices import plan
from gateway.jobs.designs import design_of, renderings, values_of, with_design, with_design_kind
from gateway.jobs.sensitivity import GroupedTruth, accepted_share, planned, sensitivity_of
from gateway.methods import JobMethod
from gateway.methods.counterfactual import Factor
from gateway.methods.proposed_values import ProposedValues
from shared.problems import InvalidInput
from shared.profiles.profile import load_profile, shipped_profiles
from shared.schemas.jobs import JobSpec, MethodChoice

IMAGES = 10
TINY = load_profile("tiny")


def of_profile(factors: Sequence[Factor]) -> ProposedValues:
    return ProposedValues(tuple(chosen for chosen in TINY.defaults.values if chosen.factor in factors), "profile", {})


def designed(methods: list[JsonValue], **options: object) -> list[JobMethod]:
    spec = JobSpec.model_validate({"task_description": "name it", "methods": methods, "models": [], **options})
    return with_design(plan(spec, TINY, []), spec, of_profile, IMAGES).methods


def names(method: JobMethod) -> list[str]:
    return [f"{chosen.factor}={chosen.value}" for chosen in values_of(method)]


def test_the_values_of_the_job_apply_to_every_method_that_takes_values() -> None:
    methods = designed(["dillema", "lance", "corruptions"], design="balanced", values=["weather=dusk", "domain=sketch"])
    assert [names(method) for method in methods] == [["weather=dusk", "domain=sketch"]] * 2 + [[]]
    assert [chosen.value for chosen in design_of("balanced", None, methods).values] == ["dusk", "sketch"]


def test_without_values_a_method_gets_as_many_as_it_can_render_at_the_cost_of_a_free_design() -> None:
    (method,) = designed(
        [{"name": "dillema", "parameters": {"counterfactuals_per_image": 3, "factors": ["domain", "background"]}}],
        design="balanced",
    )
    assert names(method) == ["domain=sketch", "domain=painting", "background=forest", "background=beach"]
    assert renderings(method, IMAGES) == 2 * 3 * IMAGES  # a null arm for each of two regions
    (own,) = designed([{"name": "dillema", "parameters": {"same_seed": False}}], design="balanced")
    assert len(values_of(own)) == 4


@pytest.mark.parametrize(("budget", "values"), [(80, 6), (79, 5), (20, 1)])
def test_a_budget_limits_the_usual_values(budget: int, values: int) -> None:
    """A free design renders four edits of an image and as many null arms; values share two null arms."""
    (method,) = designed(["dillema"], design="balanced", budget=budget)
    assert len(values_of(method)) == values
    assert renderings(method, IMAGES) <= budget


@pytest.mark.parametrize(
    ("methods", "options", "named"),
    [
        (["dillema"], {"budget": 19}, "budget"),
        (["dillema"], {"budget": 50, "values": ["weather=night", "weather=fog", "weather=dusk"]}, "budget"),
        (["corruptions"], {"budget": 50}, "budget"),
        (["corruptions"], {"values": ["weather=night"]}, "values"),
        (["lance"], {"values": ["other=upside down"]}, "other"),
        (["lance-r"], {}, "lance-r"),
        ([{"name": "dillema", "parameters": {"edits_per_counterfactual": 2}}], {}, "one change"),
        ([{"name": "lance", "parameters": {"factors": ["domain"]}}], {"values": ["weather=fog"]}, "weather"),
    ],
)
def test_what_cannot_be_balanced_is_refused(
    methods: list[JsonValue], options: dict[str, JsonValue], named: str
) -> None:
    with pytest.raises(InvalidInput, match=named):
        designed(methods, design="balanced", **options)


def test_the_methods_of_a_plan_can_be_sent_again() -> None:
    planned = designed(["dillema"], design="balanced", values=["weather=dusk"])
    assert designed([method.choice().model_dump() for method in planned], design="balanced") == planned


def test_values_belong_to_a_balanced_design() -> None:
    with pytest.raises(InvalidInput, match="balanced"):
        designed([{"name": "dillema", "parameters": {"values": ["weather=fog"]}}], design="free")
    for options in ({"values": ["weather=night"]}, {"budget": 5}):
        with pytest.raises(ValidationError, match="balanced"):
            JobSpec.model_validate({"task_description": "name it", "design": "free", **options})


@pytest.mark.parametrize(
    ("methods", "options", "kind"),
    [
        (["dillema", "corruptions"], {}, "balanced"),
        (["corruptions"], {}, "free"),
        (["dillema", "lance-r"], {}, "free"),
        ([{"name": "dillema", "parameters": {"seeds_per_edit": 2}}], {}, "free"),
        ([{"name": "instruct", "parameters": {"instructions": ["Add snow."]}}], {}, "free"),
        (["corruptions"], {"budget": 50}, "balanced"),
    ],
)
def test_every_image_gets_the_same_values_unless_a_method_chooses_its_own(
    methods: list[JsonValue], options: dict[str, JsonValue], kind: str
) -> None:
    spec = JobSpec.model_validate({"task_description": "name it", "methods": methods, "models": [], **options})
    assert with_design_kind(spec, plan(spec, TINY, []).methods, "balanced").design == kind


def test_the_papers_profiles_keep_the_free_design_of_the_papers() -> None:
    designs = {name: load_profile(name).defaults.design for name in shipped_profiles()}
    assert {name for name, design in designs.items() if design == "free"} == {"paper", "paper-tgi"}
    spec = JobSpec(task_description="name it", methods=[MethodChoice(name="dillema")], models=[])
    assert with_design_kind(spec, plan(spec, TINY, []).methods, "free").design == "free"


@pytest.mark.parametrize("values", [["night"], ["time=night"], ["weather="], ["weather=night", "weather=Night"]])
def test_values_that_cannot_be_read_are_refused(values: list[JsonValue]) -> None:
    with pytest.raises(ValidationError):
        JobSpec.model_validate({"task_description": "name it", "design": "balanced", "values": values})


def test_the_plan_counts_on_the_edits_that_the_checks_accepted_when_the_profile_was_calibrated() -> None:
    methods = designed(["dillema"], values=["weather=dusk"], design="balanced")
    weather = TINY.calibration["tinyworld"].methods["dillema"]["weather"]
    share = accepted_share(methods, TINY.calibration.values())
    assert share == (weather.valid_accepted + weather.invalid_accepted) / (weather.valid + weather.invalid)
    images = [GroupedTruth(["bus"], None)] * 40
    (all_accepted,) = sensitivity_of(images, methods).classes
    (expected,) = sensitivity_of(images, methods, conditions=planned("balanced", share)).classes
    assert (expected.drop or 0) > (all_accepted.drop or 1)
    assert f"about {round(share * 40)} in a cell" in expected.sentence
    assert accepted_share(methods, ()) is None  # nothing is known
    assert (
        accepted_share(designed(["corruptions"], design="free"), TINY.calibration.values()) is None
    )  # nothing is refused


def test_the_plan_counts_the_cells_of_the_values() -> None:
    methods = designed(["dillema"], design="balanced", values=["weather=dusk", "domain=sketch"])
    assert sensitivity_of([GroupedTruth(["bus"], None)] * 40, methods).family == 2 * 2
