"""Source images as intake produces them: stored, or failed with a reason."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO, Protocol

from gateway.intake.archive_members import MAX_NAME_CHARACTERS
from gateway.intake.archives import Member
from shared.characters import visible
from shared.media.images import CanonicalImage, Mode, canonical
from shared.media.storage import image_key
from shared.problems import InvalidInput, TooLarge
from shared.schemas.boxes import TrueBox
from shared.schemas.questions import ImageQuestion

SEND_IMAGES = "send PNG, JPEG, WebP, BMP or TIFF images"
LISTED = 5


class ImageStore(Protocol):
    """The object store as intake uses it (`gateway.storage.images.ProtectedStore`)."""

    def exists(self, key: str) -> bool:
        """Whether an object with this key exists. If so, it is kept until the image's row is written."""
        ...

    def put(self, key: str, data: bytes) -> None:
        """Store `data`, all or nothing."""
        ...


@dataclass(frozen=True, slots=True)
class IntakeLimits:
    """Bytes of one image file, pixels of one image, images of one job, unpacked bytes of one archive.

    Images whose longer side exceeds `working_side` pixels are scaled down to it.
    """

    image_bytes: int
    image_pixels: int
    images: int
    archive_bytes: int
    working_side: int = 2_048


@dataclass(frozen=True, slots=True)
class NamedFile:
    """An uploaded file: the sender's name for it (data, never a path) and its content."""

    name: str
    content: IO[bytes]


@dataclass(frozen=True, slots=True)
class KeptImage:
    """An image whose canonical PNG is in the object store; `upload` is the SHA-256 of the uploaded file.

    `mode` is L for the class indices of a mask. `file_size`: width and height before scaling, None if unknown.
    `orientation`: the file's EXIF orientation; None if unknown, since rows of uploads do not keep it.
    """

    digest: str
    upload: str
    width: int
    height: int
    bytes: int
    mode: Mode = "RGB"
    file_size: tuple[int, int] | None = None
    orientation: int | None = None


@dataclass(frozen=True, slots=True)
class KeptMask:
    """A mask whose label map (grey PNG: class indices, 255 for void) is in the object store, and the classes in it.

    The mask of an object has no `classes`: it is not a ground truth. `pixels`: how many each of the `classes` has.
    """

    digest: str
    width: int
    height: int
    bytes: int
    classes: tuple[str, ...]
    file_size: tuple[int, int]
    pixels: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One position of a job: a stored image with its ground truth, or a failure. A `group` counts as one image.

    `boxes` are in pixels of the stored image. `questions` are what a model is asked about it.
    `upload`: the digest of a file that a dry run lists and that is not uploaded yet.
    """

    name: str
    label: str | None
    image: KeptImage | None
    failure: str = ""
    mask: KeptMask | None = None
    group: str | None = None
    upload: str = ""
    boxes: tuple[TrueBox, ...] | None = None
    questions: tuple[ImageQuestion, ...] | None = None


def keep_image(store: ImageStore, data: bytes, limits: IntakeLimits) -> KeptImage:
    """Decode a file, scale it down to the working side, and put its canonical PNG into the store, once.

    Raises TooLarge, Malformed or InvalidInput when it is not an image that Contrafact can use.
    """
    refuse_too_many_bytes(data, limits)
    image = canonical(data, max_pixels=limits.image_pixels, working_side=limits.working_side)
    return put_once(store, image, data)


def refuse_too_many_bytes(data: bytes, limits: IntakeLimits) -> None:
    """Raise TooLarge for an image file of too many bytes."""
    if len(data) > limits.image_bytes:
        raise TooLarge(f"the file is larger than {limits.image_bytes:,} bytes; shrink it")


def put_once(store: ImageStore, image: CanonicalImage, file: bytes) -> KeptImage:
    """Store a decoded image unless the store has it."""
    if not store.exists(image_key(image.digest)):
        store.put(image_key(image.digest), image.png)
    upload, size = hashlib.sha256(file).hexdigest(), len(image.png)
    return KeptImage(
        image.digest, upload, image.width, image.height, size, image.mode, image.file_size, image.orientation
    )


def truths_of(source: SourceFile) -> list[str]:
    """The classes in an image's ground truth: its label, or those of its mask or boxes; empty without ground truth.

    Those of questions are the labels by which answers are scored.
    """
    if source.questions is not None:
        return list(dict.fromkeys(question.label for question in source.questions if question.answers))
    if source.boxes is not None:
        return list(dict.fromkeys(box.label for box in source.boxes if box.ignore is None))
    if source.mask is not None and source.mask.classes:
        return list(source.mask.classes)
    return [] if source.label is None else [source.label]


def is_labelled(source: SourceFile) -> bool:
    """Whether an image has a ground truth; boxes may say that it has no object."""
    return source.boxes is not None or bool(truths_of(source))


def read_file(file: NamedFile, limits: IntakeLimits) -> Member:
    """Read a file up to the size limit, as a `Member`. Raises InvalidInput for a long name."""
    file.content.seek(0)
    if len(file.name) > MAX_NAME_CHARACTERS:
        raise InvalidInput(f"a file name has more than {MAX_NAME_CHARACTERS:,} characters; shorten it")
    return Member(visible(file.name), file.content.read(limits.image_bytes + 1))


def refuse_if_unusable(sources: Sequence[SourceFile]) -> None:
    """Raise InvalidInput, with the first reasons, if no source image is usable."""
    if not sources:
        raise InvalidInput(f"the archive holds no files; {SEND_IMAGES}")
    if all(source.failure for source in sources):
        reasons = "; ".join(f"{source.name!r}: {source.failure}" for source in sources[:LISTED])
        raise InvalidInput(f"none of the {len(sources)} images can be used: {reasons}")
