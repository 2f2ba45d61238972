"""Segmentation: a class for each pixel, scored by the IoU of each class of the mask.

`predicted` is the most frequent class, `probability` its share of the pixels. `detail` of a prediction: `top`, the most
frequent classes with their shares, and `confusion`, pixels by class of the truth and predicted class
(`shared.label_maps.pack_counts`). Its image is the label map, with indices of the job's classes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from gateway.kinds.task_kind import TOP, Scored, TaskKind
from shared.endpoints import Services
from shared.images import decode, encode
from shared.label_maps import OTHER, VOID, Map, class_indices, confusion, named_overlaps, pack_counts
from shared.schemas.base import ImagePayload
from shared.schemas.evaluation import SegmentReply
from shared.scores import lost_labels, with_mean

OTHER_NAME = "another class"


def _answers(reply: SegmentReply, classes: Sequence[str]) -> Iterator[Map]:
    """One label map after another: only one is in memory as pixels."""
    table = class_indices(reply.classes, classes)
    for label_map in reply.maps:
        yield table[decode(label_map.png, "L")]


def _mask(label: str | None, mask: ImagePayload | None) -> Map | None:
    return None if mask is None else decode(mask.png, "L")


def _without_others(label_map: Map) -> Map:
    """`OTHER` is not evaluated."""
    return np.where(label_map == OTHER, np.uint8(VOID), label_map)


def _judge(label_map: Map, truth: Map | None, classes: Sequence[str]) -> Scored:
    pixels = np.bincount(np.minimum(label_map.ravel(), len(classes)), minlength=len(classes) + 1)
    names = [*classes, OTHER_NAME]
    most = [place for place in np.argsort(-pixels, kind="stable")[:TOP].tolist() if pixels[place]]
    counts = None if truth is None else confusion(truth, label_map, len(classes))
    return Scored(
        names[most[0]],
        float(pixels[most[0]] / label_map.size),
        {} if counts is None else with_mean(named_overlaps(counts, classes)),
        {
            "top": [{"name": names[place], "probability": float(pixels[place] / label_map.size)} for place in most],
            "confusion": None if counts is None else [*pack_counts(counts)],
        },
        encode(label_map),
    )


def _changed(original: Scored, image: Scored) -> bool | None:
    """Whether it misses a class that it detected on the original."""
    return bool(lost_labels(original.scores, image.scores)) if image.detail["confusion"] is not None else None


SEGMENTATION = TaskKind(
    name="segmentation",
    metric="iou",
    endpoint=Services.segment,
    answers=_answers,
    truth_of=_mask,
    as_truth=_without_others,
    judge=_judge,
    changed=_changed,
)
