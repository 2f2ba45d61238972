"""Detectors of the caller, and data sets with boxes, in the forms that libraries give them; none has to be installed.

    torchvision      {"boxes": n × 4, "labels": n, "scores": n}
    transformers     [{"label": ..., "score": ..., "box": {"xmin": ...}}, ...]
    supervision      .xyxy, .class_id, .confidence
    Ultralytics      .boxes.xyxy, .boxes.cls, .boxes.conf, .names
    MAITE            .boxes, .labels, .scores (n, or n × classes)
    Hugging Face     a column of objects: {"bbox": [left, top, width, height], "category": ...}

All but the last are left, top, right and bottom in pixels of the image. Labels are names, or indices of the classes.
"""

from __future__ import annotations

import io
import tempfile
import uuid
import zipfile
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from PIL import Image
from pydantic import ValidationError

from contrafact.arrays import as_array
from contrafact.testing import InProcessOptions
from contrafact.testset_files import gather
from embedded.library.datasets import (
    Columns,
    ImageSet,
    Indexed,
    LabelledImage,
    Truths,
    archive_set,
    described,
    find_image_column,
    index_names,
    is_maite,
    names_of_indices,
    position_name,
)
from embedded.library.models import Alias, Upload, evaluation_mode, maite_outputs, model_from_text
from evaluator_service.models_under_test.hub import own_names
from evaluator_service.models_under_test.in_process import InProcessModel
from evaluator_service.models_under_test.kinds.detection import DETECTION, named_answer, post_processed
from evaluator_service.models_under_test.outputs import NamedOutputs
from gateway.context import intake_limits
from gateway.settings import Settings
from shared.media.archives import is_archive_file
from shared.media.box_formats import BoxedImage, on_image
from shared.media.images import Pixels, working_size
from shared.media.testsets import TestSet
from shared.problems import InvalidInput, validation_sentence
from shared.schemas.boxes import Ignored, TrueBox

Floats = NDArray[np.float64]
_FORMS = (
    'give {"boxes": n × 4, "labels": n} with "scores" of predictions, an object with xyxy, class_id and confidence, or '
    'a list of {"label", "score", "box"}'
)
_NAMES_OF_CATEGORIES = ("category", "categories", "label", "labels", "category_id")
_IGNORING = ("iscrowd", "difficult")
_ORIENTATION = 0x0112  # of EXIF
_OVERHANG = 1.05  # of an image's side; boxes of corners that are read as sides reach farther


class Boxes(NamedTuple):
    """Boxes of one image: n × 4 corners in pixels, n names or indices of classes; scores of predictions alone.

    `ignore`: why each object of a ground truth does not count; None for one that does.
    """

    corners: Floats
    labels: list[object]
    scores: Floats | None
    ignore: list[Ignored | None]


def read_boxes(value: object) -> Boxes:
    """The boxes in what a library says of one image. Raises InvalidInput for any other value."""
    try:
        return _read(value)
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise InvalidInput(f"boxes are {described(value)}, which cannot be read ({error}); {_FORMS}") from error


def _read(value: Any) -> Boxes:
    if isinstance(value, Mapping):
        given = value["boxes"]
        if getattr(getattr(given, "format", None), "name", "XYXY") != "XYXY":  # of torchvision's tensors
            raise ValueError(f"the boxes have the format {given.format.name}; convert them to XYXY")
        return _boxes(given, value["labels"], value.get("scores"), value.get("iscrowd"), value.get("difficult"))
    if isinstance(value, list | tuple):
        corners = [[*entry["box"].values()] if isinstance(entry["box"], Mapping) else entry["box"] for entry in value]
        scores = [entry["score"] for entry in value if "score" in entry]
        return _boxes(corners, [entry["label"] for entry in value], scores if len(scores) == len(value) else None)
    if hasattr(value, "xyxy"):
        names = (getattr(value, "data", None) or {}).get("class_name")
        return _boxes(value.xyxy, value.class_id if names is None else names, value.confidence)
    if hasattr(value.boxes, "xyxy"):
        boxes = value.boxes
        return _boxes(boxes.xyxy, [value.names[int(index)] for index in as_array(boxes.cls)], boxes.conf)
    return _boxes(value.boxes, value.labels, getattr(value, "scores", None))


def _boxes(corners: object, labels: object, scores: object, crowd: object = None, difficult: object = None) -> Boxes:
    rows = as_array(corners).astype(np.float64).reshape(-1, 4)
    names = list(labels) if isinstance(labels, list | tuple) else as_array(labels).tolist()
    given = None if scores is None else as_array(scores).astype(np.float64)
    if given is not None and given.ndim == 2:  # MAITE: one for each class
        given = given[np.arange(len(rows)), np.array(names, np.int64).reshape(-1)]
    if {len(rows), len(names)} != {len(rows) if given is None else len(given)}:
        raise ValueError(
            f"there are {len(rows)} boxes, {len(names)} labels and {'no' if given is None else len(given)} scores"
        )
    crowds, difficults = (
        [False] * len(rows) if each is None else as_array(each).tolist() for each in (crowd, difficult)
    )
    ignore: list[Ignored | None] = [
        "crowd" if is_crowd else "difficult" if is_difficult else None
        for is_crowd, is_difficult in zip(crowds, difficults, strict=True)
    ]
    return Boxes(rows, [name.item() if hasattr(name, "item") else name for name in names], given, ignore)


