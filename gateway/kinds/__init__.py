"""What a model under test does, one file for each kind; everything above reads its scores.

A kind turns the evaluator's reply for an image into `Scored`, given the truth: a class, a mask. Without ground truth a
model's own reply for the original takes the place of the truth, so that a test shows whether predictions change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gateway.kinds import classification, detection, segmentation, vqa
from gateway.kinds.rows import PredictionRow
from gateway.kinds.task_kind import Scored, TaskKind
from shared.schemas.base import Kind
from shared.schemas.effects import Metric
from shared.schemas.jobs import JobSpec

KINDS: Mapping[Kind, TaskKind[Any, Any]] = {
    kind.name: kind
    for kind in (
        classification.CLASSIFICATION,
        segmentation.SEGMENTATION,
        detection.DETECTION,
        vqa.VQA,
    )
}


def of_metric(metric: Metric) -> TaskKind[Any, Any]:
    """The kind whose scores a metric is of."""
    return next(kind for kind in KINDS.values() if kind.metric == metric)


def announced_kind(spec: JobSpec) -> Kind:
    """The kind of the ground truth that a spec announces; without one, labels of images."""
    return next((kind.name for kind in KINDS.values() if kind.announced(spec)), "classification")


def checks_elsewhere(kind: Kind) -> set[str]:
    """The checks that other kinds have, and this one has not."""
    return {check for other in KINDS.values() for check in other.checks} - {*KINDS[kind].checks}


def alike(rows: Sequence[PredictionRow | None]) -> Sequence[PredictionRow | None]:
    """One model's predictions for images that are compared, without what only some of the images have."""
    for kind in KINDS.values():
        rows = kind.alike(rows)
    return rows


__all__ = ["KINDS", "Scored", "TaskKind", "alike", "announced_kind", "checks_elsewhere", "of_metric"]
