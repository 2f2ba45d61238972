"""An export whose images are files: the common part of the formats `folders`, `coco` and `fiftyone`.

contrafact.json                       description of the export
original/CLASS/000012-NAME.png        null_arm/CLASS/000012-METHOD-004.png    counterfactual/CLASS/000012-METHOD-000.png
masks/original/CLASS/000012-NAME.png  the mask of each image of a segmentation job: see `masks` in contrafact.json
manifest.jsonl                        labels or boxes of the originals, in the format of `POST /jobs`
provenance.jsonl                      one line per image with all its metadata

A tar archive as a stream of chunks. A tar has no directory at its end, so memory does not grow with the export.

Members that are complete only at the end (tables of all images) are written to temporary files first. All times and
owners are empty, so the same rows give the same bytes.

Names that are safe on any file system.
"""

from __future__ import annotations

import json
import tarfile
import tempfile
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import IO

from gateway.results.provenance import packet_of
from shared.media.xmp import with_xmp
from shared.schemas.exports import MASKS, NOTE_NAME, ExportedImage, ExportNote

MOST_BYTES = 80  # of a path component, so that a member's path fits the 255 bytes of most file systems
UNLABELLED = "unlabelled"
_PUNCTUATION = " ._-"
_DEVICES = frozenset({"con", "prn", "aux", "nul"} | {f"{name}{n}" for name in ("com", "lpt") for n in range(1, 10)})
END = b"\0" * (2 * tarfile.BLOCKSIZE)
CHUNK_BYTES = 1024**2


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
                has_more = image.boxes is not None or image.questions is not None
                row = image.model_dump(
                    mode="json",
                    include={"label", "boxes", "questions"},
                    exclude_none=has_more,
                    exclude_defaults=has_more,
                )
                manifest.write(json_bytes({"file": path, **row}) + b"\n")
            provenance.write(json_bytes({"file": path, **image.model_dump(mode="json")}) + b"\n")
            add_image(image, path)
        if manifest.tell():
            yield from member_of("manifest.jsonl", manifest)
        yield from member_of("provenance.jsonl", provenance)


def json_bytes(value: object, indent: int | None = None) -> bytes:
    """JSON as UTF-8 on one line, unless indented."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, indent=indent).encode()


def member(name: str, data: bytes) -> Iterator[bytes]:
    """A file of the archive."""
    yield _header(name, len(data)) + data + _padding(len(data))


def member_of(name: str, *files: IO[bytes]) -> Iterator[bytes]:
    """A file of the archive: the concatenated contents of files, each from its beginning to its current position."""
    sizes = [file.tell() for file in files]
    yield _header(name, sum(sizes))
    for file, size in zip(files, sizes, strict=True):
        file.seek(0)
        while size and (chunk := file.read(min(size, CHUNK_BYTES))):
            size -= len(chunk)
            yield chunk
    yield _padding(sum(sizes))


def temporary_member() -> IO[bytes]:
    """A temporary file for a member that is written later. It stays in memory while it is small."""
    return tempfile.SpooledTemporaryFile(max_size=CHUNK_BYTES)


def _header(name: str, size: int) -> bytes:
    info = tarfile.TarInfo(name)
    info.size = size
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "strict")


def _padding(size: int) -> bytes:
    return b"\0" * (-size % tarfile.BLOCKSIZE)


def safe_name(text: str) -> str:
    """`text` as a path component: letters and digits of any script, spaces, `.`, `_` and `-`; the rest becomes `_`.

    The name is not empty, hidden, `..` or a device of Windows, and has at most 80 bytes of UTF-8.
    """
    name = "".join(
        c if c in _PUNCTUATION or unicodedata.category(c)[0] in "LMN" else "_"
        for c in unicodedata.normalize("NFC", text)
    )
    name = name.lstrip(" .-").encode()[:MOST_BYTES].decode(errors="ignore").rstrip(" .")
    return f"{name}_" if name.partition(".")[0].lower() in _DEVICES or not name else name


def class_folders(labels: Iterable[str]) -> dict[str | None, str]:
    """A folder for each label, and for images without one (None). Folders differ in more than upper and lower case."""
    folders: dict[str | None, str] = {None: UNLABELLED}
    used = {UNLABELLED}
    for label in dict.fromkeys(labels):
        folder = plain = safe_name(label)
        number = 1
        while folder.casefold() in used:
            number += 1
            folder = f"{plain}~{number}"
        used.add(folder.casefold())
        folders[label] = folder
    return folders
