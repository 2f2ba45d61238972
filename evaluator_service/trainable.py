"""Models under test as something to train: load, loss, judgement, save. Another task is another entry of TASKS.

A trainable sees images as the model under test does, through the model's own preprocessing, so that what is learnt
holds when the model is tested.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import AutoImageProcessor, AutoModelForImageClassification

from evaluator_service.models_under_test.hub import load_hub_model, own_names
from evaluator_service.models_under_test.outputs import NamedOutputs
from evaluator_service.models_under_test.preprocessing import processors
from shared.images import Pixels
from shared.problems import InvalidInput
from shared.schemas.models import DESCRIPTION_NAME, ONNX_NAME, ModelDescription, read_description
from shared.schemas.repairs import Judgement
from shared.weights import Weights

JUDGED_AT_ONCE = 32


class Trainable(Protocol):
    """A model of one task, with all that training and judging it needs."""

    model: nn.Module

    def inputs(self, image: Pixels, label: str) -> dict[str, Any]:
        """What the model's `forward` takes of one image, and `labels`, what `loss` takes of its ground truth."""
        ...

    def loss(self, outputs: Any, labels: Tensor, num_items_in_batch: Tensor | int | None = None) -> Tensor:
        """The mean loss of a batch, in the form that transformers' Trainer asks for."""
        ...

    def judge(self, images: Sequence[Callable[[], Pixels]], labels: Sequence[str]) -> Judgement:
        """What the model says of images, which are opened when they are needed."""
        ...

    def save(self, folder: Path) -> None:
        """Weights as safetensors in Hub layout, preprocessing and description, as uploads have them."""
        ...


class TrainableClassifier:
    """A classifier in Hub layout. Outputs of one class name are one class, whose probability is their sum."""

    def __init__(self, weights: Weights, labels: Sequence[str], *, device: str) -> None:
        """Load in single precision. Raises InvalidInput for what cannot be trained, and for labels it does not know."""
        self._description = _description(weights)
        self.model: nn.Module = load_hub_model(
            AutoModelForImageClassification, weights.model_copy(update={"dtype": "float32"})
        ).to(device)
        at = {"subfolder": weights.subfolder, "revision": weights.hub_revision}
        self._prepare = processors(weights.location, weights.subfolder, weights.hub_revision)
        self._processor = AutoImageProcessor.from_pretrained(weights.location, backend="pil", **at)
        names = own_names(self.model.config)
        self._outputs = NamedOutputs(len(names), names, self._description.classes)
        self._index = {name: place for place, name in enumerate(self._outputs.classes)}
        if unknown := sorted(set(labels) - set(self._index)):
            raise InvalidInput(f"the model does not know the classes {', '.join(unknown[:20])} of the job")
        self._columns = torch.from_numpy(self._outputs.index_map()).to(device)
        self._device = device

    def inputs(self, image: Pixels, label: str) -> dict[str, Any]:
        """`pixel_values` (channels × height × width) and the index of the class."""
        return {"pixel_values": torch.from_numpy(self._prepare([image])[0]), "labels": self._index[label]}

    def loss(self, outputs: Any, labels: Tensor, num_items_in_batch: Tensor | int | None = None) -> Tensor:
        """Cross-entropy over classes."""
        return nn.functional.nll_loss(self._log_probabilities(outputs.logits), labels)

    @torch.inference_mode()
    def judge(self, images: Sequence[Callable[[], Pixels]], labels: Sequence[str]) -> Judgement:
        """Whether the true class comes first, and its probability."""
        self.model.eval()
        rows: list[NDArray[np.float64]] = []
        for start in range(0, len(images), JUDGED_AT_ONCE):
            batch = torch.from_numpy(self._prepare([opened() for opened in images[start : start + JUDGED_AT_ONCE]]))
            logits = self.model(pixel_values=batch.to(self._device)).logits
            rows.append(self._log_probabilities(logits).exp().double().cpu().numpy())
        probabilities = np.concatenate(rows)
        truth = np.array([self._index[label] for label in labels])
        return Judgement(
            correct=(probabilities.argmax(1) == truth).tolist(),
            p_truth=[round(float(row[place]), 6) for row, place in zip(probabilities, truth, strict=True)],
        )

    def save(self, folder: Path) -> None:
        """With the description where it says more than the defaults."""
        self.model.save_pretrained(folder)  # type: ignore[operator]  # transformers', not torch's
        self._processor.save_pretrained(folder)
        if self._description != ModelDescription():
            said = self._description.model_dump_json(exclude_defaults=True)
            (folder / DESCRIPTION_NAME).write_text(said, encoding="utf-8")

    def _log_probabilities(self, logits: Tensor) -> Tensor:
        """(n, outputs) → (n, classes)."""
        outputs = logits.float().log_softmax(dim=1)
        classes = len(self._index)
        if classes == outputs.shape[1]:
            return outputs
        return torch.stack([outputs[:, self._columns == place].logsumexp(1) for place in range(classes)], dim=1)


TASKS: Mapping[str, Callable[..., Trainable]] = {"classification": TrainableClassifier}


def _description(weights: Weights) -> ModelDescription:
    if weights.path is None:
        return ModelDescription()
    folder = Path(weights.location, weights.subfolder)
    if (folder / ONNX_NAME).is_file():
        raise InvalidInput("an ONNX model cannot be trained; repair the model that it was exported from")
    return read_description(folder)
