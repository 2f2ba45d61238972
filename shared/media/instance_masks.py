"""Boxes of objects from instance masks: PNGs whose values number the objects of an image.

    value = class · per_class + object      26003 in Cityscapes' instanceIds, with 1000 per class: the third car
    a value of a class alone                26: a region of cars that are not told apart, ignored as a crowd of COCO

    instances/a.png beside images/a.jpg, and instances.json: {"classes": {"car": 26, "person": 24}, "per_class": 1000}
    *_gtFine_instanceIds.png of Cityscapes as downloaded; without instances.json its eight classes with instances

`"per_class": null`: every value but 0 is an object of the only class. A box surrounds the pixels of its object, and its
area is their number. Needs numpy and scipy.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Self

import numpy as np
from pydantic import Field, ValidationError, model_validator
from scipy import ndimage

from shared.media.box_formats import CITYSCAPES_NAME, INSTANCES_JSON, BoxedImage, BoxSet, limited
from shared.media.images import decode_numbers
from shared.problems import InvalidInput, Malformed, TooLarge, validation_sentence
from shared.schemas.base import Contract
from shared.schemas.boxes import Ignored, TrueBox
from shared.schemas.masks import Label

CITYSCAPES = {
    "person": 24, "rider": 25, "car": 26, "truck": 27, "bus": 28, "train": 31, "motorcycle": 32, "bicycle": 33,
}  # fmt: skip


class InstanceValues(Contract):
    """What the values of instance masks mean; 0 and values of other classes are background."""

    classes: Annotated[dict[Label, Annotated[int, Field(ge=0, le=65_535)]], Field(min_length=1, max_length=1_000)]
    per_class: Annotated[int, Field(ge=2, le=65_536)] | None = 1_000

    @model_validator(mode="after")
    def _each_once(self) -> Self:
        if len(set(self.classes.values())) < len(self.classes):
            raise ValueError("two classes have the same number; give each its own")
        if self.per_class is None and len(self.classes) > 1:
            raise ValueError("without per_class, every value is an object of one class; name one class, or per_class")
        if self.per_class is not None and 0 in self.classes.values():
            raise ValueError("with per_class, classes are numbered from 1, since 0 is background; or per_class is null")
        return self


def read_instances(files: Mapping[str, bytes], meaning: bytes | None) -> BoxSet:
    """The boxes of masks by their names. `meaning`: the content of instances.json; None: Cityscapes' classes."""
    others = [name for name in files if not CITYSCAPES_NAME.search(name.rpartition(".")[0])]
    if meaning is None and others:
        raise InvalidInput(
            f"nothing says which values of {others[0]!r} are of which class; add {INSTANCES_JSON}: "
            '{"classes": {"car": 26}, "per_class": 1000}'
        )
    values, images = read_values(meaning), []
    for name, data in files.items():
        try:
            boxes, size = boxes_in(data, values)
        except (InvalidInput, Malformed, TooLarge) as problem:
            raise InvalidInput(f"{name!r}: {problem.detail}") from problem
        images.append(BoxedImage(name, limited(boxes, name), size))
    return BoxSet(tuple(images), tuple(values.classes), f"boxes are read from {len(images):,} masks of instances")


def read_values(data: bytes | None) -> InstanceValues:
    """The content of instances.json; None: Cityscapes' own classes. Raises InvalidInput."""
    if data is None:
        return InstanceValues(classes=CITYSCAPES)
    try:
        return InstanceValues.model_validate_json(data)
    except ValidationError as error:
        faults = error.errors(include_url=False, include_context=False, include_input=False)
        raise InvalidInput(f"{INSTANCES_JSON!r}: {validation_sentence(faults)}") from error


def boxes_in(png: bytes, values: InstanceValues) -> tuple[list[TrueBox], tuple[int, int]]:
    """The boxes of a mask by ascending value, and its width and height. Raises as `decode_numbers` does."""
    numbers = decode_numbers(png)
    names = {number: name for name, number in values.classes.items()}
    areas = np.bincount(numbers.ravel()).tolist()
    boxes: list[TrueBox] = []
    for value, place in enumerate(ndimage.find_objects(numbers.astype(np.int32)), start=1):
        alone = values.per_class is not None and value < values.per_class
        number = next(iter(names)) if values.per_class is None else value if alone else value // values.per_class
        name = names.get(number)
        if name is None or place is None:
            continue
        if not alone:
            boxes.append(_box(place, areas[value], name, None))
            continue
        pieces, _ = ndimage.label(numbers[place] == value, np.ones((3, 3)))
        piece_areas = np.bincount(pieces.ravel()).tolist()
        top, left = (span.start for span in place)
        for piece, (rows, columns) in enumerate(ndimage.find_objects(pieces), start=1):
            within = (slice(top + rows.start, top + rows.stop), slice(left + columns.start, left + columns.stop))
            boxes.append(_box(within, piece_areas[piece], name, "crowd"))
    return boxes, (numbers.shape[1], numbers.shape[0])


def _box(place: tuple[slice, ...], area: int, name: str, ignore: Ignored | None) -> TrueBox:
    rows, columns = place
    filled = area == (rows.stop - rows.start) * (columns.stop - columns.start)
    box = (columns.start, rows.start, columns.stop, rows.stop)
    return TrueBox(box=box, label=name, ignore=ignore, area=None if filled else area)
