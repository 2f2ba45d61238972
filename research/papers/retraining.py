"""What retraining wins, as Markdown, from finished repairs."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from research.paper_tables.printing import NOTHING, grid, rate
from research.papers.printed import percent
from shared.schemas.effects import MeanOverlap, Rate
from shared.schemas.metrics import SegmentationScores
from shared.schemas.repairs import RepairView


def repair_table(repairs: Sequence[RepairView]) -> str:
    """What retraining wins, by model and set of source images."""
    body = [
        [
            view.request.model,
            figures.set,
            str(figures.sources),
            *(f"{arm.arm}: {_level(arm.accuracy)}" for arm in figures.arms),
        ]
        for view in repairs
        if view.result is not None
        for figures in view.result.sets
    ]
    if not body:
        return ""
    heads = ["model", "judged on", "source images", *[""] * (len(body[0]) - 3)]
    return "### What retraining wins, on source images that nothing was trained on\n\n" + grid(heads, body)


def pixels_found_table(repairs: Sequence[RepairView], things: Collection[str]) -> str:
    """The share of each thing's pixels that a segmenter finds, before and after retraining; "" for classifiers."""
    body = [
        [view.request.model, figures.set, name, arm.arm, percent(scores.class_accuracy[place]), _pixels(scores, place)]
        for view in repairs
        if view.result is not None
        for figures in view.result.sets
        for place, name in enumerate(view.result.classes)
        if name in things
        for arm in figures.arms
        if (scores := arm.segmentation) is not None
    ]
    if not body:
        return ""
    heads = ["model", "judged on", "class", "arm", "pixels found", "of pixels"]
    return "### Pixels of things that are found, before and after retraining\n\n" + grid(heads, body)


def _pixels(scores: SegmentationScores, place: int) -> str:
    return f"{scores.class_pixels[place]:,} in {scores.images} images"


def _level(accuracy: Rate | MeanOverlap) -> str:
    if isinstance(accuracy, Rate):
        return rate(accuracy)
    if accuracy.value is None:
        return NOTHING
    return f"{100 * accuracy.value:.1f} % IoU ({100 * accuracy.low:.0f}–{100 * accuracy.high:.0f})"
