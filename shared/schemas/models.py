"""Uploaded models under test: the contract of `POST /models`, and the description stored with the weights.

A model is a folder, in Hub layout (`config.json`, `preprocessor_config.json`, safetensors) or with one `model.onnx`.
Anything these files do not say is in `contrafact.json` beside them (docs/how-to/models-under-test.md): the gateway
writes it for uploads, an operator by hand.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, JsonValue, model_validator

from shared.characters import refuse_deceptive
from shared.schemas.base import KIND, Contract, Kind
from shared.schemas.jobs import MAX_CLASSES
from shared.schemas.masks import Label

DESCRIPTION_NAME = "contrafact.json"
ONNX_NAME = "model.onnx"
CONFIG_NAME = "config.json"
PROCESSOR_NAME = "preprocessor_config.json"
SAFETENSORS = re.compile(r"model(-\d{5}-of-\d{5})?\.safetensors")
INDEX_NAME = "model.safetensors.index.json"
JSON_NAMES = frozenset({DESCRIPTION_NAME, CONFIG_NAME, PROCESSOR_NAME, INDEX_NAME})


def names_in_order(value: JsonValue) -> JsonValue:
    """The names of the Hub's `id2label` (index → name) in their order; anything else as it is.

    Raises ValueError if indices are skipped.
    """
    if not isinstance(value, dict) or not value or not all(map(str.isdecimal, value)):
        return value
    if not all(isinstance(name, str) for name in value.values()):
        return value
    by_index = {int(index): name for index, name in value.items()}
    if missing := [index for index in range(len(by_index)) if index not in by_index]:
        raise ValueError(f"the index {missing[0]} has no name; name every output from 0 on")
    return [by_index[index] for index in range(len(by_index))]


Index = Annotated[int, Field(ge=0, lt=MAX_CLASSES)]
Side = Annotated[int, Field(ge=1, le=4_096, description="pixels")]
Output = Literal["logits", "probabilities", "detr", "rt-detr", "yolo", "end-to-end", "torchvision", "jatic"]
Triple = tuple[float, float, float]
Text = Annotated[str, AfterValidator(refuse_deceptive)]
NAME_PATTERN = "^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$"
ModelName = Annotated[
    str,
    Field(
        pattern=NAME_PATTERN,
        description="its name in jobs: letters, digits, `.`, `_`, `-`; up to 100 of them",
    ),
]
ClassNames = Annotated[
    list[Label] | dict[Label, Index | Annotated[list[Index], Field(min_length=1, max_length=MAX_CLASSES)]],
    Field(
        min_length=1,
        max_length=MAX_CLASSES,
        description="your names of the model's outputs: a list in their order, index → class, or class → index (or "
        "indices, whose probabilities are added); outputs that are not named keep the model's own names",
    ),
    BeforeValidator(names_in_order),
]


def is_model_file(name: str) -> bool:
    """Whether a model under test may have a file of this name."""
    return name in JSON_NAMES or name == ONNX_NAME or SAFETENSORS.fullmatch(name) is not None


class Preprocessing(Contract):
    """How an image becomes an ONNX model's input: resize, crop, then `(pixel · scale − mean) / std` per channel.

    `stretch` resizes to `height` × `width`; `crop` resizes the shorter side to `shortest_edge` (default: the larger of
    height and width) and cuts `height` × `width` out of the middle. `letterbox` fits the image into `height` × `width`
    in the middle, `letterbox-corner` in the left upper corner; the rest has the grey value `pad`. `mean` and `std` are
    in the order of `channels`; a model with one channel gets the `grey` image, and its mean and std three times.
    """

    height: Side
    width: Side
    fit: Literal["stretch", "crop", "letterbox", "letterbox-corner"] = "stretch"
    shortest_edge: Side | None = None
    pad: Annotated[int, Field(ge=0, le=255)] = 114
    resample: Literal["nearest", "bilinear", "bicubic", "lanczos"] = "bilinear"
    scale: Annotated[float, Field(gt=0, le=255, allow_inf_nan=False)] = 1 / 255
    mean: Annotated[Triple, Field(description="each from -1000 to 1000")] = (0.0, 0.0, 0.0)
    std: Annotated[Triple, Field(description="each above 0")] = (1.0, 1.0, 1.0)
    channels: Literal["rgb", "bgr", "grey"] = "rgb"
    layout: Literal["nchw", "nhwc"] = "nchw"

    @model_validator(mode="after")
    def _makes_sense(self) -> Self:
        if self.fit != "crop" and self.shortest_edge is not None:
            raise ValueError('shortest_edge belongs to "fit": "crop"; leave it out, or set fit')
        if self.shortest_edge is not None and self.shortest_edge < max(self.height, self.width):
            raise ValueError("shortest_edge is smaller than the cut; make it at least as large as height and width")
        if not all(-1000 <= value <= 1000 for value in self.mean):
            raise ValueError("mean must be three numbers from -1000 to 1000")
        if not all(1e-6 <= value <= 1000 for value in self.std):
            raise ValueError("std must be three numbers from 0.000001 to 1000")
        if self.channels == "grey" and (len(set(self.mean)) > 1 or len(set(self.std)) > 1):
            raise ValueError("a grey image has one mean and one std; give each three times")
        return self


class ModelDescription(Contract):
    """`contrafact.json`: what a model's own files do not say. Every field has a default."""

    kind: Annotated[Kind, Field(validation_alias=KIND, description="what the model does")] = "classification"
    classes: ClassNames | None = None
    output: Annotated[
        Output | None,
        Field(
            description="the output of an ONNX classifier, logits or probabilities; default: probabilities if it ends "
            "in Softmax or its outputs for several images sum to 1, else logits. Of an ONNX detector the layout of its "
            "outputs (docs/how-to/models-under-test.md); default: by their names and shapes. Hub models need none"
        ),
    ] = None
    preprocessing: Annotated[
        Preprocessing | None, Field(description="required for an ONNX model without preprocessor_config.json")
    ] = None


class ModelSpec(ModelDescription):
    """The `spec` part of `POST /models`. Only `name` is required."""

    name: ModelName
    licence: Annotated[Text, Field(max_length=200)] = ""
    description: Annotated[Text, Field(max_length=1_000)] = ""

    def over(self, beside: ModelDescription) -> ModelDescription:
        """Merge this spec over the description in the model's folder."""
        explicit = {name: getattr(self, name) for name in self.model_fields_set & set(ModelDescription.model_fields)}
        return beside.model_copy(update=explicit)


class AddedModels(Contract):
    """`POST /jobs/{id}/models`: further models under test for a finished job."""

    models: Annotated[list[Annotated[str, Field(min_length=1, max_length=200)]], Field(min_length=1, max_length=20)]


def read_description(folder: Path) -> ModelDescription:
    """Read the description in a model's folder, or return the default one. Raises pydantic's ValidationError."""
    path = folder / DESCRIPTION_NAME
    return ModelDescription.model_validate_json(path.read_bytes()) if path.is_file() else ModelDescription()
