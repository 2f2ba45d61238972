"""Format `coco`: files, and `annotations.json` in COCO's layout; a class is a category of the whole image.

Each labelled image has one annotation without a box (its `area` is the image's). `file_name` is relative to the
archive's root. The image's key `contrafact` has all provenance.
"""

from __future__ import annotations

from collections.abc import Iterator

from gateway.export.archive import member_of, temporary_member
from gateway.export.files import Exporting, image_files, json_bytes
from shared.schemas.exports import ExportedImage


def coco(export: Exporting) -> Iterator[bytes]:
    """The archive as a stream of chunks."""
    categories = [{"id": n, "name": name, "supercategory": ""} for n, name in enumerate(export.note.classes, start=1)]
    numbers = {str(category["name"]): category["id"] for category in categories}
    with temporary_member() as images, temporary_member() as annotations:
        info = {"description": f"Contrafact job {export.note.job}: {export.note.task_description}", "version": "1.0"}
        images.write(b'{"info": ' + json_bytes(info) + b', "licenses": [], "categories": ')
        images.write(json_bytes(categories) + b',\n"images": [')
        annotations.write(b'],\n"annotations": [')
        counts = {"images": 0, "annotations": 0}

        def add_image(image: ExportedImage, path: str) -> None:
            counts["images"] += 1
            number = counts["images"]
            entry = {
                "id": number,
                "file_name": path,
                "width": image.width,
                "height": image.height,
                "contrafact": image.model_dump(mode="json"),
            }
            images.write((b",\n" if number > 1 else b"\n") + json_bytes(entry))
            if image.label is None:
                return
            counts["annotations"] += 1
            annotation = {
                "id": counts["annotations"],
                "image_id": number,
                "category_id": numbers[image.label],
                "area": image.width * image.height,
                "iscrowd": 0,
            }
            annotations.write((b",\n" if counts["annotations"] > 1 else b"\n") + json_bytes(annotation))

        yield from image_files(export, add_image)
        annotations.write(b"]}\n")
        yield from member_of("annotations.json", images, annotations)
