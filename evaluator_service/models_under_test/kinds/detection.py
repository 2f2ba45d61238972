"""Object detectors: boxes with a class and a score. An answer is an array of MAX_BOXES rows of left, top, right, bottom
(in pixels of the image), score and index of the class, the highest scores first; rows that are not used are zero.

In Hub layout they are transformers' (DETR, YOLOS, RT-DETR, D-FINE, ...). A server answers with a list per image,
`{"boxes": [[{"label": "car", "score": 0.9, "box": [left, top, right, bottom]}, ...], ...]}`, or as Hugging Face's do:
`[{"label": "car", "score": 0.9, "box": {"xmin": 1, "ymin": 2, "xmax": 3, "ymax": 4}}, ...]`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, NamedTuple, Self

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, TypeAdapter, ValidationError
from transformers import AutoImageProcessor, AutoModelForObjectDetection

from evaluator_service.models_under_test.hub import load_hub_model, own_names
from evaluator_service.models_under_test.kinds.model_kind import Answer, LoadedModel, ModelKind, ReadArray
from evaluator_service.models_under_test.onnx_file import OnnxFile, trial_images
from evaluator_service.models_under_test.outputs import ClassNames, NamedOutputs, softmax
from evaluator_service.models_under_test.preprocessing import placement, processors
from shared.media.images import Pixels, png_header
from shared.problems import InvalidInput
from shared.profiles.weights import Weights
from shared.schemas.base import MAX_BOXES, Kind
from shared.schemas.boxes import MAX_COORDINATE, DetectReply, PredictedBox
from shared.schemas.models import ModelDescription, Preprocessing
from shared.service.endpoints import Services

_COLUMNS = 6  # left, top, right, bottom, score, class
_HEAD_BYTES = 64 * 1024
_BOX_BYTES = 1024
_NORMALISED_PIXELS = 2
_TRIED = 10  # boxes of the highest scores, which a trial compares
LEAST_SCORE = 0.001  # before suppression, as Ultralytics validates
MOST_OVERLAP = 0.7
MOST_AFTER_SUPPRESSION = 300
CONFIDENT = 0.25  # score from which the boxes of a server are looked at
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
        return post_processed(self._model(pixel_values), self._processor, images, self._outputs)


def post_processed(answer: Any, processor: Any, images: Sequence[Pixels], outputs: NamedOutputs) -> list[Answer]:
    """The answers of a detector of transformers for images, given what it returned for them, by its own processor."""
    logits, boxes = answer.logits.float().cpu(), answer.pred_boxes.float().cpu()
    sizes = torch.tensor([image.shape[:2] for image in images])
    detections = processor.post_process_object_detection(
        SimpleNamespace(logits=logits, pred_boxes=boxes), threshold=0.0, target_sizes=sizes
    )
    sound = (torch.isfinite(logits) & torch.isfinite(boxes).all(dim=-1, keepdim=True)).flatten(1).all(dim=1)
    answers = []
    for of_image, fine in zip(detections, sound.tolist(), strict=True):
        corners, scores, labels = (of_image[name].numpy() for name in ("boxes", "scores", "labels"))
        answers.append(named_answer(corners, scores if fine else scores * np.nan, labels, outputs))
    return answers


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


class Candidates(NamedTuple):
    """Boxes of one image: corners in the model's input, scores, and indices of outputs."""

    boxes: NDArray[np.float64]
    scores: NDArray[np.float64]
    labels: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Layout:
    """How to read the outputs of a detector.

    `names` of the outputs that `read` takes, for one image (none: its only output). `shares`: boxes are shares of the
    input, else pixels. `outputs`: the number of classes, given the shapes of these outputs; None if they do not say.
    """

    names: tuple[str, ...]
    read: Callable[..., Candidates]
    shares: bool
    outputs: Callable[..., int | None]


def _softmax_queries(logits: NDArray[np.float64], boxes: NDArray[np.float64]) -> Candidates:
    """DETR and YOLOS: the last output is no object."""
    scores = softmax(logits)[:, :-1]
    return Candidates(_from_centres(boxes), scores.max(axis=1), scores.argmax(axis=1))


