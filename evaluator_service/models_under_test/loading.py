"""Load a folder as a model under test, and try a newly uploaded model before it is accepted."""

from __future__ import annotations

from itertools import cycle, islice
from pathlib import Path

import numpy as np
import torch
from pydantic import ValidationError

from evaluator_service.models_under_test.kinds import KINDS, LoadedModel
from evaluator_service.models_under_test.onnx_file import TensorBound, refuse_large_tensors
from evaluator_service.models_under_test.outputs import NOT_FINITE, finite
from shared.problems import InvalidInput, NotFinite, OutOfMemory, Problem, validation_sentence
from shared.profiles.evaluator import ModelUnderTest
from shared.profiles.weights import Weights
from shared.schemas.base import DEFAULT_KIND, Kind
from shared.schemas.models import ONNX_NAME, ModelDescription, read_description

MAX_DETAIL = 500
_LOOKS = ((75, 97), (64, 64))  # height × width of the images that a new model is tried on


def load_folder(
    folder: Path, *, device: str, kind: Kind = DEFAULT_KIND, bound: TensorBound | None = None
) -> LoadedModel:
    """Load the model in a folder, as its `contrafact.json` describes it; `kind` counts unless it is the default.

    Raises InvalidInput if the model cannot be used. Its files are not trusted, so every error that a library raises
    while loading them is attributed to the model. Raises OutOfMemory for an ONNX model with a tensor beyond `bound`.
    """
    weights = Weights(path=folder, licence="", gigabytes=1)
    try:
        description = read_description(folder)
        chosen = KINDS[_stated(kind, description)]
        if (folder / ONNX_NAME).is_file():
            if bound is not None:
                refuse_large_tensors(folder, description, bound)
            return chosen.from_onnx(folder, description, device=device)
        return chosen.from_hub(weights, device=device, classes=description.classes)
    except ValidationError as error:
        raise InvalidInput(f"contrafact.json: {validation_sentence(error.errors())}") from error
    except torch.OutOfMemoryError as error:
        torch.cuda.empty_cache()
        raise OutOfMemory("the device has too little memory left for this model") from error
    except Problem:
        raise
    except Exception as error:
        raise InvalidInput(f"the model cannot be loaded: {_summary(error, folder)}") from error


def load_alias(model: ModelUnderTest, *, device: str) -> LoadedModel:
    """Load a model that the operator names: a folder, or a Hub id at its commit."""
    if model.path is None:
        return KINDS[model.kind].from_hub(model, device=device)
    folder = Path(model.location, model.subfolder)
    if (folder / ONNX_NAME).is_file():
        return load_folder(folder, device=device, kind=model.kind)
    description = read_description(folder)
    return KINDS[_stated(model.kind, description)].from_hub(model, device=device, classes=description.classes)


def _stated(kind: Kind, description: ModelDescription) -> Kind:
    return description.kind if kind == DEFAULT_KIND else kind


def try_out(model: LoadedModel, count: int = len(_LOOKS)) -> None:
    """Run a new model on `count` images of odd sizes. Raises InvalidInput if its outputs are not valid."""
    random = np.random.default_rng(0)
    sizes = islice(cycle(_LOOKS), count)
    pictures = [random.integers(0, 256, (*size, 3), dtype=np.uint8) for size in sizes]
    try:
        answers = list(model.run(pictures))
        if any(isinstance(answer, NotFinite) for answer in finite(answers)):
            raise InvalidInput(NOT_FINITE)
        KINDS[model.kind].examine(model, pictures, answers)
    except NotFinite as problem:
        raise InvalidInput(problem.detail) from problem
    except Problem:
        raise
    except torch.OutOfMemoryError as error:
        torch.cuda.empty_cache()
        raise OutOfMemory("the device has too little memory left for this model") from error
    except Exception as error:
        raise InvalidInput(f"the model cannot be run on an image: {_summary(error, None)}") from error


def _summary(error: Exception, folder: Path | None) -> str:
    """An error's message on one line, without the path of the model."""
    words = " ".join(str(error).split())
    if folder is not None:
        words = words.replace(str(folder), "the model")
    return f"{type(error).__name__}: {words[:MAX_DETAIL]}"
