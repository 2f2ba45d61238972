"""Image classifiers in Hub layout (transformers' own ResNet, ViT, ConvNeXT, ...)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from transformers import AutoImageProcessor, AutoModelForImageClassification

from shared.images import Pixels
from shared.weights import Weights


class ImageClassifier:
    """A classifier under test: it sees the images as its own preprocessing makes them, and nothing else."""

    def __init__(self, weights: Weights, *, device: str) -> None:
        """Load weights and preprocessing (Hub layout, safetensors, no remote code)."""
        at = {"subfolder": weights.subfolder, "revision": weights.hub_revision}
        self._model = (
            AutoModelForImageClassification.from_pretrained(
                weights.location, dtype=getattr(torch, weights.dtype), use_safetensors=True, **at
            )
            .to(device)
            .eval()
        )
        self._processor = AutoImageProcessor.from_pretrained(weights.location, backend="pil", **at)
        labels = {int(index): str(label) for index, label in self._model.config.id2label.items()}
        self.classes = [labels[index] for index in range(len(labels))]

    @torch.inference_mode()
    def probabilities(self, images: Sequence[Pixels]) -> NDArray[np.float64]:
        """Softmax in single precision, images × classes, of RGB images of any sizes (height × width × 3)."""
        inputs = self._processor(images=[Image.fromarray(image) for image in images], return_tensors="pt")
        logits = self._model(inputs["pixel_values"].to(self._model.device, self._model.dtype)).logits
        return np.asarray(logits.float().softmax(dim=-1).double().cpu().numpy())
