"""What a model under test does, one file for each kind; everything above reads its scores.

A kind turns the evaluator's reply for an image into `Scored`, given the truth: a class, a mask. Without ground truth a
model's own reply for the original takes the place of the truth, so that a test shows whether predictions change.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.kinds import classification, segmentation
from gateway.kinds.task_kind import Scored, TaskKind
from shared.schemas.base import Kind

KINDS: Mapping[Kind, TaskKind[Any, Any]] = {
    kind.name: kind for kind in (classification.CLASSIFICATION, segmentation.SEGMENTATION)
}

__all__ = ["KINDS", "Scored", "TaskKind"]