def _sigmoid_queries(logits: NDArray[np.float64], boxes: NDArray[np.float64]) -> Candidates:
    """RT-DETR, D-FINE, Deformable DETR: as many boxes as there are queries, of the most probable classes."""
    scores = 1 / (1 + np.exp(-logits))
    best = np.argsort(-scores, axis=None, kind="stable")[: len(logits)]
    queries, labels = np.unravel_index(best, scores.shape)
    return Candidates(_from_centres(boxes)[queries], scores[queries, labels], labels)


def _anchors(output: NDArray[np.float64]) -> Candidates:
    """YOLO, of version 8 on: (4 + classes) × anchors, before non-maximum suppression."""
    boxes, scores, labels = _from_centres(output[:4].T), output[4:].max(axis=0), output[4:].argmax(axis=0)
    corners_and_sizes = np.column_stack([boxes[:, :2], boxes[:, 2:] - boxes[:, :2]])
    kept = cv2.dnn.NMSBoxesBatched(
        corners_and_sizes.tolist(), scores.tolist(), labels.tolist(), LEAST_SCORE, MOST_OVERLAP
    )
    best = np.array(kept, np.int64).reshape(-1)[:MOST_AFTER_SUPPRESSION]
    return Candidates(boxes[best], scores[best], labels[best])


def _end_to_end(rows: NDArray[np.float64]) -> Candidates:
    return Candidates(rows[:, :4], rows[:, 4], rows[:, 5].astype(np.int64))


def _labelled(boxes: NDArray[Any], labels: NDArray[Any], scores: NDArray[Any]) -> Candidates:
    return Candidates(boxes, scores, labels.astype(np.int64))


def _scored(boxes: NDArray[np.float64], scores: NDArray[np.float64]) -> Candidates:
    return Candidates(boxes, scores.max(axis=1), scores.argmax(axis=1))


def _from_centres(boxes: NDArray[np.float64]) -> NDArray[np.float64]:
    """Corners from centre, width and height."""
    return np.concatenate([boxes[:, :2] - boxes[:, 2:] / 2, boxes[:, :2] + boxes[:, 2:] / 2], axis=1)


LAYOUTS: Mapping[str, Layout] = {
    "detr": Layout(("logits", "pred_boxes"), _softmax_queries, True, lambda logits, boxes: logits[-1] - 1),
    "rt-detr": Layout(("logits", "pred_boxes"), _sigmoid_queries, True, lambda logits, boxes: logits[-1]),
    "yolo": Layout((), _anchors, False, lambda output: output[1] - 4),
    "end-to-end": Layout((), _end_to_end, False, lambda output: None),
    "torchvision": Layout(("boxes", "labels", "scores"), _labelled, False, lambda *_: None),
    "jatic": Layout(("boxes", "scores"), _scored, True, lambda boxes, scores: scores[-1]),
}


def layout_of(shapes: Mapping[str, Sequence[int]], declared: str | None, classes: int | None) -> Layout:
    """The layout of outputs of these names and shapes; `classes`: their number, if it is known.

    Raises InvalidInput unless one is declared or can be recognised.
    """
    listed = ", ".join(f"{name} {' × '.join(map(str, shape))}" for name, shape in shapes.items())
    if declared is not None and declared not in LAYOUTS:
        raise InvalidInput(f"a detector's `output` is one of {', '.join(LAYOUTS)}")
    name = declared or _recognised(shapes, classes)
    if name is None:
        raise InvalidInput(
            f"the outputs {listed} are of no known layout; set `output` to one of {', '.join(LAYOUTS)}, or export the "
            "model as one of them"
        )
    layout = LAYOUTS[name]
    if not set(layout.names) <= set(shapes) or (not layout.names and len(shapes) > 1):
        raise InvalidInput(
            f"the layout {name!r} has {' and '.join(layout.names) or 'one output'}, and the model {listed}; rotated "
            "boxes, poses and masks are not supported"
        )
    return layout


