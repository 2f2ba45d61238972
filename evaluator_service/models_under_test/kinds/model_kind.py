"""The value that says what is particular to a kind of model under test: how to load, try and run it, and its reply."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from evaluator_service.models_under_test.question import AskedModel
from evaluator_service.models_under_test.trainable import Trainable
from shared.media.images import Pixels
from shared.schemas.base import Contract, Kind
from shared.schemas.models import ModelDescription
from shared.service.endpoints import Endpoint

Answer = NDArray[Any]  # a model's output for one image
Answers = Answer | Sequence[Answer]  # of several images, an array of them or one for each
ReadArray = Callable[[Sequence[int], type[np.generic]], Answer]
Reply = TypeVar("Reply", bound=Contract)


class LoadedModel(Protocol):
    """A model under test in this process."""

    classes: list[str]

    @property
    def kind(self) -> Kind:
        """What it does."""

    def run(self, images: Sequence[Pixels]) -> Answers:
        """One answer for each RGB image (height × width × 3, of any sizes)."""


@dataclass(frozen=True, slots=True)
class ModelKind(Generic[Reply]):
    """Everything about a kind that is not about all kinds.

    `noun` names such a model in sentences. `endpoint` is where its predictions are asked for, `reply` what it answers,
    given the classes and an answer per image.

    A model is loaded from weights in Hub layout by `from_hub(weights, device=, classes=)`, from an ONNX file by
    `from_onnx(folder, description, device=)`. `examine(model, images, answers)` tries a new one: it raises InvalidInput
    for answers that no sound model gives. A model has `least_classes` or more.

    A server answers some images (PNG) with up to `most_bytes(images, classes)` of JSON, which `parse(body, images,
    classes)` reads; it raises ValueError with what is wrong. `from_tensors(tensors, images, description)` reads the
    outputs of a server of tensors by their names, and raises ValueError and InvalidInput. `receive(images, classes,
    read)` reads the answers of an uploaded model from its process, which sends them one after another: their shapes
    follow from the images and the number of classes. It raises ValueError for answers that are not those of this kind.
    `trainable`: such a model for repairs; `question`: a vision-language model as such a model. None if there are none.
    `ask`: the reply of a function of the calling process that answers questions, given a request.
    """

    name: Kind
    noun: str
    endpoint: Endpoint[Any, Reply]
    from_hub: Callable[..., LoadedModel]
    from_onnx: Callable[..., LoadedModel]
    examine: Callable[[LoadedModel, Sequence[Pixels], Sequence[Answer]], None]
    most_bytes: Callable[[Sequence[bytes], int], int]
    parse: Callable[[bytes, Sequence[bytes], Sequence[str]], list[Answer]]
    from_tensors: Callable[[Mapping[str, Answer], Sequence[Pixels], ModelDescription], list[Answer]]
    receive: Callable[[Sequence[Pixels], int, ReadArray], list[Answer]]
    reply: Callable[[list[str], Sequence[Answer]], Reply]
    trainable: type[Trainable] | None
    question: type[AskedModel] | None = None
    least_classes: int = 2
    ask: Callable[[Any, Any], Reply] | None = None
