"""Object detectors: boxes with a class and a score. An answer is an array of MAX_BOXES rows of left, top, right, bottom
(in pixels of the image), score and index of the class, the highest scores first; rows that are not used are zero.

In Hub layout they are transformers' (DETR, YOLOS, RT-DETR, D-FINE, ...). A server answers with a list per image,
`{"boxes": [[{"label": "car", "score": 0.9, "box": [left, top, right, bottom]}, ...], ...]}`, or as Hugging Face's do:
`[{"label": "car", "score": 0.9, "box": {"xmin": 1, "ymin": 2, "xmax": 3, "ymax": 4}}, ...]`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, TypeAdapter, ValidationError
from torch import Tensor
from transformers import AutoImageProcessor, AutoModelForObjectDetection

from evaluator_service.models_under_test.hub import load_hub_model, own_names
from evaluator_service.models_under_test.kinds.model_kind import Answer, LoadedModel, ModelKind, ReadArray
from evaluator_service.models_under_test.outputs import ClassNames, NamedOutputs
from evaluator_service.models_under_test.preprocessing import processors
from shared.media.images import Pixels
from shared.problems import InvalidInput
from shared.profiles.weights import Weights
from shared.schemas.base import Kind
from shared.schemas.boxes import MAX_BOXES, MAX_COORDINATE, DetectReply, PredictedBox
from shared.schemas.models import ModelDescription
from shared.service.endpoints import Services

_COLUMNS = 6  # left, top, right, bottom, score, class
_HEAD_BYTES = 64 * 1024
_BOX_BYTES = 1024
_TRIED = 10  # boxes of the highest scores, which a trial compares
_ALIKE_OVERLAP, _ALIKE_SCORE = 0.5, 0.05


def answer_of(boxes: NDArray[Any], scores: NDArray[Any], classes: NDArray[Any]) -> Answer:
    """An image's answer: n × 4 corners in pixels, n scores, n indices. NaN and infinity make it NaN."""
    rows = np.column_stack([boxes, scores, classes]).astype(np.float64)
    if not np.isfinite(rows).all():
        return np.full((MAX_BOXES, _COLUMNS), np.nan)
    rows = rows[np.argsort(-rows[:, 4], kind="stable")][:MAX_BOXES]
    answer = np.zeros((MAX_BOXES, _COLUMNS))
    answer[: len(rows)] = rows
    return answer


class ImageDetector:
    """A detector under test, with its own preprocessing and post-processing."""

    kind: ClassVar[Kind] = "detection"

    def __init__(self, weights: Weights, *, device: str, classes: ClassNames | None = None) -> None:
        """Load weights and preprocessing; see `ImageClassifier`. Outputs of one name are one class."""
        self._model = load_hub_model(AutoModelForObjectDetection, weights).to(device).eval()
        at = (weights.location, weights.subfolder, weights.hub_revision)
        channels = getattr(self._model.config, "num_channels", None)
        self._prepare = processors(*at, whole=True, pads=True, channels=channels)
        self._processor = AutoImageProcessor.from_pretrained(
            at[0], backend="pil", subfolder=weights.subfolder, revision=weights.hub_revision
        )
        names = own_names(self._model.config)
        self._outputs = NamedOutputs(len(names), names, classes, least=1)
        self.classes = self._outputs.classes
        # A batch of sizes that differ would be padded, which changes what YOLOS and others answer.
        self._alone = len({self._prepare([image]).shape for image in _OF_TWO_SHAPES}) > 1

    def run(self, images: Sequence[Pixels]) -> list[Answer]:
        """The answer for each RGB image (height × width × 3)."""
        batches = [[image] for image in images] if self._alone else [images]
        return [answer for batch in batches for answer in self._run(batch)]

    @torch.inference_mode()
    def _run(self, images: Sequence[Pixels]) -> list[Answer]:
        pixel_values = torch.from_numpy(self._prepare(images)).to(self._model.device, self._model.dtype)
        outputs = self._model(pixel_values)
        logits, boxes = outputs.logits.float().cpu(), outputs.pred_boxes.float().cpu()
        sizes = torch.tensor([image.shape[:2] for image in images])
        detections = self._processor.post_process_object_detection(
            SimpleNamespace(logits=logits, pred_boxes=boxes), threshold=0.0, target_sizes=sizes
        )
        sound = (torch.isfinite(logits) & torch.isfinite(boxes).all(dim=-1, keepdim=True)).flatten(1).all(dim=1)
        return [self._answer(of_image, bool(fine)) for of_image, fine in zip(detections, sound, strict=True)]

    def _answer(self, detections: dict[str, Tensor], finite: bool) -> Answer:
        boxes, scores, labels = (detections[name].numpy() for name in ("boxes", "scores", "labels"))
        return named_answer(boxes, scores if finite else scores * np.nan, labels, self._outputs)


