"""From effects in cells to findings: one family per model under test and method, one metric, declared beforehand."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from gateway.analysis.certainty import LEVEL, images_needed, mean_interval, sign_flip_p
from gateway.analysis.effects import Differences, Floats
from gateway.analysis.wording import points
from shared.schemas.results import Cell, CellEffect, Interval, Relation, Standing
from shared.seeds import derive_seed

FALSE_DISCOVERY_RATE = 0.05
LEAST_SOURCES = 12  # below: "too few images"
BEYOND = 0.05  # an effect of at most 5 points is no finding, however certain


def benjamini_hochberg(p_values: Floats) -> Floats:
    """Adjusted p-values (q-values) of a family, in its order: reject where q ≤ the false discovery rate."""
    order = np.argsort(p_values)
    scaled = p_values[order] * len(p_values) / np.arange(1, len(p_values) + 1)
    adjusted = np.empty(len(p_values))
    adjusted[order] = np.minimum.accumulate(scaled[::-1])[::-1]
    return np.minimum(adjusted, 1.0)


def assess(cells: Mapping[Cell, Differences], relation: Relation, seed: int) -> list[CellEffect]:
    """Every cell of one model under test and method, findings first, each kind by strength.

    The family is all cells with at least 12 source images; the metric is the accuracy difference. A finding is a cell
    that Benjamini-Hochberg rejects at 5 % and whose interval, at level 1 − 5 % · rejected / family (false coverage
    rate: Benjamini & Yekutieli 2005), lies beyond 5 points. `seed` belongs to the job, model and method.
    """
    family = [cell for cell, found in cells.items() if len(found.source) >= LEAST_SOURCES]
    seeds = {cell: derive_seed(seed, cell.label, cell.factor, cell.value, cell.direction) for cell in family}
    p_values = np.array([sign_flip_p(cells[cell].correct, seeds[cell]) for cell in family])
    q_values = benjamini_hochberg(p_values)
    rejected = int((q_values <= FALSE_DISCOVERY_RATE).sum())
    effects = [_untested(cell, found) for cell, found in cells.items() if cell not in seeds]
    for cell, p_value, q_value in zip(family, p_values, q_values, strict=True):
        found = cells[cell]
        selected = None
        if q_value <= FALSE_DISCOVERY_RATE:
            level = 1 - FALSE_DISCOVERY_RATE * rejected / len(family)
            selected = mean_interval(found.correct, level, seeds[cell])
        effect = _untested(cell, found).model_copy(
            update={
                "interval": mean_interval(found.correct, LEVEL, seeds[cell]),
                "selected_interval": selected,
                "p_value": float(p_value),
                "q_value": float(q_value),
                "standing": _standing(selected),
            }
        )
        effects.append(effect)
    spoken = [effect.model_copy(update={"sentence": sentence(effect, relation)}) for effect in effects]
    return sorted(spoken, key=_strength)


def _untested(cell: Cell, found: Differences) -> CellEffect:
    probability = float(found.p_truth.mean())
    return CellEffect(
        cell=cell,
        sources=len(found.source),
        counterfactuals=found.counterfactuals,
        delta_accuracy=float(found.correct.mean()),
        delta_probability=None if math.isnan(probability) else probability,
        standing="too few images",
        images_needed=images_needed(found.correct, BEYOND, LEAST_SOURCES),
    )


def _standing(selected: Interval | None) -> Standing:
    if selected is not None and selected.high < -BEYOND:
        return "weakness"
    if selected is not None and selected.low > BEYOND:
        return "improvement"
    return "nothing found"


_ORDER: tuple[Standing, ...] = ("weakness", "improvement", "nothing found", "too few images")


def _strength(effect: CellEffect) -> tuple[object, ...]:
    """Sort key: kind; for findings the bound nearest to no effect, strongest first; then size, then the cell's name."""
    cell = effect.cell
    bound = 0.0
    if effect.selected_interval is not None:
        bound = max(-effect.selected_interval.high, effect.selected_interval.low)
    name = (cell.label, cell.factor, cell.value, cell.direction)
    return (_ORDER.index(effect.standing), -bound, effect.delta_accuracy, *name)


def change_in_words(cell: Cell) -> str:
    """What the edits of a cell changed: "with weather changed to night"."""
    return f"with {cell.factor} changed {cell.direction} {cell.value}"


def sentence(effect: CellEffect, relation: Relation) -> str:
    """One cell in a sentence; a finding's interval is the one adjusted for selection.

    Labelled: "`bus` fails with weather changed to night: −42 points, 95 % interval −51 to −33, 38 images."
    """
    label, change = effect.cell.label, change_in_words(effect.cell)
    labelled = relation == "labelled"
    verb = {
        "weakness": f"`{label}` fails" if labelled else f"`{label}` is not recognised again",
        "improvement": f"`{label}` is recognised better" if labelled else f"`{label}` is held on to better",
        "nothing found": f"`{label}`: no effect established",
        "too few images": f"`{label}`: too few images to tell",
    }[effect.standing]
    said = f"{verb} {change}: {points(effect.delta_accuracy)} points"
    interval = effect.selected_interval or effect.interval
    if interval is not None:
        said += f", 95 % interval {points(interval.low)} to {points(interval.high)}"
    said += f", {effect.sources} image{'' if effect.sources == 1 else 's'}"
    if effect.standing == "too few images" and effect.images_needed is not None:
        said += f"; an effect of this size would take about {effect.images_needed}"
    return said