def _recognised(shapes: Mapping[str, Sequence[int]], classes: int | None) -> str | None:
    if {"logits", "pred_boxes"} <= set(shapes):
        return {shapes["logits"][-1]: "rt-detr", shapes["logits"][-1] - 1: "detr"}.get(classes or 0)
    if {"boxes", "scores"} <= set(shapes):
        return "torchvision" if "labels" in shapes else "jatic"
    (shape,) = shapes.values() if len(shapes) == 1 else [()]
    if len(shape) != 3:
        return None
    if classes is not None and shape[1] == 4 + classes:
        return "yolo"
    if shape[2] == _COLUMNS:
        return "end-to-end"
    return "yolo" if classes is None and _COLUMNS < shape[1] < shape[2] else None


def number_of_names(own: Sequence[str] | None, declared: ClassNames | None) -> int | None:
    """The number of outputs that names tell of."""
    if own is not None:
        return len(own)
    return None if declared is None or isinstance(declared, Mapping) else len(declared)


def _largest_index(declared: ClassNames | None) -> int | None:
    if not isinstance(declared, Mapping):
        return None
    return max(max([places] if isinstance(places, int) else places) for places in declared.values()) + 1


@dataclass(frozen=True, slots=True)
class Decoder:
    """Answers from the outputs of a network that reads prepared images."""

    layout: Layout
    outputs: NamedOutputs

    @classmethod
    def of(
        cls,
        shapes: Mapping[str, Sequence[int]],
        own: Sequence[str] | None,
        classes: ClassNames | None,
        output: str | None,
    ) -> Self:
        """`own`: the model's names of its outputs; `classes` and `output` as its description says."""
        layout = layout_of(shapes, output, number_of_names(own, classes))
        outputs = layout.outputs(*(shapes[name] for name in layout.names or shapes))
        outputs = outputs or number_of_names(own, classes) or _largest_index(classes)
        if outputs is None:
            raise InvalidInput("the names of the model's classes are missing; give `classes`, by the index of each")
        return cls(layout, NamedOutputs(outputs, own, classes, least=1))

    def answer(
        self, arrays: Mapping[str, NDArray[Any]], image: Pixels, size: tuple[int, int], how: Preprocessing | None
    ) -> Answer:
        """The answer for an image, given its outputs by name and the `size` of the model's input (height, width)."""
        if not all(np.isfinite(array).all() for array in arrays.values()):
            return np.full((MAX_BOXES, _COLUMNS), np.nan)
        try:
            candidates = self.layout.read(*(arrays[name].astype(np.float64) for name in self.layout.names or arrays))
        except (IndexError, ValueError) as error:
            shapes = ", ".join(f"{name} {array.shape}" for name, array in arrays.items())
            raise InvalidInput(f"the outputs do not have the model's layout: {shapes}") from error
        used = candidates.scores != 0
        boxes, scores, labels = (column[used] for column in candidates)
        last = len(self.outputs.index_map()) - 1
        if unknown := labels[(labels < 0) | (labels > last)].tolist():
            raise InvalidInput(
                f"the model answers class {unknown[0]}, and its classes have the indices 0 to {last}; name all of them "
                "in `classes`"
            )
        corners = placement(image, size, how).undo(boxes * ([size[1], size[0]] * 2 if self.layout.shares else 1))
        return named_answer(corners, scores, labels, self.outputs)


class OnnxDetector:
    """An ONNX detector under test, of one of `LAYOUTS`."""

    kind: ClassVar[Kind] = "detection"

    def __init__(self, folder: Path, description: ModelDescription, *, device: str) -> None:
        """As `OnnxClassifier`; preprocessing that crops is refused."""
        self._file = OnnxFile(folder, description, (), device, whole=True)
        self._how = description.preprocessing
        task = self._file.metadata.get("task", "detect")  # Ultralytics' exports say so
        if task != "detect":
            raise InvalidInput(f"the model was exported for {task!r}; only a detector of upright boxes can be tested")
        ((_, _, sample),) = self._file.tensors(trial_images()[:1])
        shapes = {name: array.shape for name, array in sample.items()}
        self._unbatched = "boxes" in shapes and len(shapes["boxes"]) == 2  # torchvision's
        self._decoder = Decoder.of(shapes, self._file.names(), description.classes, description.output)
        self.classes = self._decoder.outputs.classes

    def run(self, images: Sequence[Pixels]) -> list[Answer]:
        """The answer for each RGB image (height × width × 3)."""
        batches = [[image] for image in images] if self._unbatched else [images]
        return [answer for batch in batches for answer in self._run(batch)]

    def _run(self, images: Sequence[Pixels]) -> Iterator[Answer]:
        for batch, size, tensors in self._file.tensors(images):
            for place, image in enumerate(batch):
                arrays = tensors if self._unbatched else {name: array[place] for name, array in tensors.items()}
                yield self._decoder.answer(arrays, image, size, self._how)


