"""Which drops in accuracy a job can detect, from its labels and methods: before it starts, and in its report."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gateway.analysis.limits import LEAST_SOURCES
from gateway.analysis.power import ACCURACY, POWER, detectable_drop, sources_needed
from gateway.methods import JobMethod
from gateway.methods.compose import ComposeParameters
from gateway.methods.corruptions import CorruptionsParameters
from gateway.methods.dillema import DillemaParameters
from gateway.methods.doses import DosesParameters
from gateway.methods.lance import LanceParameters
from gateway.methods.shifts import ShiftsParameters
from shared.schemas.base import Contract, Kind
from shared.schemas.corruptions import SEVERITIES
from shared.schemas.results import DetectableDrop, ImagesNeeded, Sensitivity

DROPS = (0.5, 0.25, 0.1)  # the images needed for these are in every plan
DEFAULT_EDITS = 4  # of an image, where a method's parameters do not say
GOAL = 0.1  # each class's sentence says how many images detect this drop
OF_MASKS = (
    " An image counts for each class in its mask. IoU varies less between images than accuracy, so smaller drops in "
    "IoU may be detectable."
)


@dataclass(frozen=True, slots=True)
class Conditions:
    """What power depends on: the share of edits that are accepted, and the models' accuracy on null arms (0 … 1).

    Before a job starts they are assumed as 1 and 0.95. Its report uses its own share of accepted edits and the accuracy
    of its least accurate model.
    """

    acceptance: float = 1.0
    accuracy: float = ACCURACY
    observed: bool = False

    def drop(self, sources: int, family: int) -> float | None:
        """The smallest drop that this number of source images detects."""
        return detectable_drop(round(self.acceptance * sources), family, self.accuracy)

    def needed(self, drop: float, family: int) -> int | None:
        """The number of source images that detect a drop."""
        accepted = sources_needed(drop, family, self.accuracy)
        return None if accepted is None or not self.acceptance else math.ceil(accepted / self.acceptance)


PLANNED = Conditions()


def sensitivity_of(
    labels: Iterable[str | None],
    methods: Sequence[JobMethod],
    kind: Kind = "classification",
    conditions: Conditions = PLANNED,
) -> Sensitivity:
    """Which drops source images with these labels can detect under the job's methods."""
    counts = Counter(label for label in labels if label is not None)
    edits = max((_edits(method.parameters) for method in methods), default=1)
    result = sensitivity(dict(sorted(counts.items())), edits, conditions)
    if kind == "classification":
        return result
    return result.model_copy(update={"assumption": result.assumption + OF_MASKS})


def sensitivity(sources: Mapping[str, int], edits_per_image: int, conditions: Conditions = PLANNED) -> Sensitivity:
    """Which drops the classes can detect, by their numbers of source images and the edits of each image.

    An edit is in two cells: to its new value and from its old one. If every cell holds all images of its class, a class
    has 2 · edits cells. The cells of all classes are tested together.
    """
    tested = sum(round(conditions.acceptance * count) >= LEAST_SOURCES for count in sources.values())
    family = max(1, tested) * 2 * edits_per_image
    if conditions.observed:
        basis = f"As in this job, {100 * conditions.acceptance:.0f} % of the edits are accepted; assumed"
    else:
        basis = "Assumed"
    return Sensitivity(
        family=family,
        classes=[_class(label, count, family, conditions) for label, count in sources.items()],
        needed=[ImagesNeeded(drop=drop, sources=conditions.needed(drop, family)) for drop in DROPS],
        assumption=(
            f"Power is {100 * POWER:.0f} %, if every image of the class gets an accepted counterfactual of the change; "
            f"images without one do not count. {basis}: {family} cells are tested together, and the model is right on "
            f"{100 * conditions.accuracy:.0f} % of the null arms."
        ),
    )


def _class(label: str, sources: int, family: int, conditions: Conditions) -> DetectableDrop:
    drop = conditions.drop(sources, family)
    goal = DROPS[0] if drop is None else GOAL
    needed = conditions.needed(goal, family)
    if drop is not None:
        power = f"a drop in accuracy of {round(100 * drop)} points or more is detectable."
    elif round(conditions.acceptance * sources) < LEAST_SOURCES:
        power = f"too few to test; a cell needs {LEAST_SOURCES}."
    else:
        power = "no drop in accuracy is detectable."
    more = ""
    if needed is not None and (drop is None or drop > goal):
        more = f" Bring {needed:,} to detect {round(100 * goal)} points."
    accepted = f", about {round(conditions.acceptance * sources):,} in a cell" if conditions.observed else ""
    sentence = f"`{label}`, {sources:,} image{'' if sources == 1 else 's'}{accepted}: {power}{more}"
    return DetectableDrop(label=label, sources=sources, drop=drop, sentence=sentence)


def _edits(parameters: Contract) -> int:
    """How many changes of one image a method proposes."""
    match parameters:
        case CorruptionsParameters(corruptions=corruptions):  # each has one cell (*to* it) where others have two
            return -(-len(corruptions) * len(SEVERITIES) // 2)
        case ComposeParameters(edits=edits):
            return edits
        case ShiftsParameters(shifts=shifts):
            return len(shifts)
        case DosesParameters(doses=doses):  # at each dose, and undone
            return len(doses) + 1
        case DillemaParameters(values=[_, *_] as values) | LanceParameters(values=[_, *_] as values):
            return len(values)
        case DillemaParameters(counterfactuals_per_image=counterfactuals, edits_per_counterfactual=edits):
            return counterfactuals * edits
        case _:
            return int(getattr(parameters, "counterfactuals_per_image", DEFAULT_EDITS))
