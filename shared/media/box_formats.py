"""Boxes of a test set in the formats that people have: COCO JSON, YOLO, Pascal VOC, masks; COCO and YOLO are written.

    COCO    annotations.json: `bbox` is left, top, width, height in pixels; ids of images and categories are any numbers
    YOLO    labels/a.txt beside images/a.jpg: a line is `class cx cy w h` in fractions of the image; names in data.yaml
    VOC     Annotations/a.xml: pixels are counted from 1, and the last one belongs to the box
    masks   instances/a.png, or Cityscapes' instanceIds: values number objects (`shared.media.instance_masks`)

`on_image` takes boxes from the picture that they were drawn on to the canonical image (EXIF orientation, scale).
Formats keep coordinates to 1e-9. Rotated boxes, polygons, and keypoints without boxes are refused.
"""

from __future__ import annotations

import json
import math
import re
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from pydantic import ValidationError

from shared.media.manifests import Manifest, ManifestRow, clean_name, decode_text, match_rows
from shared.problems import InvalidInput, Malformed, validation_sentence
from shared.schemas.base import MAX_BOXES, JsonObject
from shared.schemas.boxes import Corners, Ignored, TrueBox

Size = tuple[float, float]  # width and height
FRACTIONS: Size = (1.0, 1.0)  # the size of a picture whose boxes are fractions of it
SUFFIXES = (".json", ".txt", ".xml", ".yaml", ".yml")
_SETTINGS = (".yaml", ".yml")
_NAMES = "classes.txt"  # of labelImg, in place of data.yaml
_INSTANCES = "instances"  # the folder of instance masks
INSTANCES_JSON = f"{_INSTANCES}.json"  # says what their values mean
CITYSCAPES_NAME = re.compile(r"_(leftImg8bit|rightImg8bit|gt(Fine|Coarse)_instanceIds)$")
_FOLDERS = {"images", "labels", "annotations", "jpegimages", "imgs", _INSTANCES}
_FOLDERS |= {"leftimg8bit", "rightimg8bit", "gtfine", "gtcoarse"}
_SAME = 1e-9  # relative difference of an area from that of its box
_YOLO_COLUMNS = 5


class BoxedImage(NamedTuple):
    """The boxes of one image by the name of its file, on a picture of this size (None: that of the upright file)."""

    file: str
    boxes: tuple[TrueBox, ...]
    size: Size | None = None


class BoxSet(NamedTuple):
    """Boxes of some images, the classes that were annotated, in their order, and a note on what was read or left."""

    images: tuple[BoxedImage, ...]
    classes: tuple[str, ...]
    note: str = ""


ReadMasks = Callable[[Mapping[str, bytes], bytes | None], BoxSet]


def is_box_file(name: str) -> bool:
    """Whether a file may have boxes, or the names of their classes, by its name."""
    return name.lower().endswith(SUFFIXES) or is_instance_mask(name)


def is_instance_mask(name: str) -> bool:
    """Whether a file may be a mask whose values number objects, by its name."""
    *folders, file = name.split("/")
    stem, _, suffix = file.rpartition(".")
    inside = _INSTANCES in (folder.lower() for folder in folders) or stem.endswith("_instanceIds")
    return suffix.lower() == "png" and inside


def has_class_names(name: str) -> bool:
    """Whether a file may have the names of YOLO's classes, by its name."""
    return name.lower().endswith(_SETTINGS) or _base(name) == _NAMES


