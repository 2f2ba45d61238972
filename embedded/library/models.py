"""The caller's model as a model under test: an object of this process, an upload, or a model of the profile.

Files and Hub ids are uploaded as every user's are. Functions, modules, pipelines and MAITE models cannot travel as
safetensors or ONNX; the evaluator of this process calls them.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import transformers
from huggingface_hub import snapshot_download
from numpy.typing import ArrayLike, NDArray
from PIL import Image

from contrafact.arrays import as_array, channels_first_like
from contrafact.jatic import DESCRIBED_KIND, jatic_metadata_beside, jatic_spec
from contrafact.testing import InProcessOptions
from embedded.library.datasets import ImageSet, index_names, is_maite
from embedded.library.images import first_pixels
from evaluator_service.models_under_test.hub import names_by_index, own_names
from evaluator_service.models_under_test.in_process import InProcessModel
from evaluator_service.models_under_test.kinds.classification import CLASSIFICATION, refuse_other_rows
from evaluator_service.models_under_test.outputs import (
    NamedOutputs,
    output_of,
    refuse_dependence,
    refuse_other_order,
    softmax,
)
from shared.media.images import Pixels
from shared.problems import InvalidInput
from shared.schemas.models import CONFIG_NAME, INDEX_NAME, PROCESSOR_NAME, ModelSpec, Output, is_model_file

HUB_ID = re.compile(r"(?P<id>[\w.-]+/[\w.-]+)(@(?P<revision>[\w.-]+))?")
Outputs = Callable[[Sequence[Pixels]], object]


@dataclass(frozen=True)
class Upload:
    """A model to upload: its spec and its files."""

    spec: ModelSpec
    files: list[Path]


@dataclass(frozen=True)
class Alias:
    """A model under test of the profile, by name."""

    name: str


def prepare_model(model: object, images: ImageSet, options: InProcessOptions) -> InProcessModel | Upload | Alias:
    """How the caller's model is tested. Raises ValueError for an object that is no model, or lacks class names."""
    if isinstance(model, str | Path):
        return model_from_text(model, options)
    if isinstance(model, transformers.Pipeline):
        own = own_names(model.model.config)
        names = _class_names(options, own, own)
        return _in_process(names, _pipeline(model, own, names))
    if is_maite(model) and callable(model):
        names = _class_names(options, index_names(model) or images.classes, index_names(model))
        outputs = maite_outputs(model, images.read(0).image, as_array)
        return _in_process(names, _rows(outputs, names, options.output or "probabilities"))
    if isinstance(model, transformers.PreTrainedModel):
        own = own_names(model.config)
        names = _class_names(options, own, own)
        outputs = _module(model, options.preprocess or _own_processor(model))
        return _in_process(names, _rows(outputs, names, _output_of_module(outputs, images, options.output)))
    if isinstance(model, torch.nn.Module):
        names = _class_names(options, images.classes)
        outputs = _module(model, options.preprocess)
        return _in_process(names, _rows(outputs, names, _output_of_module(outputs, images, options.output)))
    if not callable(model):
        raise ValueError(f"a {type(model).__name__} is no model; give a function, a module, a path or a name")
    names = _class_names(options, images.classes)
    return _in_process(names, _rows(_function(model, options.inputs), names, options.output or "probabilities"))


def own_classes(model: object) -> list[str]:
    """The classes that a model itself names, as far as it does before it is loaded."""
    if isinstance(model, transformers.Pipeline):
        model = model.model
    if isinstance(model, transformers.PreTrainedModel):
        return own_names(model.config)
    if is_maite(model):
        return index_names(model) or []
    if not isinstance(model, str | Path):
        return []
    path = Path(model)
    if isinstance(model, str) and not path.exists() and HUB_ID.fullmatch(model):
        path = fetched_folder(model)
    config = path / CONFIG_NAME
    named = json.loads(config.read_bytes()).get("id2label") if config.is_file() else None
    return names_by_index(named) if named else []


def model_from_text(model: str | Path, options: InProcessOptions) -> Upload | Alias:
    """A file, a folder, a Hub id or an alias."""
    path = Path(model)
    classes = None if options.classes is None else list(options.classes)
    named = {} if classes is None else {"classes": classes}
    spec = ModelSpec.model_validate({"name": options.name, "kind": options.kind, **named})
    if path.is_dir():
        return Upload(spec, sorted(file for file in path.iterdir() if is_model_file(file.name)))
    if path.is_file():
        described = options.preprocessing is not None or options.kind != DESCRIBED_KIND
        metadata = None if described else jatic_metadata_beside(path)
        if metadata is not None:
            return Upload(jatic_spec(metadata, options.name, classes=classes, side=options.input_size), [path])
        fields = {"output": options.output, "preprocessing": options.preprocessing}
        return Upload(spec.model_copy(update=fields), [path])
    if isinstance(model, Path) or path.suffix == ".onnx":
        raise ValueError(f"there is no model at {model}")
    if HUB_ID.fullmatch(model):
        return model_from_text(fetched_folder(model), options)
    return Alias(model)


