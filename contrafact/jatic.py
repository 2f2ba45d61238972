"""ONNX models with the metadata of JATIC_ONNX, version 1: a JSON file that says what the model reads and returns.

Such a model has one input `image` (FP32, NCHW, values from 0 to 1) and, for image classification, one output `scores`
(images × classes, probabilities). Source: the JATIC interoperability requirements, as the package checkmaite reads
them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from shared.problems import validation_sentence
from shared.schemas.base import Kind
from shared.schemas.models import ModelSpec, Preprocessing

DYNAMIC = -1
DESCRIBED_KIND: Kind = "classification"


class _Metadata(BaseModel):
    """A part of the metadata; keys that do not matter here are ignored."""

    model_config = ConfigDict(extra="ignore")


class _Interface(_Metadata):
    name: Literal["JATIC_ONNX"]
    version: Literal["v1"]


class _Input(_Metadata):
    channels: Literal["RGB"]
    height: int
    width: int


class _Output(_Metadata):
    classes: Annotated[int, Field(alias="nClasses", ge=2)]


class _Io(_Metadata):
    interface: Literal["IMAGE_CLASSIFICATION"]
    input: _Input
    output: _Output


class JaticMetadata(_Metadata):
    """The metadata of an image classifier. `index2label` is no part of JATIC_ONNX, but its readers put it there."""

    interface: _Interface
    io: _Io
    index2label: Annotated[dict[int, str], Field(default_factory=dict)]


def jatic_spec(
    metadata: Path, name: str, *, classes: list[str] | None = None, side: tuple[int, int] | None = None
) -> ModelSpec:
    """The spec with which a JATIC_ONNX classifier is uploaded.

    `classes` replaces the names of `index2label`, `side` (height, width) the size of the input. Raises ValueError if
    the metadata is that of no such classifier, or lacks names or sizes.
    """
    try:
        described = JaticMetadata.model_validate_json(metadata.read_bytes())
    except ValidationError as error:
        raise ValueError(
            f"{metadata} describes no JATIC_ONNX classifier: {validation_sentence(error.errors())}"
        ) from error
    count, labels = described.io.output.classes, described.index2label
    names = classes or [labels[index] for index in range(count) if index in labels]
    if len(names) != count:
        raise ValueError(f"{metadata} names {len(names)} of {count} outputs; give `classes`, in their order")
    height, width = side or (described.io.input.height, described.io.input.width)
    if DYNAMIC in (height, width):
        raise ValueError(f"{metadata} leaves the size of the input open; give `input_size`, or `preprocessing`")
    preprocessing = Preprocessing(height=height, width=width)
    return ModelSpec(name=name, classes=names, output="probabilities", preprocessing=preprocessing)


def jatic_metadata_beside(model: Path) -> Path | None:
    """The JSON file in the model's folder that is its JATIC_ONNX metadata. Raises ValueError if there are several."""
    settings_file = model.with_suffix(".json")
    candidates = (
        [settings_file]
        if settings_file.is_file() and _is_metadata(settings_file)
        else list(filter(_is_metadata, sorted(model.parent.glob("*.json"))))
    )
    if len(candidates) > 1:
        listed = ", ".join(path.name for path in candidates)
        raise ValueError(f"{listed} are all JATIC_ONNX metadata; name that of {model.name} {settings_file.name}")
    return candidates[0] if candidates else None


class _Named(_Metadata):
    name: str


class _AnyMetadata(_Metadata):
    interface: _Named


def _is_metadata(path: Path) -> bool:
    try:
        return _AnyMetadata.model_validate_json(path.read_bytes()).interface.name == "JATIC_ONNX"
    except ValidationError:
        return False
