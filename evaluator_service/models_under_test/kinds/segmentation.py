"""Semantic segmenters: a class for each pixel. An answer is a label map at the image's own size, one byte per pixel.

In Hub layout they are transformers' (SegFormer, UperNet, ...). A server answers `{"maps": ["<base64 of a PNG>", ...]}`,
a grey or palette PNG of each image's size, or `{"maps": [[[0, 2, ...], ...], ...]}`, rows of integers; values are
indices into its classes. A PNG is decoded only if its header has its image's size.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from pydantic import BaseModel, ValidationError
from torch import Tensor
from torch.nn.functional import interpolate
from transformers import AutoModelForSemanticSegmentation

from evaluator_service.models_under_test.hub import load_hub_model, own_names
from evaluator_service.models_under_test.kinds.model_kind import Answer, LoadedModel, ModelKind, ReadArray
from evaluator_service.models_under_test.onnx_file import OnnxFile, output_name, trial_images
from evaluator_service.models_under_test.outputs import NOT_FINITE, ClassNames, NamedOutputs, refuse_dependence
from evaluator_service.models_under_test.preprocessing import processors
from evaluator_service.models_under_test.trainable import IGNORED, Opener, Trainable, TrainingExample, opened_chunks
from shared.chunks import chunks
from shared.media.images import Pixels, decode, encode, png_header
from shared.media.label_maps import class_indices, confusion, named_overlaps, pack_counts
from shared.problems import DependencyFailed, InvalidInput, NotFinite, Problem
from shared.profiles.weights import Weights
from shared.schemas.base import ImagePayload, Kind
from shared.schemas.evaluation import SegmentReply
from shared.schemas.models import ModelDescription
from shared.schemas.repairs import Judgement
from shared.schemas.scores import with_mean
from shared.service.endpoints import Services

MAX_CLASSES = 255  # a class index is one byte
OUTPUTS_AT_ONCE = 16
_HEAD_BYTES = 64 * 1024
_PIXEL_BYTES = 8  # "255, " and a margin
_GREY, _PALETTE = 0, 3


class ImageSegmenter:
    """A segmenter under test, with its own preprocessing."""

    kind: ClassVar[Kind] = "segmentation"

    def __init__(self, weights: Weights, *, device: str, classes: ClassNames | None = None) -> None:
        """Load weights and preprocessing; see `ImageClassifier`. Outputs of one name are one class."""
        self._model = load_hub_model(AutoModelForSemanticSegmentation, weights).to(device).eval()
        at = (weights.location, weights.subfolder, weights.hub_revision)
        channels = getattr(self._model.config, "num_channels", None)
        self._prepare = processors(*at, whole=True, channels=channels)
        names = own_names(self._model.config)
        self._outputs = NamedOutputs(len(names), names, classes)
        self.classes = self._outputs.classes
        _refuse_many(len(names))

    @torch.inference_mode()
    def run(self, images: Sequence[Pixels]) -> list[NDArray[np.uint8]]:
        """Per image (height × width × 3) the index in `classes` of every pixel, height × width.

        Logits are resized bilinearly to the image's size before the argmax, as transformers' own post-processing does.
        Raises NotFinite if one of them is NaN or infinite.
        """
        pixel_values = torch.from_numpy(self._prepare(images))
        logits = self._model(pixel_values.to(self._model.device, self._model.dtype)).logits.float()
        return _label_maps(logits, images, self._outputs.index_map())


class OnnxSegmenter:
    """An ONNX segmenter under test: logits (or probabilities) of each class, over the image at any resolution."""

    kind: ClassVar[Kind] = "segmentation"

    def __init__(self, folder: Path, description: ModelDescription, *, device: str) -> None:
        """As `OnnxClassifier`; preprocessing that crops is refused."""
        self._file = OnnxFile(folder, description, ("pictures", "classes", "height", "width"), device, whole=True)
        outputs = self._file.sample.shape[1]
        _refuse_many(outputs)
        refuse_dependence(self._file.sample[0], self._file.rows(trial_images()[:2])[0])
        self._outputs = NamedOutputs(outputs, self._file.names(), description.classes)
        self.classes = self._outputs.classes

    def run(self, images: Sequence[Pixels]) -> list[NDArray[np.uint8]]:
        """Per image (height × width × 3) the index in `classes` of every pixel; see `ImageSegmenter.run`."""
        logits = torch.from_numpy(self._file.rows(images)).float()
        return _label_maps(logits, images, self._outputs.index_map())


def _refuse_many(outputs: int) -> None:
    if outputs > MAX_CLASSES:
        raise InvalidInput(f"the segmenter has {outputs} classes; at most {MAX_CLASSES} are supported")


def _label_maps(logits: Tensor, images: Sequence[Pixels], columns: NDArray[np.int64]) -> list[NDArray[np.uint8]]:
    """The class of every pixel of each image, from logits (images × outputs × h × w); `columns`: output → class.

    Raises NotFinite if a logit is NaN or infinite.
    """
    if not torch.isfinite(logits).all():
        raise NotFinite(NOT_FINITE)
    return [label_map(rows, image.shape[:2], columns) for image, rows in zip(images, logits, strict=True)]


def label_map(logits: Tensor, size: Sequence[int], columns: NDArray[np.int64]) -> NDArray[np.uint8]:
    """The class of every pixel at `size` (height, width) from logits (outputs × h × w); `columns`: output → class.

    A few outputs are resized at a time: 150 of them at 2,048 × 2,048 pixels are 2.5 GB.
    """
    first, *others = chunks(logits, OUTPUTS_AT_ONCE)
    best, winner = _largest(first, size)
    for number, outputs in enumerate(others, 1):
        values, places = _largest(outputs, size)
        winner = torch.where(values > best, places + number * OUTPUTS_AT_ONCE, winner)
        best = torch.maximum(values, best)
    classes: NDArray[np.int64] = columns[winner.cpu().numpy()]
    return classes.astype(np.uint8)


def _largest(logits: Tensor, size: Sequence[int]) -> tuple[Tensor, Tensor]:
    """The largest logit of every pixel at `size`, and the index of its output."""
    resized = interpolate(logits[None], size=tuple(size), mode="bilinear", align_corners=False)[0]
    values, places = resized.max(dim=0)
    return values, places


class TrainableSegmenter(Trainable):
    """A segmenter, evaluated pixel by pixel on the map that it returns as a model under test."""

    kind = "segmentation"
    network = AutoModelForSemanticSegmentation

    def __init__(self, weights: Weights, classes: Sequence[str], *, device: str) -> None:
        """See `Trainable`."""
        super().__init__(weights, classes, device=device)
        self._targets = np.full(256, IGNORED, np.int64)
        self._targets[: len(classes)] = [self._index[name] for name in classes]
        self._places = class_indices(self._outputs.classes, classes)
        self._size: tuple[int, ...] | None = None

    def inputs(self, example: TrainingExample) -> dict[str, Any]:
        """`labels` are class indices at the size of `pixel_values` (nearest), -100 where the mask is void.

        Raises InvalidInput for preprocessing that keeps sizes that differ.
        """
        values = torch.from_numpy(self._prepare([example.image])[0])
        height, width = values.shape[1:]
        self._size = self._size or (height, width)
        if self._size != (height, width):
            raise InvalidInput("the image processor keeps sizes that differ; give it a size, so that images can batch")
        mask = Image.fromarray(_mask(example)).resize((width, height), Image.Resampling.NEAREST)
        return {"pixel_values": values, "labels": torch.from_numpy(self._targets[np.asarray(mask)])}

    @torch.inference_mode()
    def judge(self, openers: Sequence[Opener]) -> Judgement:
        """IoU of each class of an image, and confusion of its pixels, at its own size."""
        self.model.eval()
        columns, counts, scores = self._outputs.index_map(), [], []
        for examples in opened_chunks(openers):
            logits = self._logits([example.image for example in examples]).float()
            for example, rows in zip(examples, logits, strict=True):
                mask = _mask(example)
                predicted = self._places[label_map(rows, mask.shape, columns)]
                of_image = confusion(mask, predicted, len(self._classes))
                counts.append(pack_counts(of_image))
                scores.append(with_mean(named_overlaps(of_image, self._classes)))
        return Judgement(scores=scores, confusion=counts)


def _mask(example: TrainingExample) -> Pixels:
    if example.mask is None:
        raise InvalidInput("an image of a segmentation job has no mask")
    return example.mask


def _examine(model: LoadedModel, images: Sequence[Pixels], answers: Sequence[Answer]) -> None:
    """A map that `run` made has the image's size and known classes."""


