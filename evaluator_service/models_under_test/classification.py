"""Image classifiers in Hub layout (transformers' ResNet, ViT, ConvNeXT, ..., and timm's if it is installed)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoModelForImageClassification

from evaluator_service.models_under_test.hub import load_hub_model, own_names
from evaluator_service.models_under_test.outputs import ClassNames, NamedOutputs
from evaluator_service.models_under_test.preprocessing import processors
from shared.images import Pixels
from shared.problems import InvalidInput
from shared.schemas.base import Kind
from shared.weights import Weights

MULTI_LABEL = "multi_label_classification"


class ImageClassifier:
    """A classifier under test with its own preprocessing."""

    kind: ClassVar[Kind] = "classification"

    def __init__(self, weights: Weights, *, device: str, classes: ClassNames | None = None) -> None:
        """Load weights and preprocessing (Hub layout, safetensors, no remote code).

        `classes` override the model's own names. Raises InvalidInput, and what `from_pretrained` raises.
        """
        self._model = load_hub_model(AutoModelForImageClassification, weights).to(device).eval()
        config = self._model.config
        if getattr(config, "problem_type", None) == MULTI_LABEL:
            raise InvalidInput(
                f'config.json says that several classes may be true at once ("problem_type": "{MULTI_LABEL}"); only '
                'models that choose one class can be tested. If this one does, set "single_label_classification"'
            )
        at = (weights.location, weights.subfolder, weights.hub_revision)
        self._prepare = processors(*at, channels=getattr(config, "num_channels", None))
        names = own_names(config)
        self._outputs = NamedOutputs(len(names), names, classes)
        self.classes = self._outputs.classes

    @torch.inference_mode()
    def probabilities(self, images: Sequence[Pixels]) -> NDArray[np.float64]:
        """Softmax in single precision, images × classes, of RGB images of any sizes (height × width × 3)."""
        pixel_values = torch.from_numpy(self._prepare(images))
        logits = self._model(pixel_values.to(self._model.device, self._model.dtype)).logits
        return self._outputs.merge(np.asarray(logits.float().softmax(dim=-1).double().cpu().numpy()))
