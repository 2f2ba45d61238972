"""Image classifiers: one class for an image. An answer is a row of probabilities, one for each class.

In Hub layout they are transformers' (ResNet, ViT, ConvNeXT, ..., and timm's if it is installed). A server answers
`{"probabilities": [[...], ...]}`, a row per image.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ValidationError
from transformers import AutoModelForImageClassification

from evaluator_service.models_under_test.hub import load_hub_model, own_names
from evaluator_service.models_under_test.kinds.model_kind import Answer, LoadedModel, ModelKind, ReadArray
from evaluator_service.models_under_test.onnx_file import OnnxFile, output_name, trial_images
from evaluator_service.models_under_test.outputs import ClassNames, NamedOutputs, output_of, refuse_dependence, softmax
from evaluator_service.models_under_test.preprocessing import processors
from evaluator_service.models_under_test.question import QuestionModel
from evaluator_service.models_under_test.trainable import Opener, Trainable, TrainingExample, opened_chunks
from shared.media.images import Pixels
from shared.problems import InvalidInput
from shared.profiles.weights import Weights
from shared.schemas.base import Kind
from shared.schemas.evaluation import PredictReply
from shared.schemas.models import ModelDescription
from shared.schemas.repairs import Judgement
from shared.service.endpoints import Services

MULTI_LABEL = "multi_label_classification"
SUM_TOLERANCE = 0.01
_HEAD_BYTES = 64 * 1024
_NUMBER_BYTES = 64


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
    def run(self, images: Sequence[Pixels]) -> NDArray[np.float64]:
        """Softmax in single precision, images × classes, of RGB images of any sizes (height × width × 3)."""
        pixel_values = torch.from_numpy(self._prepare(images))
        logits = self._model(pixel_values.to(self._model.device, self._model.dtype)).logits
        return self._outputs.merge(np.asarray(logits.float().softmax(dim=-1).double().cpu().numpy()))


class OnnxClassifier:
    """An ONNX classifier under test: a batch of images in, one row of logits or probabilities per image out."""

    kind: ClassVar[Kind] = "classification"

    def __init__(self, folder: Path, description: ModelDescription, *, device: str) -> None:
        """Check and load `model.onnx` of a folder. Raises InvalidInput, and what onnxruntime raises."""
        self._file = OnnxFile(folder, description, ("pictures", "classes"), device)
        rows = self._file.rows(trial_images())
        self._output = output_of(rows, description.output, self._file.last_operator)
        refuse_dependence(self._file.sample[0], rows[0])
        self._outputs = NamedOutputs(rows.shape[1], self._file.names(), description.classes)
        self.classes = self._outputs.classes

    def run(self, images: Sequence[Pixels]) -> NDArray[np.float64]:
        """Images × classes, of RGB images of any sizes (height × width × 3)."""
        rows = self._file.rows(images)
        return self._outputs.merge(softmax(rows) if self._output == "logits" else rows.astype(np.float64))


class TrainableClassifier(Trainable):
    """A classifier, evaluated by its most probable class."""

    kind = "classification"
    network = AutoModelForImageClassification

    def inputs(self, example: TrainingExample) -> dict[str, Any]:
        """`labels` is the index of the class."""
        pixels = torch.from_numpy(self._prepare([example.image])[0])
        return {"pixel_values": pixels, "labels": self._index[example.label]}

    @torch.inference_mode()
    def judge(self, openers: Sequence[Opener]) -> Judgement:
        """Whether the true class is the most probable one."""
        self.model.eval()
        scores = []
        for examples in opened_chunks(openers):
            log_probabilities = self._log_probabilities(self._logits([example.image for example in examples]))
            predicted = log_probabilities.argmax(1).tolist()
            for example, place in zip(examples, predicted, strict=True):
                scores.append({example.label: float(place == self._index[example.label])})
        return Judgement(scores=scores)


def refuse_other_rows(rows: NDArray[np.float64], images: int, classes: int) -> None:
    """Raise InvalidInput unless `rows` are probabilities, images × classes. NaN passes: it fails its own image."""
    if rows.shape != (images, classes):
        raise InvalidInput(
            f"the model returned shape {rows.shape} for {images} images; it must return images × {classes} classes"
        )
    finite = rows[np.isfinite(rows).all(axis=1)]
    if len(finite) and (finite.min() < -1e-6 or not np.allclose(finite.sum(axis=1), 1, atol=SUM_TOLERANCE)):
        raise InvalidInput(
            f"the model returned rows that are not probabilities: from {finite.min():.3g} to {finite.max():.3g}, and "
            f'the first sums to {finite[0].sum():.4g}; set output="logits" if they are logits, else let each sum to 1'
        )


def _examine(model: LoadedModel, images: Sequence[Pixels], answers: Sequence[Answer]) -> None:
    rows = np.stack(answers)
    if not np.allclose(rows.sum(axis=1), 1, atol=SUM_TOLERANCE) or rows.min() < -1e-6:
        raise InvalidInput('the outputs of the model are not probabilities; set "output": "logits"')


class _Rows(BaseModel):
    probabilities: list[list[float]]


def _most_bytes(images: Sequence[bytes], classes: int) -> int:
    return _HEAD_BYTES + _NUMBER_BYTES * len(images) * classes


def _parse(body: bytes, images: Sequence[bytes], classes: Sequence[str]) -> list[Answer]:
    try:
        rows = _Rows.model_validate_json(body).probabilities
    except ValidationError as error:
        raise ValueError('did not return {"probabilities": [[...]]}') from error
    if len(rows) != len(images) or any(len(row) != len(classes) for row in rows):
        raise ValueError(f"must return {len(images)} rows of {len(classes)} probabilities")
    array = np.array(rows)
    summed = np.isfinite(array).all() and (array >= 0).all() and np.allclose(array.sum(1), 1, atol=SUM_TOLERANCE)
    if not summed:
        raise ValueError("returned rows that are not probabilities (each must sum to 1; logits need a softmax)")
    return list(array)


def _from_tensors(
    tensors: Mapping[str, Answer], images: Sequence[Pixels], description: ModelDescription
) -> list[Answer]:
    rows = tensors[output_name(tensors)].astype(np.float64)
    classes = len(description.classes or [])
    if rows.shape != (len(images), classes):
        raise ValueError(f"returned shape {rows.shape} for {len(images)} images of {classes} classes")
    if description.output not in ("logits", "probabilities"):
        raise ValueError("needs `output` in its table: logits or probabilities")
    rows = softmax(rows) if description.output == "logits" else rows
    refuse_other_rows(rows, len(images), classes)
    return list(rows)


def _receive(images: Sequence[Pixels], classes: int, read: ReadArray) -> list[Answer]:
    return list(read((len(images), classes), np.float64))


def _reply(classes: list[str], answers: Sequence[Answer]) -> PredictReply:
    return PredictReply(classes=classes, probabilities=[row.tolist() for row in answers])


CLASSIFICATION = ModelKind(
    name="classification",
    noun="classifier",
    endpoint=Services.predict,
    from_hub=ImageClassifier,
    from_onnx=OnnxClassifier,
    examine=_examine,
    most_bytes=_most_bytes,
    parse=_parse,
    from_tensors=_from_tensors,
    receive=_receive,
    reply=_reply,
    trainable=TrainableClassifier,
    question=QuestionModel,
)
