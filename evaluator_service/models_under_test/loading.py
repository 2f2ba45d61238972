"""Load a folder as a model under test, and try a newly uploaded model before it is accepted."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import ClassVar, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import ValidationError

from evaluator_service.models_under_test.classification import ImageClassifier
from evaluator_service.models_under_test.onnx_bounds import TensorBound, refuse_large_tensors
from evaluator_service.models_under_test.onnx_models import OnnxClassifier, OnnxSegmenter
from evaluator_service.models_under_test.outputs import NOT_FINITE
from evaluator_service.models_under_test.segmentation import ImageSegmenter
from shared.images import Pixels
from shared.problems import InvalidInput, NotFinite, OutOfMemory, Problem, validation_sentence
from shared.profile_evaluator import ModelUnderTest
from shared.schemas.base import Kind
from shared.schemas.models import ONNX_NAME, read_description
from shared.weights import Weights

MAX_DETAIL = 500
_LOOKS = ((75, 97), (64, 64))  # height × width of the images that a new model is tried on


class Classifier(Protocol):
    """A model under test that classifies images."""

    kind: ClassVar[Kind]
    classes: list[str]

    def probabilities(self, images: Sequence[Pixels]) -> NDArray[np.float64]:
        """Images × classes, each row summing to 1, of RGB images of any sizes (height × width × 3)."""
        ...


Segmenter = ImageSegmenter | OnnxSegmenter


def load_folder(
    folder: Path, *, device: str, segments: bool = False, bound: TensorBound | None = None
) -> Classifier | Segmenter:
    """Load the model in a folder, as its `contrafact.json` describes it; `segments` forces a segmenter.

    Raises InvalidInput if the model cannot be used. Its files are not trusted, so every error that a library raises
    while loading them is attributed to the model. Raises OutOfMemory for an ONNX model with a tensor beyond `bound`.
    """
    weights = Weights(path=folder, licence="", gigabytes=1)
    try:
        description = read_description(folder)
        segments = segments or description.kind == "segmentation"
        if (folder / ONNX_NAME).is_file():
            if bound is not None:
                refuse_large_tensors(folder, description, bound)
            return (OnnxSegmenter if segments else OnnxClassifier)(folder, description, device=device)
        kind = ImageSegmenter if segments else ImageClassifier
        return kind(weights, device=device, classes=description.classes)
    except ValidationError as error:
        raise InvalidInput(f"contrafact.json: {validation_sentence(error.errors())}") from error
    except torch.OutOfMemoryError as error:
        torch.cuda.empty_cache()
        raise OutOfMemory("the device has too little memory left for this model") from error
    except Problem:
        raise
    except Exception as error:
        raise InvalidInput(f"the model cannot be loaded: {_summary(error, folder)}") from error


def load_alias(model: ModelUnderTest, *, device: str) -> Classifier | Segmenter:
    """Load a model that the operator names: a folder, or a Hub id at its commit."""
    if model.path is not None:
        folder = Path(model.location, model.subfolder)
        if (folder / ONNX_NAME).is_file():
            return load_folder(folder, device=device, segments=model.kind == "segmentation")
        description = read_description(folder)
        kind = ImageSegmenter if "segmentation" in (model.kind, description.kind) else ImageClassifier
        return kind(model, device=device, classes=description.classes)
    return (ImageSegmenter if model.kind == "segmentation" else ImageClassifier)(model, device=device)


def try_out(model: Classifier | Segmenter, count: int = len(_LOOKS)) -> None:
    """Run a new model on `count` images of odd sizes. Raises InvalidInput if its outputs are not valid."""
    random = np.random.default_rng(0)
    sizes = islice(cycle(_LOOKS), count)
    pictures = [random.integers(0, 256, (*size, 3), dtype=np.uint8) for size in sizes]
    try:
        if isinstance(model, Segmenter):
            model.label_maps(pictures)
            return
        rows = model.probabilities(pictures)
    except NotFinite as problem:
        raise InvalidInput(problem.detail) from problem
    except Problem:
        raise
    except torch.OutOfMemoryError as error:
        torch.cuda.empty_cache()
        raise OutOfMemory("the device has too little memory left for this model") from error
    except Exception as error:
        raise InvalidInput(f"the model cannot be run on an image: {_summary(error, None)}") from error
    if not np.isfinite(rows).all():
        raise InvalidInput(NOT_FINITE)
    if not np.allclose(rows.sum(axis=1), 1, atol=1e-2) or rows.min() < -1e-6:
        raise InvalidInput('the outputs of the model are not probabilities; set "output": "logits"')


def _summary(error: Exception, folder: Path | None) -> str:
    """An error's message on one line, without the path of the model."""
    words = " ".join(str(error).split())
    if folder is not None:
        words = words.replace(str(folder), "the model")
    return f"{type(error).__name__}: {words[:MAX_DETAIL]}"
