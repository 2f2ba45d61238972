"""Formats of boxes: what people have is read, COCO and YOLO are written, and nothing moves by more than 1e-9."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from shared.media.box_formats import (
    FRACTIONS,
    BoxedImage,
    BoxSet,
    boxes_of,
    on_image,
    read_coco,
    write_coco,
    write_yolo,
)
from shared.media.images import canonical
from shared.media.instance_masks import read_instances
from shared.problems import InvalidInput, Malformed
from shared.schemas.boxes import TrueBox

CLASSES = ("car", "traffic light", "Fußgänger")
CATEGORIES = [{"id": 3, "name": "car"}, {"id": 10, "name": "traffic light"}, {"id": 90, "name": "Fußgänger"}]


def voc(*objects: str, size: tuple[int, int] = (40, 30)) -> bytes:
    sides = f"<size><width>{size[0]}</width><height>{size[1]}</height><depth>3</depth></size>"
    return f"<annotation><filename>other.jpg</filename>{sides}{''.join(objects)}</annotation>".encode()


def voc_object(left: float, top: float, right: float, bottom: float, name: str = "car", difficult: int = 0) -> str:
    edges = zip(("xmin", "ymin", "xmax", "ymax"), (left, top, right, bottom), strict=True)
    corners = "".join(f"<{edge}>{value}</{edge}>" for edge, value in edges)
    return f"<object><name>{name}</name><difficult>{difficult}</difficult><bndbox>{corners}</bndbox></object>"


def coco(*annotations: Mapping[str, Any], **image: Any) -> bytes:
    entry = {"id": 397133, "file_name": "a.jpg", "width": 40, "height": 30, **image}
    of_image = [{"id": 7, "image_id": entry["id"], "category_id": 10, **annotation} for annotation in annotations]
    return json.dumps({"images": [entry], "categories": CATEGORIES, "annotations": of_image}).encode()


def only(files: Mapping[str, bytes], name: str = "images/a.jpg") -> BoxedImage:
    (image,), _ = boxes_of(files, [name], read_instances)
    assert image is not None
    return image


def test_coco_has_sparse_ids_corners_and_sides_and_crowds() -> None:
    image = only(
        {
            "annotations/instances_val.json": coco(
                {"bbox": [10, 5, 20, 10], "area": 150.5},
                {"bbox": [0, 0, 40, 30], "iscrowd": 1, "category_id": 3, "segmentation": {"counts": []}},
                {"bbox": [3, 3, 0, 4]},
            )
        }
    )
    assert image.boxes == (
        TrueBox(box=(10, 5, 30, 15), label="traffic light", area=150.5),
        TrueBox(box=(0, 0, 40, 30), label="car", ignore="crowd"),
    )
    assert image.size == (40, 30)


def test_yolo_has_fractions_names_by_number_and_empty_files() -> None:
    files = {
        "data.yaml": "path: ../x\nnames:\n  0: car\n  1: traffic light\n  2: Fußgänger\n".encode(),
        "labels/val/a.txt": b"2 0.5 0.5 0.25 0.5\n",
        "labels/val/b.txt": b"",
        "labels/val/unused.txt": b"9 9 9",
    }
    (a, b, c), read = boxes_of(files, [f"images/val/{name}.jpg" for name in "abc"])
    assert a is not None
    assert on_image(a, (80, 40), 1, (80, 40)) == (TrueBox(box=(30, 10, 50, 30), label="Fußgänger"),)
    assert (b and b.boxes, c, read.classes) == ((), None, CLASSES)


def test_voc_counts_pixels_from_one() -> None:
    files = {"Annotations/a.xml": voc(voc_object(1, 1, 40, 30), voc_object(11, 6, 20, 15, "bus", 1))}
    image = only(files, "JPEGImages/a.jpg")
    assert image.boxes == (
        TrueBox(box=(0, 0, 40, 30), label="car"),
        TrueBox(box=(10, 5, 20, 15), label="bus", ignore="difficult"),
    )


def test_a_set_with_an_edge_at_zero_counts_from_zero() -> None:
    files = {"a.xml": voc(voc_object(0, 3, 40, 30)), "b.xml": voc(voc_object(10, 5, 20, 15))}
    (a, b), read = boxes_of(files, ["a.jpg", "b.jpg"])
    assert a is not None
    assert b is not None
    assert (a.boxes[0].box, b.boxes[0].box) == ((0, 3, 40, 30), (10, 5, 20, 15))
    assert "counted from 0" in read.note


def numbers_png(values: Any) -> bytes:
    data = io.BytesIO()
    Image.fromarray(np.array(values)).save(data, "PNG")
    return data.getvalue()


def test_masks_of_instances_give_the_boxes_of_their_pixels() -> None:
    """Cityscapes as downloaded: a person, a car behind a post, and two groups of cars, which are crowds."""
    values = np.zeros((30, 40), np.uint16)
    values[2:8, 3:9], values[10:12, 5:10], values[10:12, 11:20] = 24_000, 26_001, 26_001
    values[20:25, 0:4], values[20:25, 30:40], values[0, 0] = 26, 26, 7_000
    files = {"s/gtFine/val/aa/aa_1_gtFine_instanceIds.png": numbers_png(values)}
    (image,), read = boxes_of(files, ["s/leftImg8bit/val/aa/aa_1_leftImg8bit.png"], read_instances)
    assert image is not None
    assert (image.size, read.classes[:3]) == ((40, 30), ("person", "rider", "car"))
    assert image.boxes == (
        TrueBox(box=(0, 20, 4, 25), label="car", ignore="crowd"),
        TrueBox(box=(30, 20, 40, 25), label="car", ignore="crowd"),
        TrueBox(box=(3, 2, 9, 8), label="person"),
        TrueBox(box=(5, 10, 20, 12), label="car", area=28),
    )
    assert on_image(image, (40, 30), 1, (20, 15))[3] == TrueBox(box=(2.5, 5, 10, 6), label="car", area=7)
    named = BoxSet((image._replace(file="a.jpg"),), read.classes)
    assert_same(only({"a.json": json.dumps(write_coco(named)).encode()}, "a.jpg"), image)


ONE = b'{"classes": {"car": 1}, "per_class": null}'


def test_instances_json_says_what_the_values_mean() -> None:
    values = np.array([[0, 1, 1], [2, 2, 0]], np.uint8)
    mask = {"instances/a.png": numbers_png(values)}
    one = only({**mask, "instances.json": ONE})
    assert [box.box for box in one.boxes] == [(1, 0, 3, 1), (0, 1, 2, 2)]
    two = only({**mask, "instances.json": b'{"classes": {"bus": 1}, "per_class": 2}'})
    assert [(box.label, box.ignore) for box in two.boxes] == [("bus", "crowd"), ("bus", None)]
    with pytest.raises(InvalidInput, match=r"add instances\.json"):
        only(mask)
    with pytest.raises(InvalidInput, match="one channel"):
        only({**mask, "instances/a.png": numbers_png(np.zeros((4, 4, 3), np.uint8)), "instances.json": ONE})


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"a.json": b"{"}, "not JSON"),
        ({"a.json": coco({"bbox": [1, 2, 3]})}, "bbox"),
        ({"a.json": coco({"bbox": [1, 2, 3, float("nan")]})}, "bbox"),
        ({"a.json": coco({"bbox": [1, 2, 3, 4], "category_id": 4})}, "category_id 4"),
        ({"a.json": coco({"bbox": [1, 2, 3, 4], "image_id": []})}, "image_id"),
        ({"a.json": coco({"bbox": [1, 2, 3, 10**400]})}, "bbox"),
        ({"a.json": b'{"annotations": [], "images": [{"id": Infinity}], "categories": []}'}, "images"),
        (
            {"a.json": b'{"annotations": [], "images": [{"id": 1, "width": "w", "height": 2}], "categories": []}'},
            "width",
        ),
        ({"a.json": coco({"bbox": [1, 2, 3, 4], "attributes": {"rotation": 30.0}})}, "rotated"),
        ({"a.json": coco({"keypoints": [1, 2, 2]})}, "bbox"),
        ({"a.json": b'{"annotations": [{}], "images": 3, "categories": []}'}, "images"),
        ({"a.json": coco(), "b.json": coco()}, "two files"),
        ({"a.json": coco(), "images/a.xml": voc()}, "keep one"),
        ({"images/a.txt": b"0 .5 .5 .1 .1"}, "data.yaml"),
        ({"images/a.txt": b"0 .5 .5 .1 .1 .9", "classes.txt": b"car\n"}, "predictions"),
        ({"images/a.txt": b"0 .1 .1 .2 .1 .2 .2 .1 .2", "classes.txt": b"car\n"}, "rotated"),
        ({"images/a.txt": b"1 .5 .5 .1 .1", "classes.txt": b"car\n"}, "class 1"),
        ({"images/a.txt": b"0 50 50 10 10", "classes.txt": b"car\n"}, "fractions"),
        ({"images/a.txt": b"0 .5 .5 .1 .1", "data.yaml": b"names: {0: car, 2: bus}"}, "each once"),
        ({"images/a.txt": b"0 .5 .5 .1 .1", "data.yaml": b"names: {0: car, bus: 1}"}, "each once"),
        ({"images/a.txt": b"0 .5 .5 .1 .1", "data.yaml": b"names: [[car]]"}, "list of names"),
        ({"images/a.txt": b"0 .5 .5 .1 .1", "data.yaml": b"names: [2001-99-99]"}, "not YAML"),
        ({"images/a.txt": b"0 .5 .5 .1 .1", "data.yaml": b"names: [car]\nkpt_shape: [17, 3]"}, "poses"),
        ({"a.xml": voc(voc_object(30, 1, 20, 5))}, "no area"),
        ({"a.xml": b"<annotation><object><polygon/></object></annotation>"}, "bndbox"),
        ({"a.xml": b"<!DOCTYPE x [<!ENTITY e 'e'>]><annotation>&e;</annotation>"}, "DOCTYPE"),
        ({"notes.json": b"[]"}, "none was sent"),
    ],
)
def test_what_cannot_be_read_is_refused_with_what_to_do(files: Mapping[str, bytes], words: str) -> None:
    with pytest.raises((InvalidInput, Malformed), match=words):
        boxes_of(files, ["images/a.jpg"])


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("upright", [False, True])
def test_boxes_lie_where_the_canonical_image_has_the_object(orientation: int, upright: bool) -> None:
    """Of a white rectangle on black, drawn on the pixels as they are stored, or on the upright picture."""
    pixels = np.zeros((30, 40, 3), np.uint8)
    pixels[4:10, 6:21] = 255
    file, exif = io.BytesIO(), Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(pixels).save(file, "PNG", exif=exif)
    image = canonical(file.getvalue(), working_side=20)
    true = np.argwhere(np.asarray(Image.open(io.BytesIO(image.png)).convert("L")) > 127)
    (top, left), (bottom, right) = true.min(axis=0), true.max(axis=0) + 1
    size, box = (40, 30), (6, 4, 21, 10)
    if upright:
        bright = np.argwhere(np.asarray(Image.open(io.BytesIO(canonical(file.getvalue()).png)).convert("L")) > 127)
        size, box = image.file_size, (*bright.min(axis=0)[::-1], *(bright.max(axis=0) + 1)[::-1])
    boxed = BoxedImage("a.png", (TrueBox(box=box, label="car", area=50),), size)
    if orientation in (2, 3, 4):
        with pytest.raises(InvalidInput, match="orientation"):
            on_image(boxed, image.file_size, orientation, (image.width, image.height))
        return
    (found,) = on_image(boxed, image.file_size, orientation, (image.width, image.height))
    assert found.box == pytest.approx((left, top, right, bottom), abs=0.51)
    assert found.area == pytest.approx(50 / 4)


def test_boxes_of_a_picture_of_another_size_are_refused() -> None:
    boxed = BoxedImage("a.png", (), (80, 30))
    with pytest.raises(InvalidInput, match="80×30"):
        on_image(boxed, (40, 30), 1, (40, 30))


@st.composite
def box_sets(draw: st.DrawFn) -> BoxSet:
    images = []
    for number in range(draw(st.integers(0, 3))):
        size = (draw(st.integers(1, 9_000)), draw(st.integers(1, 9_000)))
        boxes = []
        for _ in range(draw(st.integers(0, 4))):
            left, top = (draw(st.floats(-side / 2, side)) for side in size)
            width, height = (draw(st.floats(side / 1_000, side)) for side in size)
            area = draw(st.none() | st.floats(1, width * height / 2)) if width * height > 4 else None
            ignore = draw(st.sampled_from([None, None, "crowd", "difficult"]))
            box, label = (left, top, left + width, top + height), draw(st.sampled_from(CLASSES))
            boxes.append(TrueBox(box=box, label=label, ignore=ignore, area=area))
        images.append(BoxedImage(f"folder/{number}.jpg", tuple(boxes), size))
    return BoxSet(tuple(images), CLASSES)


def assert_same(read: BoxedImage | None, written: BoxedImage) -> None:
    assert read is not None
    assert len(read.boxes) == len(written.boxes)
    side = max(written.size or FRACTIONS)
    for one, other in zip(read.boxes, written.boxes, strict=True):
        assert one.box == pytest.approx(other.box, abs=1e-9 * side)
        assert (one.label, one.ignore) == (other.label, other.ignore)
        assert one.area == pytest.approx(other.area)


@settings(max_examples=60, deadline=None)
@given(box_sets())
def test_coco_comes_back_as_it_was(boxes: BoxSet) -> None:
    read = read_coco(json.loads(json.dumps(write_coco(boxes))))
    assert (read.classes, len(read.images)) == (CLASSES, len(boxes.images))
    for one, other in zip(read.images, boxes.images, strict=True):
        assert (one.file, one.size) == (other.file, other.size)
        assert_same(one, other)


@settings(max_examples=60, deadline=None)
@given(box_sets())
def test_yolo_comes_back_as_it_was_but_for_ignored_objects(boxes: BoxSet) -> None:
    plain = [
        image._replace(boxes=tuple(box.model_copy(update={"area": None}) for box in image.boxes if box.ignore is None))
        for image in boxes.images
    ]
    if not plain:
        return
    read, back = boxes_of(write_yolo(boxes), [f"images/{image.file}" for image in plain])
    assert back.classes == CLASSES
    for one, other in zip(read, plain, strict=True):
        assert one is not None
        assert other.size is not None
        size = (int(other.size[0]), int(other.size[1]))
        assert_same(one._replace(boxes=on_image(one, size, 1, size)), other)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 20), st.integers(1, 15), st.integers(21, 40), st.integers(16, 30)), max_size=5)
)
def test_voc_boxes_are_their_pixels(corners: list[tuple[int, int, int, int]]) -> None:
    image = only({"a.xml": voc(*(voc_object(*edges) for edges in corners))}, "a.jpg")
    assert [box.box for box in image.boxes] == [(x - 1, y - 1, to_x, to_y) for x, y, to_x, to_y in corners]