def fetched_folder(hub_id: str) -> Path:
    """The folder of a Hub model, `org/name` or `org/name@revision`, with the files that an upload may have."""
    hub = HUB_ID.fullmatch(hub_id)
    assert hub is not None
    patterns = [CONFIG_NAME, PROCESSOR_NAME, INDEX_NAME, "model*.safetensors"]
    return Path(snapshot_download(hub["id"], revision=hub["revision"], allow_patterns=patterns))


def _in_process(names: list[str], predict: Callable[[Sequence[Pixels]], NDArray[np.float64]]) -> InProcessModel:
    """The classifier under a revision of its own: its weights may change from call to call, so no prediction is reused.

    `names` are those of the outputs of `predict`; outputs of one name are one class.
    """
    outputs = NamedOutputs(len(names), None, names)

    def rows(images: Sequence[Pixels]) -> NDArray[np.float64]:
        merged = np.array(outputs.merge(predict(images)), np.float64)  # a copy: the caller's code may reuse its array
        refuse_other_rows(merged, len(images), len(outputs.classes))
        return merged

    return InProcessModel(CLASSIFICATION.name, outputs.classes, rows, revision=uuid.uuid4().hex)


def _class_names(
    options: InProcessOptions, known_names: Sequence[str] | None, own: Sequence[str] | None = None
) -> list[str]:
    """The names of the model's outputs; `own`: those that it has itself, which `classes` may only rename."""
    refuse_other_order(own, options.classes, "correct the model's id2label")
    names = list(options.classes or known_names or ())
    if len(names) < 2:
        raise ValueError("the classes of the model are unknown; give `classes`, in the order of its outputs")
    return names


def _own_processor(model: transformers.PreTrainedModel) -> Callable[..., Any]:
    """The image processor beside the model's weights. Raises ValueError if there is none."""
    try:
        processor: Callable[..., Any] = transformers.AutoImageProcessor.from_pretrained(model.name_or_path)
    except (OSError, ValueError) as error:
        place = f"at {model.name_or_path}" if model.name_or_path else "since it was not loaded from anywhere"
        raise ValueError(f"the model has no image processor {place}; give `preprocess`") from error
    return processor


def _pipeline(
    pipeline: Any, own: Sequence[str], names: Sequence[str]
) -> Callable[[Sequence[Pixels]], NDArray[np.float64]]:
    """The probabilities of a pipeline's outputs. Its answers carry its `own` names; the test calls them `names`.

    Raises ValueError if `names` tell outputs apart that have one name in the answers.
    """
    place = {name: index for index, name in enumerate(own)}
    for name, new in zip(own, names, strict=False):
        if names[place[name]] != new:
            raise ValueError(
                f"the pipeline calls two outputs {name!r}, so `classes` cannot tell them apart; test `pipeline.model` "
                "with preprocess=pipeline.image_processor"
            )

    def predict(images: Sequence[Pixels]) -> NDArray[np.float64]:
        rows = np.zeros((len(images), len(own)))
        answers = pipeline([Image.fromarray(image) for image in images], top_k=len(own))
        for row, answer in zip(rows, answers, strict=True):
            for entry in answer:
                row[place[entry["label"]]] += entry["score"]  # several outputs may have one name
        return rows

    return predict


def _module(module: torch.nn.Module, preprocess: Callable[..., Any] | None) -> Outputs:
    """The outputs of a module. Without `preprocess` it gets images as they are, as floats from 0 to 1."""
    processor = isinstance(preprocess, transformers.BaseImageProcessor | transformers.ProcessorMixin)

    def outputs(images: Sequence[Pixels]) -> object:
        parameter = next(module.parameters(), torch.zeros(()))
        pictures = [Image.fromarray(image) for image in images]
        with evaluation_mode(module):
            if processor:
                assert preprocess is not None
                features = preprocess(images=pictures, return_tensors="pt")
                answer = module(**features.to(parameter.device, parameter.dtype))
            else:
                tensors = [(preprocess or _unit_tensor)(picture) for picture in pictures]
                if len({tensor.shape for tensor in tensors}) > 1:
                    raise ValueError("the images differ in size; give `preprocess`, which resizes them")
                answer = module(torch.stack(tensors).to(parameter.device, parameter.dtype))
        return getattr(answer, "logits", answer)

    return outputs


