"""Semantic segmenters in Hub layout (SegFormer, UperNet, ...), with label maps at the image's own size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import interpolate
from transformers import AutoModelForSemanticSegmentation

from evaluator_service.models_under_test.hub import load_hub_model, own_names
from evaluator_service.models_under_test.outputs import NOT_FINITE, ClassNames, NamedOutputs
from evaluator_service.models_under_test.preprocessing import processors
from shared.chunks import chunks
from shared.images import Pixels
from shared.problems import InvalidInput, NotFinite
from shared.schemas.base import Kind
from shared.weights import Weights

MAX_CLASSES = 255  # a class index is one byte
OUTPUTS_AT_ONCE = 16


class ImageSegmenter:
    """A segmenter under test, with its own preprocessing."""

    kind: ClassVar[Kind] = "segmentation"

    def __init__(self, weights: Weights, *, device: str, classes: ClassNames | None = None) -> None:
        """Load weights and preprocessing; see `ImageClassifier`. Outputs of one name are one class."""
        self._model = load_hub_model(AutoModelForSemanticSegmentation, weights).to(device).eval()
        at = (weights.location, weights.subfolder, weights.hub_revision)
        channels = getattr(self._model.config, "num_channels", None)
        self._prepare = processors(*at, whole=True, channels=channels)
        names = own_names(self._model.config)
        self._outputs = NamedOutputs(len(names), names, classes)
        self.classes = self._outputs.classes
        if len(names) > MAX_CLASSES:
            raise InvalidInput(f"the segmenter has {len(names)} classes; at most {MAX_CLASSES} are supported")

    @torch.inference_mode()
    def label_maps(self, images: Sequence[Pixels]) -> list[NDArray[np.uint8]]:
        """Per image (height × width × 3) the index in `classes` of every pixel, height × width.

        Logits are resized bilinearly to the image's size before the argmax, as transformers' own post-processing does.
        Raises NotFinite if one of them is NaN or infinite.
        """
        pixel_values = torch.from_numpy(self._prepare(images))
        logits = self._model(pixel_values.to(self._model.device, self._model.dtype)).logits.float()
        return label_maps_of(logits, images, self._outputs.index_map())


def label_maps_of(logits: Tensor, images: Sequence[Pixels], columns: NDArray[np.int64]) -> list[NDArray[np.uint8]]:
    """The class of every pixel of each image, from logits (images × outputs × h × w); `columns`: output → class.

    Raises NotFinite if a logit is NaN or infinite.
    """
    if not torch.isfinite(logits).all():
        raise NotFinite(NOT_FINITE)
    return [label_map(rows, image.shape[:2], columns) for image, rows in zip(images, logits, strict=True)]


def label_map(logits: Tensor, size: Sequence[int], columns: NDArray[np.int64]) -> NDArray[np.uint8]:
    """The class of every pixel at `size` (height, width) from logits (outputs × h × w); `columns`: output → class.

    A few outputs are resized at a time: 150 of them at 2,048 × 2,048 pixels are 2.5 GB.
    """
    first, *others = chunks(logits, OUTPUTS_AT_ONCE)
    best, winner = _largest(first, size)
    for number, outputs in enumerate(others, 1):
        values, places = _largest(outputs, size)
        winner = torch.where(values > best, places + number * OUTPUTS_AT_ONCE, winner)
        best = torch.maximum(values, best)
    classes: NDArray[np.int64] = columns[winner.cpu().numpy()]
    return classes.astype(np.uint8)


def _largest(logits: Tensor, size: Sequence[int]) -> tuple[Tensor, Tensor]:
    """The largest logit of every pixel at `size`, and the index of its output."""
    resized = interpolate(logits[None], size=tuple(size), mode="bilinear", align_corners=False)[0]
    values, places = resized.max(dim=0)
    return values, places