def boxes_of(
    files: Mapping[str, bytes], names: Sequence[str], read_masks: ReadMasks | None = None
) -> tuple[list[BoxedImage | None], BoxSet]:
    """The boxes of each image of these names, None for one that has no entry, and all that was read.

    `read_masks` reads instance masks, given the content of instances.json; without it they are left aside.
    Raises InvalidInput and Malformed, also for files in several formats and for none.
    """
    formats = _formats(files, names) | ({} if read_masks else {"instance masks": {}})
    coco, voc, lines, masks = (formats[name] for name in ("COCO JSON", "Pascal VOC", "YOLO", "instance masks"))
    present = [name for name, of_format in formats.items() if of_format]
    if len(present) > 1:
        raise InvalidInput(f"there are boxes as {' and as '.join(present)}; keep one of them")
    if coco:
        read = _merged([read_coco(value, name) for name, value in coco.items()])
        return _by_name(read, names), read
    if not present:
        raise InvalidInput(
            "the spec announces boxes, but none was sent: add COCO JSON, YOLO's labels/*.txt with data.yaml, Pascal "
            "VOC XML, masks in a folder instances with instances.json, or a manifest.jsonl whose rows have "
            '`boxes`: [{"box": [left, top, right, bottom], "label": …}]'
        )
    if masks and read_masks:
        read = read_masks(masks, next((files[name] for name in files if _base(name) == INSTANCES_JSON), None))
    else:
        read = read_voc(voc) if voc else read_yolo(lines, _class_names(files))
    by_stem = {_stem(image.file): image for image in read.images}
    return [by_stem.get(_stem(name)) for name in names], read


def have_boxes(files: Mapping[str, Callable[[], bytes]], names: Sequence[str]) -> bool:
    """Whether any of the files seems to have boxes of images of these names. Raises Malformed for JSON that is none.

    `files`: by name what reads the file. Only JSON is read: the other formats are told by names.
    """
    return any(_formats({name: read() if _is_json(name) else b"" for name, read in files.items()}, names).values())


