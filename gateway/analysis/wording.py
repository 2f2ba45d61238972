"""How figures and effects are said in words, everywhere alike."""

from __future__ import annotations

import math

from gateway.analysis.effects import Floats
from shared.schemas.masks import ALL_CLASSES
from shared.schemas.results import Cell, CellEffect, Estimate, MethodReviews, Metric, Rate, Relation


def points(share: float) -> str:
    """A difference in percentage points with its sign: −42, +3, 0."""
    rounded = round(100 * share)
    return f"{'−' if rounded < 0 else '+' if rounded > 0 else ''}{abs(rounded)}"


def limits(rate: Rate) -> str:
    """What the interval of a rate leaves open, also where it has one side only: "80–98 %", "at most 14 %"."""
    if rate.n == 0:
        return "nothing was seen"
    if rate.sources == 1:
        return "of one image, from which nothing follows"
    if rate.count == 0:
        return f"none; at most {math.ceil(100 * rate.high)} %"
    if rate.count == rate.n:
        return f"all; at least {math.floor(100 * rate.low)} %"
    return f"{round(100 * rate.low)}–{round(100 * rate.high)} %"


def change_in_words(cell: Cell) -> str:
    """What the edits of a cell changed: "with weather changed to night"."""
    return f"with {cell.factor} changed {cell.direction} {cell.value}"


def effect_sentence(effect: CellEffect, correct: Floats, relation: Relation, metric: Metric = "accuracy") -> str:
    """One cell in a sentence; a finding's interval is the one adjusted for selection.

    `correct`: per-source differences. Labelled: "`bus` fails with weather changed to night: −42 points, 95 % interval
    −51 to −33 (adjusted for selection), 38 images; stands unless more than 29 % of them are invalid".
    """
    label, change = effect.cell.label, change_in_words(effect.cell)
    labelled = relation == "labelled"
    name = "the whole image" if label == ALL_CLASSES else f"`{label}`"
    worse, better = _verbs(labelled, metric)
    verb = {
        "weakness": f"{name} {worse}",
        "improvement": f"{name} {better}",
        "nothing found": f"{name}: no effect established",
        "too few images": f"{name}: too few images to tell",
    }[effect.standing]
    said = f"{verb} {change}: {points(effect.delta_accuracy)} points"
    said += " of IoU" if metric == "iou" else ""
    interval = effect.selected_interval or effect.interval
    if interval is not None:
        said += f", 95 % interval {points(interval.low)} to {points(interval.high)}"
        said += " (adjusted for selection)" if effect.selected_interval else ""
    return f"{said}, {_images(correct)}{_outlook(effect)}{_validity(effect)}"


def review_sentence(said: MethodReviews) -> str:
    """What reviews of one method come to: "calibration of `dillema`: reviews, n = 34: 91 % valid (80–97 %)"."""
    n = said.accepted + said.rejected
    if said.valid is None:
        until = f"until {said.more} more of the accepted ones, drawn by lot, are reviewed"
        return f"reviews of `{said.method}`, n = {n}: uncalibrated by them {until}"
    parts = [f"calibration of `{said.method}`: reviews, n = {n}: {_estimated(said.valid)} of the accepted are valid"]
    parts += [
        f"{_estimated(one.valid)} of the {one.flipped} on which {one.model} flipped"
        for one in said.flipped
        if one.valid
    ]
    if said.accepted_if_valid and said.accepted_if_invalid:
        passed, wrong = _estimated(said.accepted_if_valid), _estimated(said.accepted_if_invalid)
        parts.append(f"the checks accept {passed} of valid and {wrong} of invalid ones")
    elif said.more_rejected:
        parts.append(f"{said.more_rejected} more of the rejected ones, drawn by lot, show the checks' own errors")
    return "; ".join(parts)


def _estimated(share: Estimate) -> str:
    return f"{round(100 * share.value)} % ({round(100 * share.low)}–{round(100 * share.high)} %)"


def _verbs(labelled: bool, metric: Metric) -> tuple[str, str]:
    """What a class does where a model gets worse, and better."""
    if metric == "iou":
        return ("is segmented worse", "is segmented better") if labelled else ("is lost", "is held on to better")
    return ("fails", "is recognised better") if labelled else ("is not recognised again", "is held on to better")


def _images(correct: Floats) -> str:
    """How many images, and that they all say the same where they do."""
    n = len(correct)
    if n == 1:
        return "1 image, from which nothing follows"
    alike = {-1.0: "every one of them lost", 0.0: "not one of them changed", 1.0: "every one of them gained"}
    first = float(correct[0])
    return f"{n} images" + (f" ({alike[first]})" if first in alike and bool((correct == first).all()) else "")


def _outlook(effect: CellEffect) -> str:
    if effect.standing == "too few images" and effect.images_needed is not None:
        return f"; an effect of this size would take about {effect.images_needed}"
    if effect.standing == "nothing found" and effect.detectable is not None:
        return f"; so many show drops of {round(100 * effect.detectable)} points or more"
    return ""


def _validity(effect: CellEffect) -> str:
    """What becomes of a finding when some of its images are not valid."""
    if effect.breakdown is None:
        return ""
    said = f"; stands unless more than {math.floor(100 * effect.breakdown)} % of them are invalid"
    valid = effect.among_valid
    if valid is None:
        return said
    wrong, most = round(100 * (1 - valid.valid)), math.ceil(100 * (1 - valid.valid_low))
    low, high = points(valid.interval.low), points(valid.interval.high)
    found = "by people's reviews" if valid.source == "reviews" else "the checks let"
    passed = " are invalid" if valid.source == "reviews" else " through"
    said += f"; {found} about {wrong} %{passed} (at most {most} %), and counted against it they leave "
    return said + f"{points(valid.estimate)} points, {low} to {high}" + ("" if valid.stands else ": not beyond doubt")