class _Maps(BaseModel):
    maps: list[str | list[list[int]]]


def _most_bytes(images: Sequence[bytes], classes: int) -> int:
    return _HEAD_BYTES + _PIXEL_BYTES * sum(height * width for height, width in map(_size, images))


def _size(image: bytes) -> tuple[int, int]:
    """Height and width from a PNG's header."""
    header = png_header(image)
    if header is None:
        raise DependencyFailed("an image that is not a PNG cannot be sent to a segmenter")
    return header.height, header.width


def _parse(body: bytes, images: Sequence[bytes], classes: Sequence[str]) -> list[Answer]:
    try:
        maps = _Maps.model_validate_json(body).maps
    except ValidationError as error:
        raise ValueError('did not return {"maps": [...]} of base64 PNGs, or of rows of integers') from error
    if len(maps) != len(images):
        raise ValueError(f"returned {len(maps)} maps for {len(images)} images; it must return one map per image")
    return [_parse_map(encoded, *_size(image), len(classes)) for encoded, image in zip(maps, images, strict=True)]


def _parse_map(encoded: str | list[list[int]], height: int, width: int, classes: int) -> Pixels:
    try:
        pixels = _decode(encoded, height, width) if isinstance(encoded, str) else np.array(encoded)
    except (ValueError, Problem) as error:
        raise ValueError(f"returned a map that cannot be read: {error}") from error
    if pixels.shape != (height, width) or pixels.dtype.kind not in "iu":
        raise ValueError(f"returned a map of shape {pixels.shape}; the image has {height} rows of {width} pixels")
    if pixels.min() < 0 or pixels.max() >= classes:
        raise ValueError(
            f"returned values from {pixels.min()} to {pixels.max()}; the indices of its {classes} classes are 0 to "
            f"{classes - 1}"
        )
    return pixels.astype(np.uint8)


