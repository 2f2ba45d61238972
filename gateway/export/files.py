"""An export whose images are files: the common part of the formats `folders`, `coco` and `fiftyone`.

contrafact.json                       description of the export
original/CLASS/000012-NAME.png        null_arm/CLASS/000012-METHOD-004.png    counterfactual/CLASS/000012-METHOD-000.png
masks/original/CLASS/000012-NAME.png  the mask of each image of a segmentation job: see `masks` in contrafact.json
manifest.jsonl                        labels of the originals, in the format of `POST /jobs`
provenance.jsonl                      one line per image with all its metadata
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from gateway.export.archive import member, member_of, temporary_member
from gateway.export.names import safe_name
from gateway.results.provenance import packet_of
from shared.schemas.exports import MASKS, NOTE_NAME, ExportedImage, ExportNote
from shared.xmp import with_xmp


@dataclass(frozen=True, slots=True)
class Exporting:
    """One export in progress: its note, a folder for each label, the images, and a function that reads a PNG."""

    note: ExportNote
    folders: Mapping[str | None, str]
    images: Iterator[ExportedImage]
    read: Callable[[str], bytes]

    def path(self, image: ExportedImage) -> str:
        """The path of the image in the archive."""
        if image.arm == "original":
            stem = image.source_name.replace("\\", "/").rpartition("/")[2].rpartition(".")[0]
            name = f"{image.position:06}-{safe_name(stem)}"
        else:
            name = f"{image.position:06}-{safe_name(image.method)}-{image.ordinal:03}"
        return f"{image.arm}/{self.folders[image.label]}/{name}.png"

    def picture(self, image: ExportedImage) -> bytes:
        """The PNG of the image; a generated one carries its provenance as XMP."""
        png, term = self.read(image.image), image.digital_source_type
        if not term:
            return png
        return with_xmp(png, packet_of(term, self.note.job, image.id, image.arm, image.method, image.source_digest))


def note_member(export: Exporting) -> Iterator[bytes]:
    """`contrafact.json`: first in every archive."""
    return member(NOTE_NAME, json_bytes(export.note.model_dump(mode="json"), indent=1) + b"\n")


def image_files(export: Exporting, add_image: Callable[[ExportedImage, str], None]) -> Iterator[bytes]:
    """The archive without the tables of the format. Calls `add_image` with each image and its path, in order."""
    yield from note_member(export)
    with temporary_member() as manifest, temporary_member() as provenance:
        for image in export.images:
            path = export.path(image)
            yield from member(path, export.picture(image))
            if image.mask is not None:
                yield from member(MASKS + path, export.read(image.mask))
            if image.arm == "original":
                manifest.write(json_bytes({"file": path, "label": image.label}) + b"\n")
            provenance.write(json_bytes({"file": path, **image.model_dump(mode="json")}) + b"\n")
            add_image(image, path)
        if manifest.tell():
            yield from member_of("manifest.jsonl", manifest)
        yield from member_of("provenance.jsonl", provenance)


def json_bytes(value: object, indent: int | None = None) -> bytes:
    """JSON as UTF-8 on one line, unless indented."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, indent=indent).encode()