def _formats(files: Mapping[str, bytes], names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The files of each format: the content of COCO JSON, the bytes of the others."""
    stems = {_stem(name) for name in names}
    return {
        "COCO JSON": {
            name: value for name, value in _json_files(files) if isinstance(value, dict) and "annotations" in value
        },
        "Pascal VOC": {name: data for name, data in files.items() if name.lower().endswith(".xml")},
        "YOLO": {
            name: data
            for name, data in files.items()
            if name.lower().endswith(".txt") and _stem(name) in stems and _base(name) != _NAMES
        },
        "instance masks": {
            name: data for name, data in files.items() if is_instance_mask(name) and _stem(name) in stems
        },
    }


def _by_name(read: BoxSet, names: Sequence[str]) -> list[BoxedImage | None]:
    by_file = {image.file: image for image in read.images}
    rows = {file: ManifestRow.model_construct(file=file) for file in by_file}
    matched = match_rows(Manifest(rows, ours=False), names) if rows else [None] * len(names)
    return [None if row is None else by_file[row.file] for row in matched]


def _stem(name: str) -> str:
    """The name without its suffix and without folders such as `images` and `labels`."""
    *folders, file = clean_name(name).split("/")
    stem = CITYSCAPES_NAME.sub("", file.rpartition(".")[0] or file)
    return "/".join([*(part for part in folders if part.lower() not in _FOLDERS), stem])


def _base(name: str) -> str:
    return name.rpartition("/")[2].lower()


def _is_json(name: str) -> bool:
    return name.lower().endswith(".json")


def _json_files(files: Mapping[str, bytes]) -> Iterator[tuple[str, Any]]:
    for name, data in files.items():
        if _is_json(name):
            try:
                yield name, json.loads(data)
            except (ValueError, RecursionError) as error:
                raise Malformed(f"{name!r} is not JSON ({error}); correct it, or leave it out") from error


def _merged(sets: Sequence[BoxSet]) -> BoxSet:
    images = [image for boxes in sets for image in boxes.images]
    if repeated := [file for file, count in Counter(image.file for image in images).items() if count > 1]:
        raise InvalidInput(
            f"two files of annotations, or two entries of one, have the image {repeated[0]!r}; keep one of them"
        )
    classes = dict.fromkeys(name for boxes in sets for name in boxes.classes)
    return BoxSet(tuple(images), tuple(classes), "; ".join(boxes.note for boxes in sets))


# COCO


def read_coco(value: JsonObject, name: str = "the COCO JSON") -> BoxSet:
    """The boxes of a COCO file. Raises InvalidInput with the annotation at fault."""
    try:
        classes = {int(entry["id"]): str(entry["name"]) for entry in _objects(value, "categories")}
        images = {int(entry["id"]): entry for entry in _objects(value, "images")}
        annotations = _objects(value, "annotations")
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise InvalidInput(
            f"{name!r} is not COCO JSON of boxes: it needs `images` with id and file_name, `categories` with id and "
            f"name, and `annotations` ({error!r})"
        ) from error
    boxes: dict[int, list[TrueBox]] = {number: [] for number in images}
    flat = 0
    for place, annotation in enumerate(annotations):
        about = f"annotation {annotation.get('id', place)} of {name!r}"
        number = _coco_id(annotation, "image_id", images, about)
        category = _coco_id(annotation, "category_id", classes, about)
        box = _coco_box(annotation, classes[category], about)
        flat += box is None
        boxes[number] += [] if box is None else [box]
    read = [
        BoxedImage(
            str(images[number].get("file_name")),
            limited(of_image, name, number),
            _coco_size(images[number], f"image {number} of {name!r}"),
        )
        for number, of_image in boxes.items()
    ]
    note = f"boxes are read from {name!r}, COCO" + (f"; {flat:,} boxes without an area are left out" if flat else "")
    return BoxSet(tuple(read), tuple(dict.fromkeys(classes.values())), note)


def _objects(value: JsonObject, key: str) -> list[dict[str, Any]]:
    entries = value[key]
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise TypeError(f"{key} is no list of objects")
    return entries  # type: ignore[return-value]


def _coco_id(annotation: Mapping[str, Any], key: str, known: Collection[int], about: str) -> int:
    """The id of the image or category of an annotation, which must be in the file."""
    number = annotation.get(key)
    if not isinstance(number, int | float) or number not in known:
        raise InvalidInput(f"{about} has the {key} {number!r}, which is not in the file")
    return int(number)


def _coco_size(image: Mapping[str, Any], about: str) -> Size | None:
    sides = image.get("width"), image.get("height")
    if not all(sides):
        return None
    width, height = _numbers(sides, 2, f"{about} has a width or height that is not a number")
    return width, height


def _coco_box(annotation: Mapping[str, Any], label: str, about: str) -> TrueBox | None:
    """The box of an annotation; None for one without an area."""
    attributes = annotation.get("attributes")
    if isinstance(attributes, dict) and attributes.get("rotation"):
        raise InvalidInput(f"{about} is a rotated box; only upright boxes can be tested")
    corners = _numbers(annotation.get("bbox"), 4, f"{about} has no `bbox` of four numbers; only boxes can be tested")
    left, top, width, height = corners
    if width <= 0 or height <= 0:
        return None
    ignore: Ignored | None = "crowd" if annotation.get("iscrowd") else "difficult" if annotation.get("ignore") else None
    area = annotation.get("area")
    own = isinstance(area, int | float) and abs(area - width * height) > _SAME * width * height
    return _box((left, top, left + width, top + height), label, about, ignore, area if own else None)


def write_coco(boxes: BoxSet, info: JsonObject | None = None) -> JsonObject:
    """COCO JSON of images whose size is known. `ignore` marks difficult objects, which COCO does not have."""
    ids = {name: number for number, name in enumerate(boxes.classes, start=1)}
    images = list(enumerate(boxes.images, start=1))
    entries = [entry for number, image in images for entry in coco_annotations(image, number, ids)]
    return {
        "info": info or {},
        "images": [_coco_image(number, image) for number, image in images],
        "categories": [{"id": number, "name": name} for name, number in ids.items()],
        "annotations": [{"id": number, **entry} for number, entry in enumerate(entries, start=1)],
    }


def coco_annotations(image: BoxedImage, number: int, ids: Mapping[str, int]) -> Iterator[JsonObject]:
    """The annotations of the image with this number, without ids of their own; `ids` of the categories."""
    for box in image.boxes:
        left, top, right, bottom = box.box
        width, height = right - left, bottom - top
        yield {
            "image_id": number,
            "category_id": ids[box.label],
            "bbox": [left, top, width, height],
            "area": width * height if box.area is None else box.area,
            "iscrowd": int(box.ignore == "crowd"),
            **({"ignore": 1} if box.ignore == "difficult" else {}),
        }


def _coco_image(number: int, image: BoxedImage) -> JsonObject:
    width, height = image.size or (None, None)
    return {"id": number, "file_name": image.file, "width": width, "height": height}


# YOLO


def read_yolo(files: Mapping[str, bytes], classes: Sequence[str]) -> BoxSet:
    """The boxes of label files by their names, in fractions of the images. An empty file: no objects."""
    images = []
    for name, data in files.items():
        lines = enumerate(decode_text(data, repr(name)).splitlines(), start=1)
        boxes = [
            _yolo_box(line.split(), classes, f"line {number} of {name!r}") for number, line in lines if line.strip()
        ]
        images.append(BoxedImage(name, limited(boxes, name), FRACTIONS))
    return BoxSet(tuple(images), tuple(classes), f"boxes are read from {len(images):,} label files, YOLO")


def _yolo_box(columns: Sequence[str], classes: Sequence[str], about: str) -> TrueBox:
    if len(columns) != _YOLO_COLUMNS:
        what = (
            "a score: these are predictions"
            if len(columns) == _YOLO_COLUMNS + 1
            else "a polygon, a rotated box or a pose"
        )
        raise InvalidInput(f"{about} has {len(columns)} columns, as {what}; a box has five: class cx cy w h")
    place, *numbers = _numbers(columns, _YOLO_COLUMNS, f"{about} is not five numbers: class cx cy w h")
    x, y, width, height = numbers
    if place != int(place) or not 0 <= place < len(classes):
        raise InvalidInput(f"{about} has the class {columns[0]}; data.yaml names the classes 0 to {len(classes) - 1}")
    if max(map(abs, numbers)) > 2:
        raise InvalidInput(f"{about} has numbers above 1; YOLO's are fractions of the image's width and height")
    return _box((x - width / 2, y - height / 2, x + width / 2, y + height / 2), classes[int(place)], about)


def _class_names(files: Mapping[str, bytes]) -> list[str]:
    """The names of YOLO's classes, by number: of data.yaml, or of classes.txt."""
    for name, data in files.items():
        if name.lower().endswith(_SETTINGS) and (names := _yaml_names(data, name)) is not None:
            return names
    for name, data in files.items():
        if _base(name) == _NAMES:
            return [line.strip() for line in decode_text(data, repr(name)).splitlines() if line.strip()]
    raise InvalidInput("the label files of YOLO need the names of the classes; add data.yaml with `names`")


def _yaml_names(data: bytes, name: str) -> list[str] | None:
    import yaml  # the client, which looks at names of files only, lacks it

    try:
        value = yaml.safe_load(decode_text(data, repr(name)))
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: a date that there is not
        raise Malformed(f"{name!r} is not YAML; correct it") from error
    names = value.get("names") if isinstance(value, dict) else None
    if isinstance(names, dict):
        if set(names) != set(range(len(names))):
            raise InvalidInput(f"`names` of {name!r} must name the classes 0 to {len(names) - 1}, each once")
        names = [names[number] for number in range(len(names))]
    if names is not None and "kpt_shape" in value:
        raise InvalidInput(f"{name!r} describes poses (`kpt_shape`); only boxes can be tested")
    if isinstance(names, list) and not all(isinstance(entry, str | int | float) for entry in names):
        raise InvalidInput(f"`names` of {name!r} must be a list of names, or a name for each number")
    return [str(entry) for entry in names] if isinstance(names, list) else None


def write_yolo(boxes: BoxSet) -> dict[str, bytes]:
    """Label files and data.yaml of images whose size is known, by path. Ignored objects are left out: YOLO has none."""
    files = {
        f"labels/{image.file.rpartition('.')[0] or image.file}.txt": yolo_lines(image, boxes.classes)
        for image in boxes.images
    }
    return {"data.yaml": yolo_settings(boxes.classes, ["images"], ["images"]), **files}


def yolo_lines(image: BoxedImage, classes: Sequence[str]) -> bytes:
    """The label file of an image whose size is known."""
    width, height = image.size or FRACTIONS
    places = {name: place for place, name in enumerate(classes)}
    lines = []
    for box in image.boxes:
        left, top, right, bottom = box.box
        numbers = (
            (left + right) / 2 / width,
            (top + bottom) / 2 / height,
            (right - left) / width,
            (bottom - top) / height,
        )
        if box.ignore is None:
            lines.append(f"{places[box.label]} {' '.join(map(repr, numbers))}\n")
    return "".join(lines).encode()


def yolo_settings(classes: Sequence[str], train: Sequence[str], val: Sequence[str]) -> bytes:
    """data.yaml, with the folders of images to train on and to validate with."""
    import yaml  # as above

    folders = {name: part[0] if len(part) == 1 else [*part] for name, part in (("train", train), ("val", val))}
    settings = {"path": ".", **folders, "names": dict(enumerate(classes))}
    return str(yaml.safe_dump(settings, allow_unicode=True, sort_keys=False)).encode()


# Pascal VOC


def read_voc(files: Mapping[str, bytes]) -> BoxSet:
    """The boxes of XML files by their names.

    VOC counts pixels from 1, and `xmax` belongs to the box. A set with a 0 among its left or top edges cannot mean
    that; its tool counted from 0, and then `xmax` is the edge itself.
    """
    roots = {name: root for name, data in files.items() if (root := _xml(name, data)).tag == "annotation"}
    edges = [
        _edge(entry.text, name) for name, root in roots.items() for tag in ("xmin", "ymin") for entry in root.iter(tag)
    ]
    first = 0.0 if any(edge < 1 for edge in edges) else 1.0
    images = tuple(_voc_image(name, root, first) for name, root in roots.items())
    classes = sorted({box.label for image in images for box in image.boxes})
    note = f"boxes are read from {len(images):,} XML files, Pascal VOC, whose pixels are counted from {first:.0f}"
    return BoxSet(images, tuple(classes), note)


def _xml(name: str, data: bytes) -> ElementTree.Element:
    if b"<!DOCTYPE" in data or b"<!ENTITY" in data:
        raise InvalidInput(f"{name!r} declares entities, which boxes do not need; remove the DOCTYPE")
    try:
        return ElementTree.fromstring(data)
    except ElementTree.ParseError as error:
        raise Malformed(f"{name!r} is not XML ({error}); correct it, or leave it out") from error


def _voc_image(name: str, root: ElementTree.Element, first: float) -> BoxedImage:
    boxes = []
    for number, entry in enumerate(root.iter("object"), start=1):
        about = f"object {number} of {name!r}"
        texts = [entry.findtext(f"bndbox/{edge}") for edge in ("xmin", "ymin", "xmax", "ymax")]
        left, top, right, bottom = _numbers(texts, 4, f"{about} has no `bndbox`; only upright boxes can be tested")
        difficult: Ignored | None = "difficult" if (entry.findtext("difficult") or "0").strip() == "1" else None
        corners = (left - first, top - first, right, bottom)
        boxes.append(_box(corners, (entry.findtext("name") or "").strip(), about, difficult))
    width, height = (_edge(root.findtext(f"size/{side}") or "0", name) for side in ("width", "height"))
    return BoxedImage(name, limited(boxes, name), (width, height) if width and height else None)


def _edge(text: str | None, name: str) -> float:
    return _numbers([text], 1, f"{name!r} has {text!r} where a number of pixels belongs")[0]


# Common parts


def _numbers(values: object, count: int, fault: str) -> list[float]:
    """So many finite numbers. Raises InvalidInput with `fault`."""
    try:
        numbers = [float(value) for value in values]  # type: ignore[attr-defined]
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidInput(fault) from error
    if len(numbers) != count or not all(map(math.isfinite, numbers)):
        raise InvalidInput(fault)
    return numbers


def _box(
    corners: Sequence[float], label: str, about: str, ignore: Ignored | None = None, area: float | None = None
) -> TrueBox:
    try:
        return TrueBox(box=corners, label=label, ignore=ignore, area=area)
    except ValidationError as error:
        faults = error.errors(include_url=False, include_context=False, include_input=False)
        raise InvalidInput(f"{about}: {validation_sentence(faults)}") from error


def limited(boxes: Sequence[TrueBox], name: str, image: object = "") -> tuple[TrueBox, ...]:
    """The boxes of an image in a file. Raises InvalidInput if there are too many."""
    if len(boxes) > MAX_BOXES:
        where = f"image {image} of {name!r}" if image else repr(name)
        raise InvalidInput(f"{where} has {len(boxes):,} boxes; an image may have {MAX_BOXES:,}")
    return tuple(boxes)


_Move = Callable[[float, float, float, float], tuple[float, float]]  # x, y, width and height of the file's own pixels
_UPRIGHT: Mapping[int, _Move] = {
    2: lambda x, y, w, h: (w - x, y),
    3: lambda x, y, w, h: (w - x, h - y),
    4: lambda x, y, w, h: (x, h - y),
    5: lambda x, y, w, h: (y, x),
    6: lambda x, y, w, h: (h - y, x),
    7: lambda x, y, w, h: (h - y, w - x),
    8: lambda x, y, w, h: (y, w - x),
}


def on_image(
    boxed: BoxedImage, file_size: tuple[int, int], orientation: int, size: tuple[int, int]
) -> tuple[TrueBox, ...]:
    """The boxes in pixels of the canonical image.

    `file_size`: the file's width and height with its EXIF `orientation` applied; `size`: after scaling. Fractions are
    of the upright picture, as YOLO's tools read it. Raises InvalidInput where the boxes' picture has another size, or
    where its size does not show whether it is upright.
    """
    drawn_on = boxed.size or file_size
    boxes: Iterable[TrueBox] = boxed.boxes
    if boxed.size not in (None, FRACTIONS):
        width, height = drawn_on
        swapped = orientation >= 5
        as_stored = (file_size[1], file_size[0]) if swapped else file_size
        if (width, height) not in (file_size, as_stored):
            raise InvalidInput(
                f"its boxes are of a picture of {width:g}×{height:g} pixels, but it has {file_size[0]}×{file_size[1]}; "
                "send the picture that was annotated"
            )
        if orientation > 1 and as_stored == file_size:
            raise InvalidInput(
                f"its EXIF orientation {orientation} turned it, and the size of its boxes' picture does not show "
                "whether they are turned, too; save the photograph upright, without EXIF orientation"
            )
        if swapped and (width, height) == as_stored:
            move = _UPRIGHT[orientation]
            boxes = [_moved(box, lambda x, y: move(x, y, width, height)) for box in boxes]
            drawn_on = file_size
    across, down = size[0] / drawn_on[0], size[1] / drawn_on[1]
    if (across, down) == (1, 1):
        return tuple(boxes)
    return tuple(_moved(box, lambda x, y: (x * across, y * down), across * down) for box in boxes)


def _moved(box: TrueBox, move: Callable[[float, float], tuple[float, float]], areas: float = 1) -> TrueBox:
    left, top, right, bottom = box.box
    (x, y), (to_x, to_y) = move(left, top), move(right, bottom)
    corners: Corners = (min(x, to_x), min(y, to_y), max(x, to_x), max(y, to_y))
    return box.model_copy(update={"box": corners, "area": None if box.area is None else box.area * areas})