def _examine(model: LoadedModel, images: Sequence[Pixels], answers: Sequence[Answer]) -> None:
    """Boxes and scores must be possible, and not depend on other images of the batch, but on the image itself."""
    _refuse_impossible([image.shape[1::-1] for image in images], answers)
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
    rows: Answer = answer[answer[:, 4] != 0]
    return rows


def _refuse_impossible(sizes: Sequence[tuple[float, ...]], answers: Sequence[Answer], least: float = 0.0) -> None:
    """Refuse boxes that no convention of ours explains, from the score `least` on; `sizes` are width and height."""
    rows = np.concatenate([_used(answer) for answer in answers])
    if not len(rows):
        return
    if rows[:, 4].min() < 0 or rows[:, 4].max() > 1 + 1e-6:
        raise InvalidInput(
            f"the model returns scores from {rows[:, 4].min():g} to {rows[:, 4].max():g}; they must be 0 to 1, for "
            "example those of a sigmoid"
        )
    best = [rows[:_TRIED][rows[:_TRIED, 4] >= least] for rows in map(_used, answers)]
    boxes = np.concatenate(best)[:, :4]
    if not len(boxes):
        return
    if (boxes[:, 2:] < boxes[:, :2]).any(axis=1).mean() > 0.5:
        raise InvalidInput(
            "the right and lower edges of the model's boxes come before the left and upper ones; boxes are left, top, "
            "right, bottom, no width and height"
        )
    if np.abs(boxes).max() <= _NORMALISED_PIXELS:
        raise InvalidInput("all boxes of the model lie within two pixels; its outputs may be shares of the image")
    centres = np.concatenate([(rows[:, :2] + rows[:, 2:4]) / 2 / size for rows, size in zip(best, sizes, strict=True)])
    if ((centres >= 0) & (centres <= 1)).all(axis=1).mean() < 0.5:
        raise InvalidInput(
            "most boxes of the model lie outside the image; check how its boxes are scaled and its `preprocessing`"
        )


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
    overlaps: NDArray[np.float64] = np.divide(common, union, out=np.zeros_like(common), where=union > 0)
    return overlaps


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
    answers = [_parsed(detections, places) for detections in lists]
    _refuse_impossible([_size(image) for image in images], answers, CONFIDENT)
    return answers


def _size(png: bytes) -> tuple[float, float]:
    """Width and height."""
    header = png_header(png)
    return (math.inf, math.inf) if header is None else (header.width, header.height)


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


def _from_tensors(
    tensors: Mapping[str, Answer], images: Sequence[Pixels], description: ModelDescription
) -> list[Answer]:
    shapes = {name: array.shape for name, array in tensors.items()}
    how = description.preprocessing
    assert how is not None
    single = len(images) == 1 and len(shapes.get("boxes", (1, 1, 1))) == 2  # torchvision's
    if not single and any(not shape or shape[0] != len(images) for shape in shapes.values()):
        raise ValueError(f"returned {shapes} for {len(images)} images; set max_batch = 1 if it takes one at a time")
    decoder = Decoder.of(shapes, None, description.classes, description.output)
    each = (
        [dict(tensors)] if single else [{name: array[i] for name, array in tensors.items()} for i in range(len(images))]
    )
    size = (how.height, how.width)
    answers = [decoder.answer(arrays, image, size, how) for arrays, image in zip(each, images, strict=True)]
    _refuse_impossible([image.shape[1::-1] for image in images], answers, CONFIDENT)
    return answers


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
    from_tensors=_from_tensors,
    receive=_receive,
    reply=_reply,
    trainable=None,
    least_classes=1,
)