def _decode(text: str, height: int, width: int) -> Pixels:
    """The pixel values of a PNG. Raises ValueError, and what `decode` raises."""
    data = base64.b64decode(text, validate=True)
    header = png_header(data)
    if header is None or (header.bits != 8 and header.colour_type == _GREY):
        raise ValueError("it must be base64 of a grey PNG of 8 bits, or of a palette PNG")
    if header.colour_type not in (_GREY, _PALETTE):
        raise ValueError("it is in colour; it must be a grey or palette PNG of class indices")
    if (header.height, header.width) != (height, width):
        raise ValueError(f"it has {header.width}×{header.height} pixels, the image {width}×{height}")
    return decode(data, "L")


def _from_tensors(
    tensors: Mapping[str, Answer], images: Sequence[Pixels], description: ModelDescription
) -> list[Answer]:
    logits = tensors[output_name(tensors)]
    classes = len(description.classes or [])
    if logits.ndim != 4 or logits.shape[:2] != (len(images), classes):
        raise ValueError(f"returned shape {logits.shape}; it must be {len(images)} × {classes} × height × width")
    if description.preprocessing is not None and description.preprocessing.fit != "stretch":
        raise ValueError('needs the whole image; set fit = "stretch" in its preprocessing')
    return [*_label_maps(torch.from_numpy(logits.astype(np.float32)), images, np.arange(classes))]


def _receive(images: Sequence[Pixels], classes: int, read: ReadArray) -> list[Answer]:
    maps = [read(image.shape[:2], np.uint8) for image in images]
    if any(int(array.max(initial=0)) >= classes for array in maps):
        raise ValueError("a label map with unknown classes")
    return maps


def _reply(classes: list[str], answers: Sequence[Answer]) -> SegmentReply:
    return SegmentReply(classes=classes, maps=[ImagePayload(png=encode(answer)) for answer in answers])


SEGMENTATION = ModelKind(
    name="segmentation",
    noun="segmenter",
    endpoint=Services.segment,
    from_hub=ImageSegmenter,
    from_onnx=OnnxSegmenter,
    examine=_examine,
    most_bytes=_most_bytes,
    parse=_parse,
    from_tensors=_from_tensors,
    receive=_receive,
    reply=_reply,
    trainable=TrainableSegmenter,
)
