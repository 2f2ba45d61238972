"""Whether a detector hallucinates more under a value: cells of their own family, over images with objects and without.

The score of an image is 1 if the detector hallucinates nothing in it, else 0, so that a loss is "hallucinates more". A
box where an object is gone, or where the editor added one, is no hallucination.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from gateway.kinds.rows import PredictionRow
from gateway.kinds.task_kind import Fields
from shared.schemas.effects import CellEffect
from shared.schemas.masks import ALL_CLASSES
from shared.schemas.results import ModelResults
from shared.words.wording import change_in_words, interval, points


def by_hallucinations(row: PredictionRow) -> PredictionRow:
    """The prediction scored by whether it has no hallucination; without scores where there is no truth."""
    detected = cast("dict[str, list[dict[str, str]]] | None", row.detail["detected"])
    if detected is None:
        return row._replace(scores={}, detail={})
    clean = all(extra["why"] != "hallucination" for extra in detected["extras"])
    return row._replace(scores={ALL_CLASSES: float(clean)}, detail={})


def with_hallucinations(results: ModelResults, effects: Sequence[CellEffect]) -> Fields:
    """The fields of the results with these cells."""
    if results.detection is None:
        return {}
    cells = [effect.model_copy(update={"sentence": _sentence(effect)}) for effect in effects]
    return {"detection": results.detection.model_copy(update={"hallucination_cells": cells})}


def _sentence(effect: CellEffect) -> str:
    """ "Hallucinates more at night: +40 points of images, +22 to +58, 30 images. At least 20 points, 95 % sure."."""
    verb = {
        "weakness": "Hallucinates more",
        "suspected weakness": "May hallucinate more",
        "improvement": "Hallucinates less",
        "nothing found": "No established difference",
        "too few images": "Too few images to tell",
    }[effect.standing]
    count = f"{effect.sources} image{'' if effect.sources == 1 else 's'}"
    limits = effect.interval and effect.interval.model_copy(
        update={"low": -effect.interval.high, "high": -effect.interval.low}
    )
    shown = f", {interval(limits)}" if limits else ""
    sentence = (
        f"{verb} {change_in_words(effect.cell)}: {points(-effect.delta_accuracy)} points of images{shown}, {count}."
    )
    if effect.selected_interval is None:
        return sentence
    least = abs(effect.selected_interval.high if effect.standing == "weakness" else effect.selected_interval.low)
    return f"{sentence} At least {int(100 * least + 1e-9)} points, 95 % sure."