def named_answer(boxes: NDArray[Any], scores: NDArray[Any], labels: NDArray[Any], outputs: NamedOutputs) -> Answer:
    """As `answer_of`, from the model's own labels. Where they share a name, one box of it is one detection."""
    columns = outputs.index_map()
    classes = columns[labels]
    if len(outputs.classes) < len(columns):
        order = np.argsort(-scores, kind="stable")
        _, first = np.unique(np.column_stack([boxes, classes])[order], axis=0, return_index=True)
        kept = order[first]
        boxes, scores, classes = boxes[kept], scores[kept], classes[kept]
    return answer_of(boxes, scores, classes)


_OF_TWO_SHAPES = [np.zeros((*size, 3), np.uint8) for size in ((97, 97), (97, 61))]


class OnnxDetector:
    """An ONNX detector under test."""

    kind: ClassVar[Kind] = "detection"
    classes: list[str]

    def __init__(self, folder: Path, description: ModelDescription, *, device: str) -> None:
        raise InvalidInput("upload the detector in Hub layout")

    def run(self, images: Sequence[Pixels]) -> list[Answer]:
        raise NotImplementedError


def _examine(model: LoadedModel, images: Sequence[Pixels], answers: Sequence[Answer]) -> None:
    """Boxes and scores must be possible, and not depend on other images of the batch, but on the image itself."""
    _refuse_impossible(images, answers)
    for image, answer in list(zip(images, answers, strict=True))[:2]:
        (alone,) = model.run([image])
        if _share_alike(answer, alone) < 0.8:
            raise InvalidInput(
                "the model finds other boxes in an image of a batch than in the image alone; export it so that images "
                "of a batch do not influence each other, or with a fixed batch of 1"
            )
    (mirrored,) = model.run([np.ascontiguousarray(images[0][:, ::-1])])
    if len(_used(mirrored)) and np.array_equal(mirrored, answers[0]):
        raise InvalidInput("the model answers the same boxes for an image and its mirror image; check its weights")


def _used(answer: Answer) -> Answer:
    """The rows that are boxes."""
    return answer[answer[:, 4] != 0]


def _refuse_impossible(images: Sequence[Pixels], answers: Sequence[Answer]) -> None:
    rows = np.concatenate([_used(answer) for answer in answers])
    if not len(rows):
        return
    if rows[:, 4].min() < 0 or rows[:, 4].max() > 1 + 1e-6:
        raise InvalidInput(
            f"the model returns scores from {rows[:, 4].min():g} to {rows[:, 4].max():g}; they must be 0 to 1, for "
            "example those of a sigmoid"
        )
    best = [_used(answer)[:_TRIED] for answer in answers]
    boxes = np.concatenate(best)[:, :4]
    if (boxes[:, 2:] < boxes[:, :2]).any(axis=1).mean() > 0.5:
        raise InvalidInput("the right and lower edges of the model's boxes come before the left and upper ones")
    if np.abs(boxes).max() <= _NORMALISED_PIXELS:
        raise InvalidInput("all boxes of the model lie within two pixels; its outputs may be shares of the image")
    centres = np.concatenate(
        [(rows[:, :2] + rows[:, 2:4]) / 2 / image.shape[1::-1] for rows, image in zip(best, images, strict=True)]
    )
    if ((centres >= 0) & (centres <= 1)).all(axis=1).mean() < 0.5:
        raise InvalidInput(
            "most boxes of the model lie outside the image; check how its boxes are scaled and its `preprocessing`"
        )


_NORMALISED_PIXELS = 2


def _share_alike(first: Answer, second: Answer) -> float:
    """The share of the best boxes of one answer that the other has, too."""
    best, others = _used(first)[:_TRIED], _used(second)
    if not len(best):
        return 1.0
    if not len(others):
        return 0.0
    alike = _overlaps(best, others) >= _ALIKE_OVERLAP
    alike &= (best[:, None, 5] == others[None, :, 5]) & (np.abs(best[:, None, 4] - others[None, :, 4]) <= _ALIKE_SCORE)
    return float(alike.any(axis=1).mean())


