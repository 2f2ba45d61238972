"""Rounds of an adaptive job: what it needs, its budget in edits, and the screening round.

The screening round gives every place (a class and a value) equally many source images. A seeded order of the images
decides which ones, never the order in which they finish. Later rounds are planned from the recorded rows
(`gateway.results.rounds`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gateway.analysis.allocation import round_budgets
from gateway.intake.sources import SourceFile
from gateway.jobs.choices import Plan
from gateway.jobs.designs import renderings, values_of, with_values
from gateway.jobs.renderings import planned_renderings
from gateway.methods import JobMethod
from shared.problems import InvalidInput
from shared.schemas.designs import ChosenValue, DesignKind, PlaceShare, RoundPlan
from shared.schemas.jobs import JobSpec
from shared.schemas.plans import PlannedRenderings
from shared.seeds import derive_digest

LEAST_SCREENED = 4  # source images of a place in the screening round


def cost_of_edit(method: JobMethod) -> int:
    """The most renderings of one edit: its attempts, and its null and sham arm."""
    return renderings(with_values(method, values_of(method)[:1]), 1)


def edits_of_rounds(method: JobMethod, budget: int) -> list[int]:
    """The edits of each round that the budget allows, the screening round first."""
    cost = cost_of_edit(method)
    return [share // cost for share in round_budgets(budget)]


def first_round(plan: Plan, budget: int, sources: Sequence[SourceFile], seed: int) -> RoundPlan:
    """The screening round. Raises InvalidInput for what an adaptive design cannot steer, or too small a budget."""
    (method,) = _steered(plan, sources)
    by_label: dict[str, list[int]] = {}
    for position, source in enumerate(sources):
        if not source.failure and source.label is not None:
            by_label.setdefault(source.label, []).append(position)
    values = values_of(method)
    each = edits_of_rounds(method, budget)[0] // max(1, len(by_label) * len(values))
    if each < LEAST_SCREENED:
        raise InvalidInput(
            f"a budget of {budget:,} renderings gives each of {len(by_label)} classes and {len(values)} values fewer "
            f"than {LEAST_SCREENED} images in the first round; raise `budget`, or name fewer `values`"
        )
    places = []
    for label in sorted(by_label):
        order = seeded_order(by_label[label], seed, label)
        taken = min(each, len(order))
        for index, chosen in enumerate(values):
            positions = [order[(index * taken + step) % len(order)] for step in range(taken)]
            places.append(PlaceShare(label=label, chosen=chosen, screening=sorted(positions)))
    return RoundPlan(number=0, places=places)


def planned_rounds(spec: JobSpec, plan: Plan, sources: Sequence[SourceFile]) -> tuple[JobSpec, RoundPlan | None]:
    """The spec of an adaptive job with its budget, by default the cost of a free design, and its screening round.

    Any other spec as it is, and None. Raises what `first_round` raises.
    """
    if spec.design != "adaptive":
        return spec, None
    (method,) = _steered(plan, sources)
    budget = spec.budget
    if budget is None:
        free = with_values(method, ())
        budget = renderings(free, sum(not source.failure for source in sources))
    spec = spec.model_copy(update={"budget": budget})
    return spec, first_round(plan, budget, sources, spec.seed)


def renderings_of_design(
    kind: DesignKind, budget: int | None, methods: Sequence[JobMethod], images: int
) -> list[PlannedRenderings]:
    """The most that each method renders for so many source images; of an adaptive job, what its budget allows."""
    if kind != "adaptive" or budget is None:
        return planned_renderings(methods, images)
    (method,) = methods
    return planned_renderings([with_values(method, values_of(method)[:1])], sum(edits_of_rounds(method, budget)))


def _steered(plan: Plan, sources: Sequence[SourceFile]) -> list[JobMethod]:
    """The only method. Raises InvalidInput if the design cannot steer this job."""
    if len(plan.methods) != 1 or not values_of(plan.methods[0]):
        raise InvalidInput("an adaptive design steers one method, dillema or lance; name it alone in `methods`")
    if plan.kind != "classification" or not plan.models:
        raise InvalidInput("an adaptive design needs classifiers as models under test; choose a balanced one")
    usable = [source for source in sources if not source.failure]
    if any(source.label is None for source in usable):
        raise InvalidInput("an adaptive design needs the class of every image; label them, or choose a balanced one")
    if any(source.group is not None for source in usable):
        raise InvalidInput("an adaptive design takes no groups of images; choose a balanced one")
    return plan.methods


def seeded_order(positions: Sequence[int], seed: int, *parts: str) -> list[int]:
    """Positions in an order that depends on the seed and the parts alone."""
    return sorted(positions, key=lambda position: derive_digest("round", str(seed), *parts, str(position)))


def positions_given(rounds: Sequence[RoundPlan]) -> Mapping[tuple[str, ChosenValue], PlaceShare]:
    """What each place got in all rounds together; confirming images in the order of the rounds."""
    given: dict[tuple[str, ChosenValue], PlaceShare] = {}
    for plan in rounds:
        for place in plan.places:
            earlier = given.get((place.label, place.chosen), PlaceShare(label=place.label, chosen=place.chosen))
            given[place.label, place.chosen] = PlaceShare(
                label=place.label,
                chosen=place.chosen,
                screening=[*earlier.screening, *place.screening],
                confirming=[*earlier.confirming, *place.confirming],
                horizon=place.horizon or earlier.horizon,
            )
    return given
