"""Which drops in accuracy a job can detect, from its labels and methods: before it starts, and in its report."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import NamedTuple

from gateway.analysis.limits import LEAST_SOURCES
from gateway.analysis.power import ACCURACY, POWER, detectable_drop, sources_needed
from gateway.kinds import KINDS
from gateway.methods import METHODS, JobMethod
from gateway.methods.counterfactual import FACTORS
from shared.profiles.profile import CheckCalibration
from shared.schemas.base import Kind
from shared.schemas.designs import DesignKind
from shared.schemas.plans import DetectableDrop, ImagesNeeded, Sensitivity, Unit

DROPS = (0.5, 0.25, 0.1)  # the images needed for these are in every plan
GOAL = 0.1  # each class's sentence says how many images detect this drop


@dataclass(frozen=True, slots=True)
class Conditions:
    """What power depends on: the share of edits that are accepted, and the models' accuracy on null arms (0 … 1).

    `paired`: each cell has one edit of an image, and their number is fixed; see `Differences`. `basis` says where the
    share comes from; without one all edits are assumed to be accepted. Before a job starts the accuracy is assumed as
    0.95, and the share is that of the profile's calibration. Its report uses its own share and the accuracy of its
    least accurate model.
    """

    acceptance: float = 1.0
    accuracy: float = ACCURACY
    basis: str = ""
    paired: bool = True

    def drop(self, sources: int, family: int) -> float | None:
        """The smallest drop that this number of source images detects."""
        return detectable_drop(round(self.acceptance * sources), family, self.accuracy, self.paired)

    def images_to_detect(self, drop: float, family: int) -> int | None:
        """The number of source images that detect a drop."""
        accepted = sources_needed(drop, family, self.accuracy, self.paired)
        return None if accepted is None or not self.acceptance else math.ceil(accepted / self.acceptance)


OBSERVED = "As in this job"
MEASURED = "As measured with this profile"


def planned(design: DesignKind, acceptance: float | None = None) -> Conditions:
    """The conditions assumed before a job. `acceptance`: the share of edits that the profile's checks accept."""
    paired = design != "adaptive"
    return Conditions(paired=paired) if acceptance is None else Conditions(acceptance, basis=MEASURED, paired=paired)


def accepted_share(
    methods: Sequence[JobMethod], calibrations: Iterable[CheckCalibration], kind: Kind = "classification"
) -> float | None:
    """The share of edits that the checks accepted when the profile was calibrated; None if a method was not.

    Of the edits of a method's factors, of all calibrations of the kind; those of methods without checks all count.
    """
    measured = [calibration.methods for calibration in calibrations if calibration.kind == kind]
    shares, cells = [], []
    for method in methods:
        p = method.parameters
        factors = {chosen.factor for chosen in p.changes().values} or {*(getattr(p, "factors", None) or FACTORS)}
        errors = [
            errors
            for of_method in measured
            for name, errors in of_method.get(method.name, {}).items()
            if name in factors
        ]
        if METHODS[method.name].checked and not errors:
            return None
        judged = sum(one.valid + one.invalid for one in errors)
        accepted = sum(one.valid_accepted + one.invalid_accepted for one in errors)
        shares.append(accepted / judged if judged else 1.0)
        cells.append(p.cells())
    return fmean(shares, cells) if any(share < 1 for share in shares) else None


PLANNED = Conditions()


GroupKey = tuple[bool, str | int]  # whether the image has a group, and its group or its own number


class GroupedTruth(NamedTuple):
    """The classes in the ground truth of a source image, and its group; None for an image that is its own group."""

    truths: Sequence[str]
    group: str | int | None