def _name(label: object, classes: Sequence[str] | None) -> str:
    if isinstance(label, str):
        return label
    if not isinstance(label, int | float) or classes is None or not 0 <= label < len(classes) or label != int(label):
        raise InvalidInput(f"the label {label!r} has no name; give `classes`, in the order of the labels")
    return classes[int(label)]


# Data sets


def _with_boxes(image: LabelledImage, target: object, classes: Sequence[str] | None) -> LabelledImage:
    """The image with the boxes of its target; None is no ground truth. Raises ValueError with the image's name."""
    if target is None:
        return image
    if isinstance(image.image, Image.Image) and image.image.getexif().get(_ORIENTATION, 1) != 1:
        raise ValueError(f"{image.name!r}: turn the image and its boxes upright (PIL.ImageOps.exif_transpose)")
    try:
        boxes = read_boxes(target)
        rows = zip(boxes.corners.tolist(), boxes.labels, boxes.ignore, strict=True)
        true = [
            TrueBox(box=tuple(corners), label=_name(label, classes), ignore=ignore) for corners, label, ignore in rows
        ]
    except ValidationError as error:
        faults = error.errors(include_url=False, include_context=False, include_input=False)
        raise ValueError(f"{image.name!r}: {validation_sentence(faults)}") from error
    except InvalidInput as problem:
        raise ValueError(f"{image.name!r}: {problem.detail}") from problem
    return replace(image, boxes=tuple(true))


def _files(paths: Sequence[Path], known_classes: Collection[str], labels: Path | None) -> ImageSet:
    """The images of files, folders or an archive, with the boxes beside them, or those at `labels`."""
    if len(paths) == 1 and is_archive_file(paths[0]):
        return archive_set(paths[0], known_classes, labels, boxes=True)
    local = gather(paths)
    manifest = labels if labels is not None and labels.suffix.lower() in (".csv", ".jsonl") else None
    if labels is not None and manifest is None:
        local.take_boxes([labels])
    with tempfile.TemporaryDirectory() as folder:
        packed = Path(folder, "images.zip")
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_STORED) as archive:
            for name, path in dict.fromkeys([*local.images, *local.aside, *local.beside]):
                archive.write(path, name)
        return archive_set(packed, known_classes, manifest, boxes=True)


def _hugging_face(dataset: Indexed, features: Columns, classes: Sequence[str] | None, chosen: str | None) -> ImageSet:
    pictures, (column, inner) = find_image_column(features), _objects(features, chosen)
    category = next((name for name in _NAMES_OF_CATEGORIES if name in inner), None)
    if category is None:
        raise ValueError(f"column {column} of the data set has {', '.join(inner)}; it needs `bbox` and `category`")
    declared = getattr(getattr(inner[category], "feature", inner[category]), "names", None)
    names = names_of_indices(classes, declared)

    def read(position: int) -> LabelledImage:
        row = cast("Mapping[str, Any]", dataset[position])
        image, objects = LabelledImage(row[pictures], None, position_name(position)), row[column]
        columns = ["bbox", category, *(name for name in _IGNORING if name in inner)]
        if not isinstance(objects, Mapping):
            objects = {name: [thing[name] for thing in objects] for name in columns}
        corners, labels = objects["bbox"], objects[category]
        sides = np.array(corners, float).reshape(-1, 4)
        ends = sides[:, :2] + sides[:, 2:]
        if (ends > _OVERHANG * np.array(getattr(image.image, "size", (np.inf, np.inf)))).any():
            raise ValueError(
                f"{image.name!r}: `bbox` of column {column} reaches beyond the image; its numbers must be left, top, "
                "width and height in pixels"
            )
        ignoring = {name: objects[name] for name in _IGNORING if name in objects}
        truth = {"boxes": np.hstack([sides[:, :2], ends]), "labels": list(labels), **ignoring}
        return _with_boxes(image, truth, names)

    return ImageSet(len(dataset), read, names, TestSet(labels_from=f"boxes are read from the column {column}"))


def _objects(features: Columns, chosen: str | None) -> tuple[str, Columns]:
    """The column with the objects, and what each object has."""
    for name, feature in features.items():
        inner = getattr(feature, "feature", feature)
        if isinstance(inner, Mapping) and "bbox" in inner and chosen in (None, name):
            return name, inner
    raise ValueError(
        f"no column of the data set has boxes; its columns are {', '.join(features)}, and one must have objects with "
        "`bbox` (left, top, width, height) and `category`"
    )


BOXES = Truths(_files, _with_boxes, _with_boxes, _hugging_face, "boxes are those of the data set")


