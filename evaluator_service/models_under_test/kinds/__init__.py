"""What a model under test does, one file for each kind; everything else in this service treats all kinds alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from evaluator_service.models_under_test.kinds import classification, detection, segmentation, vqa
from evaluator_service.models_under_test.kinds.model_kind import Answer, LoadedModel, ModelKind
from shared.schemas.base import Kind

KINDS: Mapping[Kind, ModelKind[Any]] = {
    kind.name: kind
    for kind in (
        classification.CLASSIFICATION,
        segmentation.SEGMENTATION,
        detection.DETECTION,
        vqa.VQA,
    )
}

__all__ = ["KINDS", "Answer", "LoadedModel", "ModelKind"]
