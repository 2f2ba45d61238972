"""The design of a job: which values its methods change source images to, within its budget of renderings.

In a balanced or adaptive design the methods that choose their changes (DILLEMA, LANCE, instruct) get the same values
for every source image, as their parameter `values`; an adaptive job gives each image some of them (`rounds.py`).
Shifts, corruptions, reconstruction and given instructions treat all images alike by themselves.

How many images each method of a job renders at most, before it starts: edits, null arms and sham arms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gateway.jobs.choices import Plan
from gateway.methods import JobMethod
from gateway.methods.compose import ComposeParameters
from gateway.methods.corruptions import CorruptionsParameters
from gateway.methods.counterfactual import FACTORS
from gateway.methods.dillema import DillemaParameters
from gateway.methods.doses import DosesParameters
from gateway.methods.instruct import InstructParameters
from gateway.methods.inverted import SweepParameters
from gateway.methods.lance import LanceParameters
from gateway.methods.lance_r import LanceRParameters
from gateway.methods.paraphrase import ParaphraseParameters
from gateway.methods.shifts import ShiftsParameters
from shared.problems import InvalidInput
from shared.schemas.base import Contract
from shared.schemas.designs import MOST_VALUES, ChosenValue, Design, DesignKind
from shared.schemas.diffusion import SEVERITIES
from shared.schemas.jobs import JobSpec
from shared.schemas.plans import PlannedRenderings

_REGIONS = 2  # that edits of one image are controlled by
_CHOOSING = DillemaParameters | LanceParameters | InstructParameters  # methods that choose their changes


def with_design(plan: Plan, spec: JobSpec, usual: Sequence[ChosenValue], images: int) -> Plan:
    """The plan with the values of its methods, for so many usable images. `usual`: the profile's values.

    A job's own values apply to every method that takes values; without them, those in a method's parameters. Without
    both a method gets the first of the usual values
    of its factors, as many as it makes counterfactuals of an image in a free design, or fewer within the budget. Raises
    InvalidInput for a value of a factor that a method does not change, for a method that draws its changes by chance,
    and if the budget is too small.
    """
    if spec.design == "free":
        if names := [method.name for method in plan.methods if values_of(method)]:
            raise InvalidInput(
                f"the parameter `values` of {', '.join(names)} needs `design` balanced or adaptive; set it on the job"
            )
        return plan
    # An adaptive job spends its budget round by round, so it limits no values.
    limited = spec if spec.design == "balanced" else spec.model_copy(update={"budget": None})
    methods = [_method(method, limited, usual, images) for method in plan.methods]
    if spec.values and not any(map(values_of, methods)):
        raise InvalidInput(f"no method of this job takes `values`: {', '.join(method.name for method in methods)}")
    return replace(plan, methods=methods)


def values_of(method: JobMethod) -> list[ChosenValue]:
    """The values that a method changes every source image to; empty if it takes none."""
    parameters = method.parameters
    return [*parameters.values] if isinstance(parameters, _CHOOSING) else []


def design_of(kind: DesignKind, budget: int | None, methods: Sequence[JobMethod]) -> Design:
    """The design of a job with these methods."""
    values = dict.fromkeys((chosen.factor, chosen.value) for method in methods for chosen in values_of(method))
    return Design(
        kind=kind, values=[ChosenValue(factor=factor, value=value) for factor, value in values], budget=budget
    )


def _method(method: JobMethod, spec: JobSpec, usual: Sequence[ChosenValue], images: int) -> JobMethod:
    parameters = method.parameters
    if isinstance(parameters, LanceRParameters):
        raise InvalidInput("lance-r draws its words by chance, so it cannot be balanced; leave it out of `methods`")
    by_user = isinstance(parameters, InstructParameters) and parameters.instructions  # the same for all images
    if isinstance(parameters, _CHOOSING) and not by_user:
        if isinstance(parameters, DillemaParameters) and parameters.several_changes:
            raise InvalidInput(
                "a design with chosen values makes one change each: set same_caption to false and "
                "edits_per_counterfactual to 1 in the parameters of dillema"
            )
        factors = parameters.factors or FACTORS
        if values := spec.values or parameters.values:
            method = with_values(method, _own_values(method.name, values, factors))
        else:
            most = parameters.counterfactuals_per_image if spec.design == "balanced" else MOST_VALUES
            of_factors = [chosen for chosen in usual if chosen.factor in factors][:most]
            method = with_values(method, _affordable(method, of_factors, spec.budget, images))
    if _exceeds(method, spec.budget, images):
        raise InvalidInput(
            f"{method.name} renders up to {renderings(method, images):,} images, and `budget` is {spec.budget:,}; "
            "raise it, or bring fewer values or images"
        )
    return method


def _own_values(method: str, values: Sequence[ChosenValue], factors: Sequence[str]) -> Sequence[ChosenValue]:
    for chosen in values:
        if chosen.factor not in factors:
            raise InvalidInput(
                f"{method} does not change the factor {chosen.factor!r} of the value {chosen.value!r}; "
                f"its factors are {', '.join(factors)}"
            )
    return values


def _affordable(
    method: JobMethod, values: Sequence[ChosenValue], budget: int | None, images: int
) -> Sequence[ChosenValue]:
    """The first of the values, as many as the budget allows, and at least one."""
    if not values:
        raise InvalidInput(f"the profile has no values for the factors of {method.name}; name `values`")
    while len(values) > 1 and _exceeds(with_values(method, values), budget, images):
        values = values[:-1]
    return values


def with_values(method: JobMethod, values: Sequence[ChosenValue]) -> JobMethod:
    """The method with these values."""
    return replace(method, parameters=method.parameters.model_copy(update={"values": tuple(values)}))


def renderings(method: JobMethod, images: int) -> int:
    """The most images that a method renders, null and sham arms included."""
    (plan,) = planned_renderings([method], images)
    return plan.edits + plan.null_arms + plan.sham_arms


def _exceeds(method: JobMethod, budget: int | None, images: int) -> bool:
    return budget is not None and renderings(method, images) > budget


def planned_renderings(methods: Sequence[JobMethod], images: int) -> list[PlannedRenderings]:
    """The maximum number of renderings of each method for `images` source images; every attempt of a sweep counts."""
    plans = []
    for method in methods:
        parameters = method.parameters
        if isinstance(parameters, DosesParameters):
            plans.append(_of_doses(method.name, parameters))
            continue
        edits, null_arms = _of_image(parameters)
        shams = isinstance(parameters, ParaphraseParameters) and parameters.reference == "sham"
        plans.append(
            PlannedRenderings(
                method=method.name,
                edits=images * edits,
                null_arms=images * null_arms,
                sham_arms=images * null_arms * shams,
            )
        )
    return plans


def _of_doses(name: str, parameters: DosesParameters) -> PlannedRenderings:
    """The renderings of method `doses`, whose parameters list its edits one by one."""
    edits, doses = len(parameters.edits), len(parameters.doses)
    editor = parameters.editor_parameters
    shams = isinstance(editor, ParaphraseParameters) and editor.reference == "sham"
    every = edits * (doses + 1)  # each edit at each dose, and undone
    return PlannedRenderings(method=name, edits=every, null_arms=every, sham_arms=edits * doses * shams)


def _of_image(parameters: Contract) -> tuple[int, int]:
    """Edits and null arms of one source image."""
    if isinstance(parameters, LanceRParameters):
        return _swept(parameters, parameters.counterfactuals_per_image)
    if isinstance(parameters, LanceParameters):
        return _swept(parameters, len(parameters.values) or parameters.counterfactuals_per_image)
    if isinstance(parameters, DillemaParameters):
        edits = len(parameters.values) or parameters.counterfactuals_per_image
        seeds = 1 if parameters.values else parameters.seeds_per_edit
        return edits * seeds, seeds * (min(edits, _REGIONS) if parameters.same_seed else edits)
    if isinstance(parameters, ShiftsParameters):
        return len(parameters.shifts), 1
    if isinstance(parameters, InstructParameters):
        return parameters.edits * parameters.seeds_per_edit, parameters.seeds_per_edit
    if isinstance(parameters, CorruptionsParameters):
        return len(parameters.corruptions) * len(SEVERITIES), 1
    if isinstance(parameters, ComposeParameters):
        return parameters.edits, 1
    return 1, 0


def _swept(parameters: SweepParameters, edits: int) -> tuple[int, int]:
    fractions = len(set(parameters.self_fractions))
    return edits * fractions, min(edits, fractions)
