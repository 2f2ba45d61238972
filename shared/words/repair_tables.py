"""The results of a repair as rows of tables: on a terminal, on pages and in the card of the repaired model."""

from __future__ import annotations

from collections.abc import Sequence

from shared.schemas.repairs import RepairResult, SetFigures
from shared.words.wording import tenths


def arm_table(sets: Sequence[SetFigures]) -> list[tuple[str, str, list[str]]]:
    """Rows of a table: set, its size, and one formatted figure per arm of `ARMS`."""
    return [
        (
            figures.set,
            f"{figures.images} of {figures.sources}",
            [tenths(arm.accuracy.value) for arm in figures.arms],
        )
        for figures in sets
    ]


def class_table(result: RepairResult) -> list[tuple[str, str, list[str]]]:
    """Rows by class, per arm of `ARMS`: accuracy; for segmenters "mIoU" and each class's pooled IoU."""
    rows: list[tuple[str, str, list[str]]] = []
    for figures in result.sets:
        rows += [
            (figures.set, label, [tenths(arm.by_class[label].value) for arm in figures.arms])
            for label in figures.arms[0].by_class
        ]
        pooled = [arm.segmentation for arm in figures.arms if arm.segmentation is not None]
        if not pooled:
            continue
        rows.append((figures.set, "mIoU", [tenths(arm.mean_iou) for arm in pooled]))
        rows += [
            (figures.set, name, [tenths(arm.iou[place]) for arm in pooled])
            for place, name in enumerate(result.classes)
            if pooled[0].class_pixels[place]
        ]
    return rows
