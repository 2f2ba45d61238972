"""Metrics of segmenters from confusion counts (`shared.media.label_maps`): IoU, accuracy. Numpy only."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import numpy as np
from scipy.stats import t

from gateway.analysis.certainty import LEVEL
from gateway.analysis.effects import Floats, Integers
from gateway.analysis.limits import LEAST_SOURCES
from shared.media.label_maps import hits_and_union, overlaps
from shared.schemas.effects import Interval
from shared.schemas.metrics import ConfusionMatrix, SegmentationScores

LEAST_OF_POOLED_CLASS = 3  # groups with a class, from which the pooled interval covers (docs/measurements.md)
_DIGITS = 12  # decimal digits of a deviation, so that rounding errors are no deviations


class PooledObstacle(NamedTuple):
    """Why a pooled difference has no interval.

    `groups`: the independent source images that there are, or that have the class of the number `rarest`.
    """

    kind: Literal["few images", "rare class", "all alike"]
    groups: int
    rarest: int = 0


def class_pixels(counts: Integers) -> Integers:
    """Pixels of each class (3 × classes): `hits_and_union`, and those of the reference."""
    return np.concatenate([hits_and_union(counts), counts.sum(axis=1)[np.newaxis]])


def pooled_difference(groups: Integers) -> float | None:
    """mIoU of the pooled pixels of counterfactuals less that of reference arms, −1 … 1; None without pixels.

    `groups` has the `class_pixels` by group of source images, arm (counterfactuals, reference arms) and class. mIoU
    averages over the classes of the ground truth.
    """
    total = groups.sum(axis=0)
    return float(_mean_overlap_differences(total)) if total[:, 2].any(axis=-1).all() else None


def pooled_interval(groups: Integers) -> Interval:
    """95 % interval of `pooled_difference`, by deleting one group at a time (the jackknife).

    The quantile is Student's t. Satterthwaite's (1946) degrees of freedom, with (Σd²)² and Σd⁴ of the deviations d
    replaced by their expectations for normal d, are 3 (Σd²)² / Σd⁴ − 2. They are few where a rare class decides the
    difference. `pooled_interval_obstacle` says where the interval would not cover.
    """
    count, total = len(groups), groups.sum(axis=0)
    deviations = _deviations(groups)
    squares = deviations**2
    freedom = min(count - 1, max(1.0, 3 * float(squares.sum()) ** 2 / float((squares**2).sum()) - 2))
    error = math.sqrt((count - 1) / count * float(squares.sum()))
    half = float(t.ppf((1 + LEVEL) / 2, freedom)) * error
    value = float(_mean_overlap_differences(total))
    return Interval(low=max(-1.0, value - half), high=min(1.0, value + half), level=LEVEL, kind="jackknife")


def pooled_interval_obstacle(groups: Integers) -> PooledObstacle | None:
    """Why the pooled difference has no interval; None if it has one."""
    if len(groups) < LEAST_SOURCES:
        return PooledObstacle("few images", len(groups))
    members = groups[:, :, 2].any(axis=1).sum(axis=0)
    rarest = int(np.argmin(np.where(members > 0, members, len(groups) + 1)))
    if 0 < members[rarest] < LEAST_OF_POOLED_CLASS:
        return PooledObstacle("rare class", int(members[rarest]), rarest)
    return None if _deviations(groups).any() else PooledObstacle("all alike", len(groups))


def _deviations(groups: Integers) -> Floats:
    """The pooled difference without each group, less the mean of these."""
    without = _mean_overlap_differences(groups.sum(axis=0) - groups)
    return np.asarray((without - without.mean()).round(_DIGITS))


def scores(counts: Integers, images: int) -> SegmentationScores:
    """Metrics of the pooled pixels of `images` images.

    mIoU and mean accuracy average over the classes in the reference. A class that is only predicted has an IoU of 0 and
    lowers those of the classes whose pixels it takes. The matrix is normalised by rows; rows of classes without pixels
    are 0.
    """
    pixels = counts.sum(axis=1)
    total = int(pixels.sum())
    iou = overlaps(counts)
    hits = np.diagonal(counts)
    accuracy = np.divide(hits, pixels, out=np.full(len(hits), np.nan), where=pixels > 0)
    return SegmentationScores(
        images=images,
        pixels=total,
        mean_iou=_mean(iou[pixels > 0]),
        accuracy=float(hits.sum() / total) if total else None,
        mean_accuracy=_mean(accuracy),
        iou=[_or_none(value) for value in iou],
        class_accuracy=[_or_none(value) for value in accuracy],
        class_pixels=pixels.tolist(),
        confusion=normalise(counts).tolist(),
    )


def normalise(counts: Integers) -> Floats:
    """The counts normalised by row: shares of the reference's pixels of each class, 0 … 1."""
    pixels = counts.sum(axis=1, keepdims=True)
    return np.asarray(np.divide(counts, pixels, out=np.zeros(counts.shape), where=pixels > 0))


def difference(after: SegmentationScores, before: SegmentationScores) -> ConfusionMatrix:
    """Row-normalised confusion after − before, −1 … 1 (DILLEMA, arXiv 2502.04378, figure 6)."""
    return (np.asarray(after.confusion) - np.asarray(before.confusion)).tolist()  # type: ignore[no-any-return]


def _mean_overlap_differences(totals: Integers) -> Floats:
    """mIoU of the first arm less that of the second, from `class_pixels` (… × 2 arms × 3 × classes)."""
    hits, union, reference = (totals[..., place, :] for place in range(3))
    ious = np.divide(hits, union, out=np.zeros(hits.shape), where=reference > 0)
    means = ious.sum(axis=-1) / np.maximum((reference > 0).sum(axis=-1), 1)
    return np.asarray(means[..., 0] - means[..., 1])


def _mean(values: Floats) -> float | None:
    numbers = values[~np.isnan(values)]
    return float(numbers.mean()) if len(numbers) else None


def _or_none(value: float) -> float | None:
    return None if np.isnan(value) else float(value)
