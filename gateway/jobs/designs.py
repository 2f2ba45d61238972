"""The design of a job: which values its methods change source images to, within its budget of renderings.

In a balanced or adaptive design the methods that choose their changes (DILLEMA, LANCE, instruct) get the same values
for every source image, as their parameter `values`; an adaptive job gives each image some of them (`rounds.py`).
Shifts, corruptions, reconstruction and given instructions treat all images alike by themselves. A job that names no
values gets those that are proposed for it (`gateway.methods.proposed_values`), by one question for all of its methods.

How many images each method of a job renders at most, before it starts: edits, null arms and sham arms.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from gateway.jobs.choices import Plan
from gateway.methods import JobMethod
from gateway.methods.counterfactual import Factor
from gateway.methods.proposed_values import ProposedValues
from shared.problems import InvalidInput
from shared.schemas.designs import MOST_VALUES, ChosenValue, Design, DesignKind, ValueSource
from shared.schemas.jobs import JobSpec
from shared.schemas.plans import PlannedRenderings


def with_design_kind(spec: JobSpec, methods: Sequence[JobMethod], default: DesignKind) -> JobSpec:
    """The spec with its kind of design. `default`: the profile's, of a job that says nothing of values or a budget.

    A job whose methods take no values, or one of whose methods must choose its own changes, is free by default.
    """
    if spec.design is not None:
        return spec
    changes = [method.parameters.changes() for method in methods]
    wanted = bool(spec.values) or spec.budget is not None or any(change.values for change in changes)
    fits = any(change.most for change in changes) and not any(change.refusal for change in changes)
    return spec.model_copy(update={"design": "balanced" if wanted or (default == "balanced" and fits) else "free"})


Propose = Callable[[Sequence[Factor]], ProposedValues]  # values of these factors for the job


def with_design(plan: Plan, spec: JobSpec, propose: Propose, images: int) -> Plan:
    """The plan with the values of its methods, for so many usable images.

    A job's own values apply to every method that takes values; without them, those in a method's parameters. Without
    both a method gets the first of the proposed values of its factors, which share null arms: as many as it can render
    at the cost of a free design, or fewer within the budget. Raises InvalidInput for a value of a factor that a method
    does not change, for a method that draws its changes by chance, and if the budget is too small; and what `propose`
    raises, which is called for such methods only.
    """
    if spec.design in (None, "free"):
        if names := [method.name for method in plan.methods if values_of(method)]:
            raise InvalidInput(
                f"the parameter `values` of {', '.join(names)} needs `design` balanced or adaptive; set it on the job"
            )
        return plan
    # An adaptive job spends its budget round by round, so it limits no values.
    limited = spec if spec.design == "balanced" else spec.model_copy(update={"budget": None})
    proposal = _proposal(plan.methods, spec, propose)
    methods = [_method(method, limited, proposal.values if proposal else (), images) for method in plan.methods]
    if spec.values and not any(map(values_of, methods)):
        raise InvalidInput(f"no method of this job takes `values`: {', '.join(method.name for method in methods)}")
    return replace(plan, methods=methods, proposal=proposal)


def _proposal(methods: Sequence[JobMethod], spec: JobSpec, propose: Propose) -> ProposedValues | None:
    """The values proposed for the methods that take some and have none."""
    changes = [method.parameters.changes() for method in methods]
    if refusal := next((change.refusal for change in changes if change.refusal), ""):
        raise InvalidInput(refusal)
    without = [change for change in changes if change.most and not (spec.values or change.values)]
    return propose(list(dict.fromkeys(name for change in without for name in change.factors))) if without else None


def values_of(method: JobMethod) -> list[ChosenValue]:
    """The values that a method changes every source image to; empty if it takes none."""
    return [*method.parameters.changes().values]


def design_of(
    kind: DesignKind, budget: int | None, methods: Sequence[JobMethod], chosen_by: ValueSource | None = None
) -> Design:
    """The design of a job with these methods."""
    values = dict.fromkeys((chosen.factor, chosen.value) for method in methods for chosen in values_of(method))
    return Design(
        kind=kind,
        values=[ChosenValue(factor=factor, value=value) for factor, value in values],
        budget=budget,
        chosen_by=chosen_by,
    )


def _method(method: JobMethod, spec: JobSpec, proposed: Sequence[ChosenValue], images: int) -> JobMethod:
    changes = method.parameters.changes()
    if changes.most:
        if values := spec.values or changes.values:
            method = with_values(method, _own_values(method.name, values, changes.factors))
        else:
            of_factors = [chosen for chosen in proposed if chosen.factor in changes.factors][:MOST_VALUES]
            limits = [] if spec.budget is None else [spec.budget]
            if spec.design == "balanced":
                limits.append(renderings(method, images))
                method = with_shared_arms(method)
            method = with_values(method, _affordable(method, of_factors, min(limits, default=None), images))
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
        raise InvalidInput(f"no value was proposed for the factors of {method.name}; name `values`")
    while len(values) > 1 and _exceeds(with_values(method, values), budget, images):
        values = values[:-1]
    return values


def with_values(method: JobMethod, values: Sequence[ChosenValue]) -> JobMethod:
    """The method with these values."""
    return replace(method, parameters=method.parameters.model_copy(update={"values": tuple(values)}))


def with_shared_arms(method: JobMethod) -> JobMethod:
    """The method with one seed for all edits of an image, so that they share null arms, unless it names its seeds."""
    p = method.parameters
    if "same_seed" not in type(p).model_fields or "same_seed" in p.model_fields_set:
        return method
    return replace(method, parameters=p.model_copy(update={"same_seed": True}))


def renderings(method: JobMethod, images: int) -> int:
    """The most images that a method renders, null and sham arms included."""
    (plan,) = planned_renderings([method], images)
    return plan.edits + plan.null_arms + plan.sham_arms


def _exceeds(method: JobMethod, budget: int | None, images: int) -> bool:
    return budget is not None and renderings(method, images) > budget


def planned_renderings(methods: Sequence[JobMethod], images: int) -> list[PlannedRenderings]:
    """The maximum number of renderings of each method for `images` source images; every attempt of a sweep counts."""
    return [PlannedRenderings(method=method.name, **method.parameters.plan(images)._asdict()) for method in methods]
