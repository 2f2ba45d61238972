"""Rounds of an adaptive job: what it needs, its budget in renderings, and the first round.

A balanced job whose values were chosen for it has two: a few images of each class get all values, then the others get
those that these images could show, and others of the proposed values in place of the rest.

The first round gives every place (a class and a value) equally many source images. A seeded order of a class's images
decides which ones, the same for all of its values, so that edits of one image share its caption and, where the method
allows, its arms. Later rounds are planned from the recorded rows (`gateway.results.rounds`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from gateway.analysis.allocation import LARGEST_SHARE, SCREENING_SHARE
from gateway.analysis.limits import LEAST_SOURCES
from gateway.intake.sources import SourceFile
from gateway.jobs.choices import Plan
from gateway.jobs.designs import planned_renderings, renderings, values_of, with_values
from gateway.kinds import KINDS
from gateway.methods import JobMethod
from shared.problems import InvalidInput
from shared.schemas.designs import ChosenValue, DesignKind, PlaceShare, RoundPlan
from shared.schemas.jobs import JobSpec
from shared.schemas.plans import PlannedRenderings
from shared.seeds import derive_digest

LEAST_SCREENED = 4  # source images of a place in the first round
FIRST_IMAGES = 6  # of a class, which get the values of a balanced job before the others
LEAST_SHOWN = 2  # accepted edits among these, without which a class's other images do not get the value
MOST_SCREENING = 0.5  # of the budget, if the first round needs more than its share for these


def cost_of_image(method: JobMethod, values: int) -> int:
    """Maximum renderings of a source image that gets `values` values in a round: attempts, null and sham arms."""
    return renderings(with_values(method, values_of(method)[:values]), 1) if values else 0


def rendered_by(method: JobMethod, edits: int, arms: int) -> int:
    """The cost in renderings of these rendered edits and arms; every attempt of a sweep counts."""
    (edit,) = planned_renderings([with_values(method, values_of(method)[:1])], 1)
    return edits * edit.edits + arms


def budget_of_round(method: JobMethod, left: int, rounds_left: int) -> int:
    """The renderings of a round: an equal share of the remaining ones, but enough for one edit."""
    return min(left, max(left // rounds_left, cost_of_image(method, 1)))


def first_round(plan: Plan, budget: int, sources: Sequence[SourceFile], seed: int) -> RoundPlan:
    """The first round. Raises InvalidInput for methods without an adaptive design, or if the budget is too small."""
    (method,) = _steer(plan, sources)
    by_label: dict[str, list[int]] = {}
    for position, source in enumerate(sources):
        if not source.failure and source.label is not None:
            by_label.setdefault(source.label, []).append(position)
    values = values_of(method)
    cost = cost_of_image(method, len(values)) * max(1, len(by_label))
    edits_per_place = max(math.ceil(SCREENING_SHARE * budget) // cost, LEAST_SCREENED)
    if edits_per_place * cost > MOST_SCREENING * budget:
        raise InvalidInput(
            f"a budget of {budget:,} renderings gives each of {len(by_label)} classes and {len(values)} values fewer "
            f"than {LEAST_SCREENED} images in the first round; raise `budget`, or name fewer `values`"
        )
    largest = max(LARGEST_SHARE, 1 / max(1, len(by_label) * len(values))) * budget
    most = max(edits_per_place, int(largest) // (cost_of_image(method, len(values)) // len(values)))
    places = []
    for label in sorted(by_label):
        order = seeded_order(by_label[label], seed, label)
        planned = min(most, len(order))
        places += [
            PlaceShare(label=label, chosen=value, images=order[:edits_per_place], planned=planned) for value in values
        ]
    return RoundPlan(number=0, places=places)


def planned_rounds(spec: JobSpec, plan: Plan, sources: Sequence[SourceFile]) -> tuple[JobSpec, RoundPlan | None]:
    """The spec of an adaptive job with its budget, by default the cost of a free design, and its screening round.

    Any other spec as it is, and the first round of a balanced job, if it has one. Raises what `first_round` raises.
    """
    if spec.design == "balanced":
        return spec, first_images(plan, sources, spec.seed)
    if spec.design != "adaptive":
        return spec, None
    (method,) = _steer(plan, sources)
    budget = spec.budget
    if budget is None:
        free = with_values(method, ())
        budget = renderings(free, sum(not source.failure for source in sources))
    spec = spec.model_copy(update={"budget": budget})
    return spec, first_round(plan, budget, sources, spec.seed)


def first_images(plan: Plan, sources: Sequence[SourceFile], seed: int) -> RoundPlan | None:
    """The first images of each class with all values, if one method gets values that were chosen for the job.

    A class is split only if the others can be tested by themselves. None if no class is.
    """
    steered = [method for method in plan.methods if values_of(method)]
    if plan.proposal is None or len(steered) != 1:
        return None
    by_label: dict[str, list[int]] = {}
    for position, source in enumerate(sources):
        if not source.failure:
            by_label.setdefault(source.label or "", []).append(position)
    first = {
        label: seeded_order(positions, seed, label)[:FIRST_IMAGES]
        for label, positions in by_label.items()
        if len(positions) >= FIRST_IMAGES + LEAST_SOURCES
    }
    if not first:
        return None
    (method,) = steered
    values, factors = values_of(method), method.parameters.changes().factors
    return RoundPlan(
        number=0,
        places=[
            PlaceShare(label=label, chosen=value, images=sorted(first.get(label, by_label[label])))
            for label in sorted(by_label)
            for value in values
        ],
        spare=[chosen for chosen in plan.proposal.values if chosen.factor in factors and chosen not in values],
    )


def other_images(
    first: RoundPlan, accepted: Mapping[str, Mapping[ChosenValue, int]], by_label: Mapping[str, Sequence[int]]
) -> RoundPlan:
    """The round of the images that are not among the first of their class. `accepted`: edits of these, by value.

    Values that the first images could not show give their place to spare ones, if the class has any left or another
    value to go on with.
    """
    done = set(first.positions())
    places = []
    for label, positions in by_label.items():
        rest = [position for position in positions if position not in done]
        values = [place.chosen for place in first.places if place.label == label]
        kept = [chosen for chosen in values if accepted.get(label, {}).get(chosen, 0) >= LEAST_SHOWN]
        kept = [*kept, *first.spare[: len(values) - len(kept)]] or values
        places += [PlaceShare(label=label, chosen=chosen, images=rest) for chosen in kept if rest]
    return RoundPlan(number=1, places=places)


def renderings_of_design(
    kind: DesignKind, budget: int | None, methods: Sequence[JobMethod], images: int
) -> list[PlannedRenderings]:
    """Maximum renderings of each method for this many source images, within the budget of an adaptive job."""
    if kind != "adaptive" or budget is None:
        return planned_renderings(methods, images)
    (method,) = methods
    most = len(values_of(method))
    images, remainder = divmod(budget, cost_of_image(method, most))
    values = max(count for count in range(most) if cost_of_image(method, count) <= remainder)
    plans = planned_renderings([method], images)
    if values:
        plans += planned_renderings([with_values(method, values_of(method)[:values])], 1)
    return [
        PlannedRenderings(
            method=method.name,
            edits=sum(plan.edits for plan in plans),
            null_arms=sum(plan.null_arms for plan in plans),
            sham_arms=sum(plan.sham_arms for plan in plans),
        )
    ]


def _steer(plan: Plan, sources: Sequence[SourceFile]) -> list[JobMethod]:
    """The only method. Raises InvalidInput if the design cannot steer this job."""
    if len(plan.methods) != 1 or not values_of(plan.methods[0]):
        raise InvalidInput(
            "an adaptive design steers one method, dillema, lance or instruct; name it alone in `methods`"
        )
    if KINDS[plan.kind].localised or not plan.models:
        raise InvalidInput("an adaptive design needs classifiers as models under test; choose a balanced one")
    usable = [source for source in sources if not source.failure]
    if any(source.label is None for source in usable):
        raise InvalidInput("an adaptive design needs the class of every image; label them, or choose a balanced one")
    return plan.methods


def one_of_each_group(sources: Sequence[SourceFile], seed: int) -> list[SourceFile]:
    """One source image of each group, a usable one if there is any; those without a group are all kept.

    So the images of an adaptive job are independent, and one by one they enter its tests.
    """
    by_group: dict[str, list[int]] = {}
    for position, source in enumerate(sources):
        if source.group is not None:
            by_group.setdefault(source.group, []).append(position)
    kept = set[int]()
    for name, positions in by_group.items():
        order = seeded_order(positions, seed, "group", name)
        kept.add(min(order, key=lambda position: bool(sources[position].failure)))
    return [source for position, source in enumerate(sources) if source.group is None or position in kept]


def seeded_order(positions: Sequence[int], seed: int, *parts: str) -> list[int]:
    """Positions in an order that depends only on the seed and the parts."""
    return sorted(positions, key=lambda position: derive_digest("round", str(seed), *parts, str(position)))


def places_of(rounds: Sequence[RoundPlan]) -> Mapping[tuple[str, ChosenValue], PlaceShare]:
    """What each place got in all rounds together: its source images in their order."""
    places: dict[tuple[str, ChosenValue], PlaceShare] = {}
    for plan in rounds:
        for place in plan.places:
            key = (place.label, place.chosen)
            if earlier := places.get(key):
                place = earlier.model_copy(update={"images": [*earlier.images, *place.images]})
            places[key] = place
    return places
