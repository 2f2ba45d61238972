"""Format `coco`: files, and `annotations.json` in COCO's layout; a class is a category of the whole image.

Each labelled image has one annotation without a box (its `area` is the image's). `file_name` is relative to the
archive's root. The image's key `contrafact` has all provenance.
"""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import JsonValue

from gateway.export.archive import member_of, temporary_member
from gateway.export.files import Exporting, image_files, json_bytes
from shared.schemas.exports import ExportedImage


def coco(export: Exporting) -> Iterator[bytes]:
    """The archive as a stream of chunks."""
    numbers = {name: number for number, name in enumerate(export.note.classes, start=1)}
    categories = [{"id": number, "name": name, "supercategory": ""} for name, number in numbers.items()]
    with temporary_member() as images, temporary_member() as annotations:
        info = {"description": f"Contrafact job {export.note.job}: {export.note.task_description}", "version": "1.0"}
        images.write(b'{"info": ' + json_bytes(info) + b', "licenses": [], "categories": ')
        images.write(json_bytes(categories) + b',\n"images": [')
        annotations.write(b'],\n"annotations": [')
        counts = {"images": 0, "annotations": 0}

        def add_image(image: ExportedImage, path: str) -> None:
            counts["images"] += 1
            number = counts["images"]
            images.write((b",\n" if number > 1 else b"\n") + json_bytes(_image_entry(image, path, number)))
            if image.label is None:
                return
            counts["annotations"] += 1
            annotation = _annotation(image, counts["annotations"], number, numbers[image.label])
            annotations.write((b",\n" if counts["annotations"] > 1 else b"\n") + json_bytes(annotation))

        yield from image_files(export, add_image)
        annotations.write(b"]}\n")
        yield from member_of("annotations.json", images, annotations)


def _image_entry(image: ExportedImage, path: str, number: int) -> dict[str, JsonValue]:
    return {
        "id": number,
        "file_name": path,
        "width": image.width,
        "height": image.height,
        "contrafact": image.model_dump(mode="json"),
    }


def _annotation(image: ExportedImage, number: int, image_number: int, category: int) -> dict[str, JsonValue]:
    return {
        "id": number,
        "image_id": image_number,
        "category_id": category,
        "area": image.width * image.height,
        "iscrowd": 0,
    }
