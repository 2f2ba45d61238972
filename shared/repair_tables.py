"""What a repair came to as rows of tables: on a terminal, on pages and in the card of the repaired model."""

from __future__ import annotations

from collections.abc import Sequence

from shared.schemas.repairs import RepairResult, SetFigures


def arm_table(found: Sequence[SetFigures]) -> list[tuple[str, str, list[str]]]:
    """Set, size, and a word per arm of `ARMS`, for tables."""
    return [
        (one.set, f"{one.images} of {one.sources}", [f"{arm.accuracy.value or 0:.1%}" for arm in one.arms])
        for one in found
    ]


def class_table(result: RepairResult) -> list[tuple[str, str, list[str]]]:
    """Of segmenters: set, mIoU or a class that the set has, and the IoU of all its pixels per arm of `ARMS`."""
    rows: list[tuple[str, str, list[str]]] = []
    for one in result.sets:
        pooled = [arm.segmentation for arm in one.arms if arm.segmentation is not None]
        if not pooled:
            continue
        rows.append((one.set, "mIoU", [_percent(arm.mean_iou) for arm in pooled]))
        rows += [
            (one.set, name, [_percent(arm.iou[place]) for arm in pooled])
            for place, name in enumerate(result.classes)
            if pooled[0].class_pixels[place]
        ]
    return rows


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"
