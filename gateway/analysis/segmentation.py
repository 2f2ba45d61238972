"""Metrics of segmenters from confusion counts (`shared.label_maps`): IoU, accuracy. Numpy only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from gateway.analysis.certainty import LEVEL
from gateway.analysis.effects import Floats, Integers
from gateway.analysis.limits import LEAST_SOURCES
from shared.schemas.masks import ALL_CLASSES
from shared.schemas.results import ConfusionMatrix, Interval, SegmentationScores
from shared.seeds import derive_seed

POOLED_RESAMPLES = 400
DETECTION_IOU = 0.5  # a class with at least this IoU counts as detected


def overlaps(counts: Integers) -> Floats:
    """IoU of each class, TP / (TP + FP + FN), in 0 … 1; NaN for a class in neither reference nor prediction."""
    hits, union = hits_and_union(counts)
    return np.asarray(np.divide(hits, union, out=np.full(len(hits), np.nan), where=union > 0))


def hits_and_union(counts: Integers) -> Integers:
    """Pixels of each class (2 × classes): in both reference and prediction; in at least one of them."""
    hits = np.diagonal(counts)
    return np.stack([hits, counts.sum(axis=1) + counts[:, :-1].sum(axis=0) - hits])


def weights_of(group: int) -> Integers:
    """The multiplicity of a group in each of 400 resamples: Poisson(1), the same in every array of a job."""
    return np.random.default_rng(derive_seed("pooled", group)).poisson(1.0, POOLED_RESAMPLES)


def pooled_interval(after: Integers, before: Integers, groups: int) -> Interval | None:
    """95 % interval of the difference in pooled mIoU, −1 … 1, from resampled hits and unions (400 × 2 × classes).

    The percentile bootstrap over groups. Poisson weights allow one pass over the images. None below 12 groups.
    """
    if groups < LEAST_SOURCES:
        return None
    low, high = np.quantile(_mean_overlaps(after) - _mean_overlaps(before), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(low=float(low), high=float(high), level=LEVEL, kind="bootstrap")


def named_overlaps(counts: Integers, classes: Sequence[str]) -> dict[str, float]:
    """IoU by name of the classes in the reference of one image."""
    in_reference = counts.sum(axis=1) > 0
    values = overlaps(counts)
    return {name: float(values[index]) for index, name in enumerate(classes) if in_reference[index]}


def image_overlap(by_class: Mapping[str, float]) -> float | None:
    """The mean IoU of one image over the classes in its reference; None if there are none."""
    return sum(by_class.values()) / len(by_class) if by_class else None


def with_mean(by_class: Mapping[str, float]) -> dict[str, float]:
    """IoU by class, and their mean under `ALL_CLASSES`; empty if there are none."""
    mean = image_overlap(by_class)
    return {} if mean is None else {**by_class, ALL_CLASSES: mean}


def lost_classes(before: Mapping[str, float], after: Mapping[str, float]) -> list[str]:
    """The classes that are detected before but not after."""
    return [name for name, iou in before.items() if iou >= DETECTION_IOU > after.get(name, 0.0)]


def scores(counts: Integers, images: int) -> SegmentationScores:
    """Metrics of the pooled pixels of `images` images.

    mIoU averages over the classes in reference or prediction, mean accuracy over the classes in the reference. The
    matrix is normalised by rows; rows of classes without pixels are 0.
    """
    pixels = counts.sum(axis=1)
    total = int(pixels.sum())
    iou = overlaps(counts)
    hits = np.diagonal(counts)
    accuracy = np.divide(hits, pixels, out=np.full(len(hits), np.nan), where=pixels > 0)
    return SegmentationScores(
        images=images,
        pixels=total,
        mean_iou=_mean(iou),
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


def _mean_overlaps(resampled: Integers) -> Floats:
    """mIoU of each resample, over the classes in reference or prediction."""
    hits, union = resampled[:, 0], resampled[:, 1]
    present = union > 0
    ious = np.divide(hits, union, out=np.zeros(hits.shape), where=present)
    return np.asarray(ious.sum(axis=1) / np.maximum(present.sum(axis=1), 1))


def _mean(values: Floats) -> float | None:
    numbers = values[~np.isnan(values)]
    return float(numbers.mean()) if len(numbers) else None


def _or_none(value: float) -> float | None:
    return None if np.isnan(value) else float(value)