def _output_of_module(outputs: Outputs, images: ImageSet, declared: Output | None) -> Output:
    """What a module returns, by its answers to variants of the first usable image. Raises as `output_of` does."""
    pixels = first_pixels(images)
    answers = _readable(outputs([pixels, 255 - pixels, pixels // 2, np.ascontiguousarray(pixels[::-1])]))
    return output_of(answers.astype(np.float64), declared, "") if answers.ndim == 2 else declared or "logits"


@contextmanager
def evaluation_mode(module: torch.nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients inside the block; restores the mode of every submodule afterwards."""
    modes = [(part, part.training) for part in module.modules()]  # a frozen BatchNorm is in another than its parent
    module.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        for part, training in modes:
            part.training = training


def _unit_tensor(picture: Image.Image) -> torch.Tensor:
    return torch.from_numpy(np.asarray(picture).copy()).permute(2, 0, 1).float() / 255


def maite_outputs(model: Callable[..., Any], image: object, read: Callable[[Any], object]) -> Outputs:
    """What `read` makes of the answer to each image of a MAITE model.

    It gets what its data set has, such as `image`, or arrays of uint8 for files.
    """
    like = np.empty(0, np.uint8) if isinstance(image, str | Path | bytes | Image.Image) else cast(ArrayLike, image)

    def outputs(images: Sequence[Pixels]) -> object:
        batch = [channels_first_like(like, image) for image in images]
        with evaluation_mode(model) if isinstance(model, torch.nn.Module) else nullcontext():
            return [read(row) for row in model(batch)]

    return outputs


def _function(function: Callable[..., Any], inputs: str) -> Outputs:
    """What a function of images returns. It gets copies, which it may change."""

    def outputs(images: Sequence[Pixels]) -> object:
        return function([Image.fromarray(image) if inputs == "pil" else image.copy() for image in images])

    return outputs


def _rows(outputs: Outputs, classes: list[str], output: Output) -> Callable[[Sequence[Pixels]], NDArray[np.float64]]:
    """Probabilities from what a model returns: rows of probabilities or logits, or one label per image."""

    def predict(images: Sequence[Pixels]) -> NDArray[np.float64]:
        answer = _readable(outputs(images))
        if answer.ndim == 1:
            return _one_hot(answer, classes)
        rows = answer.astype(np.float64)
        return softmax(rows) if output == "logits" and rows.ndim == 2 and len(rows) else rows

    return predict


def _readable(answer: object) -> NDArray[np.generic]:
    """A model's answer as an array of numbers, or of one label per image. Raises InvalidInput for anything else."""
    try:
        array = as_array(answer)
    except (TypeError, ValueError, RuntimeError):  # rows of several lengths
        array = None
    if array is None or array.ndim == 0 or (array.ndim > 1 and array.dtype.kind not in "biuf"):
        keys = f" of {', '.join(map(repr, list(answer)[:5]))}" if isinstance(answer, Mapping) else ""
        raise InvalidInput(
            f"the model returned a {type(answer).__name__}{keys} that is no array; return images × classes (such as "
            "`lambda images: model(images)[0]`), or one label per image"
        )
    return array


def _one_hot(labels: NDArray[np.generic], classes: list[str]) -> NDArray[np.float64]:
    """Probability 1 of each image's label, a name or an index. Raises InvalidInput for a label that is no class."""
    if labels.dtype.kind == "f":
        raise InvalidInput(
            "the model returned one number for each image; return one for each class, for a probability p for example "
            "1 − p and p, or one label per image"
        )
    place = {name: index for index, name in enumerate(classes)}
    integers = np.issubdtype(labels.dtype, np.integer)
    indices = [int(label) if integers else place.get(str(label), -1) for label in labels]
    if unknown := [str(label) for label, index in zip(labels, indices, strict=True) if not 0 <= index < len(classes)]:
        raise InvalidInput(f"the model returned the label {unknown[0]!r}; its classes are {', '.join(classes[:20])}")
    return np.eye(len(classes))[indices]


def try_classifier(model: InProcessModel, first: Pixels) -> None:
    """Predict an image alone and beside another. Raises what the model raises, and InvalidInput if they differ."""
    alone, together = model.predict([first]), model.predict([first, 255 - first])
    refuse_dependence(np.asarray(alone[0]), np.asarray(together[0]))