def sensitivity_of(
    images: Iterable[GroupedTruth],
    methods: Sequence[JobMethod],
    kind: Kind = "classification",
    conditions: Conditions = PLANNED,
) -> Sensitivity:
    """Which drops these source images can detect under the job's methods."""
    whole = Counter[GroupKey]()
    by_class: dict[str, Counter[GroupKey]] = defaultdict(Counter)
    for number, image in enumerate(images):
        key = (False, number) if image.group is None else (True, image.group)
        whole[key] += 1
        for label in image.truths:
            by_class[label][key] += 1
    edits = max((method.parameters.cells() for method in methods), default=1)
    sizes = {label: list(groups.values()) for label, groups in sorted(by_class.items())}
    unit: Unit = "group" if max(whole.values(), default=0) > 1 else "image"
    seeds = max((getattr(method.parameters, "seeds_per_edit", 1) for method in methods), default=1)
    paired = conditions.paired and KINDS[kind].right_or_wrong and unit == "image" and seeds == 1
    conditions = replace(conditions, paired=paired)
    result = sensitivity(sizes, edits, conditions, unit)
    return result.model_copy(update={"assumption": result.assumption + KINDS[kind].on_power})


def sensitivity(
    groups: Mapping[str, Sequence[int]], edits_per_image: int, conditions: Conditions = PLANNED, unit: Unit = "image"
) -> Sensitivity:
    """Which drops the classes can detect, by the number of images in each of their groups and the edits of each image.

    Groups count, not images: those of one group are not independent. An image on its own is a group of one.
    An edit is in two cells: to its new value and from its old one. If every cell holds all images of its class, a class
    has 2 · edits cells. The cells of all classes are tested together.
    """
    by_class = {label: _of_groups(conditions, sizes) for label, sizes in groups.items()}
    tested = sum(round(by_class[label].acceptance * len(sizes)) >= LEAST_SOURCES for label, sizes in groups.items())
    family = max(1, tested) * 2 * edits_per_image
    every_size = [size for sizes in groups.values() for size in sizes]
    usual = _of_groups(conditions, every_size) if every_size else conditions
    return Sensitivity(
        unit=unit,
        family=family,
        classes=[_class(label, sizes, family, by_class[label], unit) for label, sizes in groups.items()],
        needed=[ImagesNeeded(drop=drop, sources=usual.images_to_detect(drop, family)) for drop in DROPS],
        assumption=_assumption(conditions, family, unit),
    )


def _of_groups(conditions: Conditions, sizes: Sequence[int]) -> Conditions:
    """The conditions with groups as units: the share of groups with at least one accepted edit."""
    share = conditions.acceptance
    return replace(conditions, acceptance=fmean(share if size == 1 else 1 - (1 - share) ** size for size in sizes))


def _assumption(conditions: Conditions, family: int, unit: Unit) -> str:
    together = "The images of a group count as one. " if unit == "group" else ""
    gets, measured = f"an accepted counterfactual of the change; {unit}s without one do not count", ""
    if conditions.basis:
        gets = "the change"
        measured = f"{conditions.basis}, {100 * conditions.acceptance:.0f} % of the edits are accepted. "
    right = 100 * conditions.accuracy
    return (
        f"Power is {100 * POWER:.0f} %, if every {unit} of the class gets {gets}. {together}{measured}Assumed: "
        f"{family} cells are tested together, and the model is right on {right:.0f} % of the null arms."
    )


def _class(label: str, sizes: Sequence[int], family: int, conditions: Conditions, unit: Unit) -> DetectableDrop:
    groups, sources = len(sizes), sum(sizes)
    counted = round(conditions.acceptance * groups)
    drop = conditions.drop(groups, family)
    goal = DROPS[0] if drop is None else GOAL
    needed = conditions.images_to_detect(goal, family)
    units = " groups" if unit == "group" else ""
    if drop is not None:
        power = f"a drop in accuracy of {round(100 * drop)} points or more is detectable."
    elif counted < LEAST_SOURCES:
        power = f"too few to test; a cell needs {LEAST_SOURCES}{units}."
    else:
        power = "no drop in accuracy is detectable."
    more = ""
    if needed is not None and (drop is None or drop > goal):
        more = f" Bring {needed:,}{units} to detect {round(100 * goal)} points."
    accepted = f", about {counted:,} in a cell" if conditions.basis else ""
    size = _count_text(sources, "image") + (f" in {_count_text(groups, 'group')}" if units else "")
    return DetectableDrop(
        label=label,
        sources=sources,
        groups=groups if units else None,
        drop=drop,
        sentence=f"`{label}`, {size}{accepted}: {power}{more}",
    )


def _count_text(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