def _overlaps(first: Answer, second: Answer) -> NDArray[np.float64]:
    """IoU of every box of the one with every box of the other."""
    corners = np.minimum(first[:, None, 2:4], second[None, :, 2:4]) - np.maximum(
        first[:, None, :2], second[None, :, :2]
    )
    common = corners.clip(min=0).prod(axis=-1)
    areas = [(rows[:, 2:4] - rows[:, :2]).clip(min=0).prod(axis=-1) for rows in (first, second)]
    union = areas[0][:, None] + areas[1][None] - common
    return np.divide(common, union, out=np.zeros_like(common), where=union > 0)


class _HubCorners(BaseModel):
    xmin: float
    ymin: float
    xmax: float
    ymax: float


class _Detection(BaseModel):
    label: str
    score: float
    box: tuple[float, float, float, float] | _HubCorners


class _Boxes(BaseModel):
    boxes: list[list[_Detection]]


_BODY: TypeAdapter[_Boxes | list[list[_Detection]] | list[_Detection]] = TypeAdapter(
    _Boxes | list[list[_Detection]] | list[_Detection]
)


def _most_bytes(images: Sequence[bytes], classes: int) -> int:
    return _HEAD_BYTES + _BOX_BYTES * MAX_BOXES * len(images)


def _parse(body: bytes, images: Sequence[bytes], classes: Sequence[str]) -> list[Answer]:
    try:
        content = _BODY.validate_json(body)
    except ValidationError as error:
        raise ValueError(
            'did not return {"boxes": [[{"label": ..., "score": ..., "box": [left, top, right, bottom]}, ...], ...]}'
        ) from error
    lists: list[list[_Detection]] = []
    if isinstance(content, _Boxes):
        lists = content.boxes
    else:  # Hugging Face's: a list for one image, or one for each
        for entry in content if content and isinstance(content[0], list) else [content]:
            lists.append(entry)  # type: ignore[arg-type]
    if len(lists) != len(images):
        raise ValueError(f"returned boxes of {len(lists)} images for {len(images)}")
    places = {name: place for place, name in enumerate(classes)}
    return [_parsed(detections, places) for detections in lists]


def _parsed(detections: Sequence[_Detection], places: dict[str, int]) -> Answer:
    if unknown := sorted({detection.label for detection in detections} - set(places))[:5]:
        raise ValueError(f"returned the labels {', '.join(map(repr, unknown))}, which `classes` does not name")
    boxes = [
        detection.box if isinstance(detection.box, tuple) else tuple(detection.box.model_dump().values())
        for detection in detections
    ]
    scores = np.array([detection.score for detection in detections])
    if not all(0 <= score <= 1 for score in scores):
        raise ValueError("returned scores outside 0 to 1")
    labels = np.array([places[detection.label] for detection in detections], np.int64)
    return answer_of(np.array(boxes).reshape(-1, 4), scores, labels)


def _receive(images: Sequence[Pixels], classes: int, read: ReadArray) -> list[Answer]:
    answers = [read((MAX_BOXES, _COLUMNS), np.float64) for _ in images]
    for answer in answers:
        labels = answer[:, 5]
        if not np.isnan(answer).all() and not (np.isin(labels, np.arange(classes))).all():
            raise ValueError("boxes of unknown classes")
    return answers


def _reply(classes: list[str], answers: Sequence[Answer]) -> DetectReply:
    return DetectReply(classes=classes, boxes=[_boxes(answer, classes) for answer in answers])


def _boxes(answer: Answer, classes: Sequence[str]) -> list[PredictedBox]:
    """Those with an area."""
    corners = answer[:, :4].clip(-MAX_COORDINATE, MAX_COORDINATE)
    if answer[:, 4].min() < 0 or answer[:, 4].max() > 1 + 1e-6:
        raise InvalidInput("the model returned scores outside 0 to 1")
    kept = (corners[:, 2:] > corners[:, :2]).all(axis=1)
    rows = zip(corners[kept].tolist(), answer[kept, 4].clip(0, 1).tolist(), answer[kept, 5].astype(int), strict=True)
    return [PredictedBox(box=tuple(box), label=classes[place], score=score) for box, score, place in rows]


DETECTION = ModelKind(
    name="detection",
    noun="detector",
    endpoint=Services.detect,
    from_hub=ImageDetector,
    from_onnx=OnnxDetector,
    examine=_examine,
    most_bytes=_most_bytes,
    parse=_parse,
    receive=_receive,
    reply=_reply,
    trainable=None,
    least_classes=1,
)
