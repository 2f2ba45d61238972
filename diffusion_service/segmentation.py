"""Semantic segmentation of source images, and the mask of the labels that must not change."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from transformers import AutoImageProcessor, AutoModelForSemanticSegmentation

from shared.media.images import Pixels
from shared.problems import NotFinite
from shared.profiles.weights import Weights
from shared.service.devices import tensor_float_32
from shared.service.load_progress import reading

NOT_FINITE = "the segmenter's output has NaN or infinity; set CONTRAFACT_DTYPE to float32 or bfloat16"

LabelMap = NDArray[np.int64]


class Segmenter:
    """A semantic segmentation model and the labels that must not change."""

    def __init__(self, weights: Weights, keep_labels: Sequence[str], *, device: str) -> None:
        """Load weights in Hub layout (safetensors). `keep_labels` are names from the model's own label list."""
        at = {"subfolder": weights.subfolder, "revision": weights.hub_revision}
        with reading(weights):
            model = AutoModelForSemanticSegmentation.from_pretrained(
                weights.location, dtype=getattr(torch, weights.dtype), use_safetensors=True, **at
            )
            self._model = model.to(device).eval()
        self._processor = AutoImageProcessor.from_pretrained(weights.location, backend="pil", **at)
        labels = {str(name): int(index) for index, name in self._model.config.id2label.items()}
        if unknown := [name for name in keep_labels if name not in labels]:
            raise ValueError(f"the segmenter has no labels {unknown}; choose keep_labels from {sorted(labels)}")
        self._keep = [labels[name] for name in keep_labels]
        self.labels = tuple(str(self._model.config.id2label[index]) for index in range(self._model.config.num_labels))

    @property
    def network(self) -> torch.nn.Module:
        """The model itself."""
        network: torch.nn.Module = self._model
        return network

    @torch.inference_mode()
    def label_map(self, image: Pixels) -> LabelMap:
        """Height × width indices into `labels`, of an RGB image. Raises NotFinite."""
        inputs = self._processor(images=Image.fromarray(image), return_tensors="pt")
        pixel_values = inputs["pixel_values"].to(self._model.device, self._model.dtype)
        with tensor_float_32(torch, self._model.device.type):
            logits = self._model(pixel_values=pixel_values).logits.float()
        if not logits.isfinite().all():
            raise NotFinite(NOT_FINITE)
        classes = torch.nn.functional.interpolate(logits, size=image.shape[:2], mode="bilinear").argmax(dim=1)[0]
        return np.asarray(classes.cpu().numpy(), np.int64)

    def keep_mask(self, image: Pixels) -> Pixels:
        """A height × width mask of an RGB image: 255 where a pixel has a label that must not change, else 0."""
        return self.mask_of(self.label_map(image))

    def mask_of(self, label_map: LabelMap) -> Pixels:
        """As `keep_mask`, from an image's label map."""
        return np.where(np.isin(label_map, self._keep), 255, 0).astype(np.uint8)
