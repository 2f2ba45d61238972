"""What trainable models under test of all kinds share: load, loss, save.

A trainable uses the same preprocessing as the model under test, so that the result of the training applies to it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import AutoImageProcessor

from evaluator_service.models_under_test.hub import load_hub_model, own_names
from evaluator_service.models_under_test.outputs import NamedOutputs
from evaluator_service.models_under_test.preprocessing import processors
from shared.chunks import chunks
from shared.media.images import Pixels
from shared.problems import InvalidInput
from shared.profiles.weights import Weights
from shared.schemas.base import Kind
from shared.schemas.models import DESCRIPTION_NAME, ONNX_NAME, ModelDescription, read_description
from shared.schemas.repairs import Judgement

JUDGED_AT_ONCE = 32
IGNORED = -100  # torch's index for pixels that do not count in the loss


@dataclass(frozen=True, slots=True)
class TrainingExample:
    """An image (height × width × 3) with its ground truth.

    The ground truth is its class, or `mask`: for each pixel the index into the trainable's `classes`, 255 where void.
    """

    image: Pixels
    label: str
    mask: Pixels | None = None


Opener = Callable[[], TrainingExample]


class Trainable(ABC):
    """A model in Hub layout. Outputs of the same class name are one class, whose probability is their sum."""

    kind: ClassVar[Kind]
    network: ClassVar[Any]

    def __init__(self, weights: Weights, classes: Sequence[str], *, device: str) -> None:
        """Load in single precision. `classes`: those of the ground truth, in the order of the masks' indices.

        Raises InvalidInput for models that cannot be trained, and for classes that the model lacks.
        """
        self._description = _description(weights).model_copy(update={"kind": self.kind})
        whole = weights.model_copy(update={"dtype": "float32"})
        self.model: nn.Module = load_hub_model(self.network, whole).to(device)
        at = {"subfolder": weights.subfolder, "revision": weights.hub_revision}
        channels = getattr(self.model.config, "num_channels", None)
        self._prepare = processors(weights.location, weights.subfolder, weights.hub_revision, channels=channels)
        self._processor = AutoImageProcessor.from_pretrained(weights.location, backend="pil", **at)
        names = own_names(self.model.config)
        self._outputs = NamedOutputs(len(names), names, self._description.classes)
        self._index = {name: place for place, name in enumerate(self._outputs.classes)}
        if unknown := sorted(set(classes) - set(self._index)):
            raise InvalidInput(f"the model lacks the classes {', '.join(unknown[:20])} of the job")
        self._columns = torch.from_numpy(self._outputs.index_map()).to(device)
        self._classes, self._device = list(classes), device

    @abstractmethod
    def inputs(self, example: TrainingExample) -> dict[str, Any]:
        """`pixel_values` (channels × height × width), and `labels`, the ground truth as `loss` expects it."""

    @abstractmethod
    def judge(self, openers: Sequence[Opener]) -> Judgement:
        """Evaluate the model on images, which are opened when they are needed."""

    def loss(self, outputs: Any, labels: Tensor, num_items_in_batch: Tensor | int | None = None) -> Tensor:
        """Mean cross-entropy over classes of a batch, in the form that transformers' Trainer requires.

        `labels`: n class indices, or n × height × width of them; logits are resized to that size. The loss is 0 if all
        labels are void.
        """
        logits = outputs.logits.float()
        if labels.ndim > 1:
            logits = nn.functional.interpolate(logits, size=labels.shape[1:], mode="bilinear", align_corners=False)
        log_probabilities = self._log_probabilities(logits)
        costs = nn.functional.nll_loss(log_probabilities, labels, ignore_index=IGNORED, reduction="sum")
        return costs / (labels != IGNORED).sum().clamp(min=1)

    def save(self, folder: Path) -> None:
        """Save weights as safetensors in Hub layout, preprocessing, and the description unless it is the default."""
        self.model.save_pretrained(folder)  # type: ignore[operator]  # transformers', not torch's
        self._processor.save_pretrained(folder)
        if self._description != ModelDescription():
            description = self._description.model_dump_json(exclude_defaults=True)
            (folder / DESCRIPTION_NAME).write_text(description, encoding="utf-8")

    def _log_probabilities(self, logits: Tensor) -> Tensor:
        """(n, outputs, ...) → (n, classes, ...)."""
        outputs = logits.float().log_softmax(dim=1)
        classes = len(self._index)
        if classes == outputs.shape[1]:
            return outputs
        return torch.stack([outputs[:, self._columns == place].logsumexp(1) for place in range(classes)], dim=1)

    def _logits(self, images: Sequence[Pixels]) -> Tensor:
        return self.model(pixel_values=torch.from_numpy(self._prepare(images)).to(self._device)).logits  # type: ignore[no-any-return]


def opened_chunks(openers: Sequence[Opener]) -> Iterator[list[TrainingExample]]:
    """Open the images a few at a time."""
    for chunk in chunks(openers, JUDGED_AT_ONCE):
        yield [opened() for opened in chunk]


def _description(weights: Weights) -> ModelDescription:
    if weights.path is None:
        return ModelDescription()
    folder = Path(weights.location, weights.subfolder)
    if (folder / ONNX_NAME).is_file():
        raise InvalidInput("an ONNX model cannot be trained; upload and repair the model that it was exported from")
    return read_description(folder)