def on_stored(data: bytes, boxes: Sequence[TrueBox]) -> tuple[TrueBox, ...]:
    """Boxes in pixels of an uploaded file as boxes in pixels of the image that the gateway keeps of it."""
    with Image.open(io.BytesIO(data)) as picture:
        width, height = picture.size
        turned = picture.getexif().get(_ORIENTATION, 1) >= 5
    size = (height, width) if turned else (width, height)
    kept = working_size(*size, intake_limits(Settings.model_construct()).working_side)
    return on_image(BoxedImage("", tuple(boxes)), size, 1, kept)


# Models


def prepare_detector(model: object, images: ImageSet, options: InProcessOptions) -> InProcessModel | Upload | Alias:
    """How the caller's detector is tested. Raises ValueError for an object that is none, or lacks class names."""
    if isinstance(model, str | Path):
        return model_from_text(model, options)
    if isinstance(model, transformers.Pipeline):
        if model.task != "object-detection":
            raise ValueError(f"a pipeline for {model.task} is no detector; give one for object-detection")
        return _transformer(model.model, model.image_processor, options)
    if isinstance(model, transformers.PreTrainedModel):
        processor = options.preprocess or transformers.AutoImageProcessor.from_pretrained(model.name_or_path)
        return _transformer(model, processor, options)
    if options.preprocess is not None:
        raise ValueError("`preprocess` would move the boxes of a detector; wrap the model in a function of the images")
    if is_maite(model) and callable(model):
        answers = maite_outputs(model, images.read(0).image, lambda answer: answer)
        return _in_process(answers, options, index_names(model) or images.classes)
    if isinstance(model, torch.nn.Module):
        return _in_process(_module(model), options, images.classes)
    if not callable(model):
        raise ValueError(f"a {type(model).__name__} is no model; give a function, a module, a path or a name")

    def outputs(batch: Sequence[Pixels]) -> object:
        return model([Image.fromarray(image) if options.inputs == "pil" else image.copy() for image in batch])

    return _in_process(outputs, options, images.classes)


def _in_process(
    outputs: Callable[[Sequence[Pixels]], object], options: InProcessOptions, known: Sequence[str] | None
) -> InProcessModel:
    names = list(options.classes or known or ())
    if not names:
        raise ValueError("the classes of the detector are unknown; give `classes`, in the order of its labels")
    named = NamedOutputs(len(names), None, names, least=1)
    places = {name: place for place, name in reversed([*enumerate(names)])}

    def predict(images: Sequence[Pixels]) -> list[NDArray[Any]]:
        answers = list(cast("Sequence[object]", outputs(images)))
        if len(answers) != len(images):
            raise InvalidInput(f"the model returned boxes of {len(answers)} images for {len(images)}; {_FORMS}")
        return [_answer(read_boxes(answer)) for answer in answers]

    def _answer(boxes: Boxes) -> NDArray[Any]:
        if boxes.scores is None:
            raise InvalidInput("the model returned boxes without scores; return a score from 0 to 1 for each")
        labels = [_name(label, names) for label in boxes.labels]
        if unknown := sorted(set(labels) - set(places))[:5]:
            raise InvalidInput(f"the model returned the labels {', '.join(map(repr, unknown))}; add them to `classes`")
        return named_answer(boxes.corners, boxes.scores, np.array([places[name] for name in labels], np.int64), named)

    return InProcessModel(DETECTION.name, named.classes, predict, revision=uuid.uuid4().hex)


def _module(module: torch.nn.Module) -> Callable[[Sequence[Pixels]], object]:
    """As torchvision's detectors: a list of tensors (channels × height × width, 0 to 1), and a dict for each."""

    def outputs(images: Sequence[Pixels]) -> object:
        like = next(module.parameters(), torch.zeros(()))
        tensors = [
            torch.from_numpy(image.copy()).permute(2, 0, 1).to(like.device, like.dtype) / 255 for image in images
        ]
        with evaluation_mode(module):
            return module(tensors)

    return outputs


def _transformer(model: transformers.PreTrainedModel, processor: Any, options: InProcessOptions) -> InProcessModel:
    """One image at a time: beside an image of another size it would be padded, which changes what YOLOS answers."""
    own = own_names(model.config)
    named = NamedOutputs(len(own), own, None if options.classes is None else list(options.classes), least=1)

    def predict(images: Sequence[Pixels]) -> list[NDArray[Any]]:
        answers = []
        for image in images:
            features = processor(images=[Image.fromarray(image)], return_tensors="pt").to(model.device, model.dtype)
            with evaluation_mode(model):
                outputs = model(**features)
            answers += post_processed(outputs, processor, [image], named)
        return answers

    return InProcessModel(DETECTION.name, named.classes, predict, revision=uuid.uuid4().hex)


def try_detector(model: InProcessModel, first: Pixels) -> None:
    """Try a detector as an upload is tried, on the first image and its negative. Raises InvalidInput."""
    images = [first, 255 - first]
    DETECTION.examine(model, images, list(model.predict(images)))
