"""The masks of one job: each is stored as a label map and assigned to its image. No database, no HTTP.

An image whose mask is unusable or of another size fails with that reason; the others go on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from gateway.intake.archives import Member
from gateway.intake.masks import MaskReader, is_image, is_mask, mask_values, match_masks
from gateway.intake.sources import (
    ImageStore,
    IntakeLimits,
    KeptImage,
    KeptMask,
    NamedFile,
    SourceFile,
    put_once,
    refuse_if_unusable,
    refuse_too_many_bytes,
)
from shared.media.images import decode_mask, from_array
from shared.media.manifests import ManifestRow
from shared.problems import InvalidInput, TooLarge

SAME_SIZE = (2, 3, 4)  # EXIF orientations that mirror an image or turn it by 180°
TRANSPOSING = (5, 6, 7, 8)  # those that turn it by 90°: width and height are swapped


@dataclass(frozen=True, slots=True)
class SentMasks:
    """The reader of a job's masks, and the masks that were sent as separate files.

    `labelled`: the masks are not the ground truth, so the images may have labels.
    """

    reader: MaskReader
    files: Sequence[NamedFile] = ()
    labelled: bool = False


class MaskShelf:
    """The masks received so far by name: stored, or the reason why they are unusable."""

    def __init__(self, reader: MaskReader, store: ImageStore, limits: IntakeLimits) -> None:
        self._reader, self._store, self._limits = reader, store, limits
        self._kept: dict[str, KeptMask | str] = {}

    def take(self, member: Member) -> None:
        """Read a mask and store its label map."""
        self._kept[member.name] = self._pair(member)

    def take_all(self, sent: Iterable[Member]) -> None:
        """Read and store masks from a form. Raises InvalidInput for duplicate names."""
        for member in sent:
            if member.name in self._kept:
                raise InvalidInput(f"there are two masks named {member.name!r}; give each its own name")
            self.take(member)

    def take_out(self, incoming: Iterable[Member], left_out: dict[str, str]) -> Iterator[Member]:
        """Yield the files that may be images; read and store those in folders of masks, or note why they are not."""
        for member in incoming:
            if is_mask(member.name):
                if self._reader.reads(member.name):
                    self.take(member)
                else:
                    left_out[member.name] = "masks of Cityscapes in values that the spec does not describe"
            else:
                yield member

    def keep_only(self, folder: str) -> None:
        """Drop the masks in other folders."""
        self._kept = {name: mask for name, mask in self._kept.items() if name.startswith(folder)}

    def assign_to(
        self, sources: Sequence[SourceFile], rows: Sequence[ManifestRow] | None, labelled: bool = False
    ) -> list[SourceFile]:
        """Each source image with its mask, by the manifest's rows, else by equal stems.

        Raises InvalidInput if there are no masks, if they cannot be matched, or if no image is usable.
        """
        if not self._kept:
            raise InvalidInput(
                "the spec announces masks, but none was sent: put them into a folder `masks` of the archive, or send "
                "them as parts, -F masks=@a.png beside -F images=@a.jpg"
            )
        if rows is not None and not labelled and any(row.label for row in rows):
            raise InvalidInput(
                "the manifest has labels, but the ground truth of this job is masks; leave out one of them"
            )
        named = None if rows is None else [row.mask for row in rows]
        return self.pair(sources, match_masks([source.name for source in sources], list(self._kept), named))

    def pair(self, sources: Sequence[SourceFile], names: Sequence[str | None]) -> list[SourceFile]:
        """Each source image with the mask of this name (None: no mask). Raises InvalidInput if no image is usable."""
        matched = [
            source if name is None else _with_mask(source, name, self._kept[name])
            for source, name in zip(sources, names, strict=True)
        ]
        refuse_if_unusable(matched)
        return matched

    def _pair(self, member: Member) -> KeptMask | str:
        if member.data is None:
            return member.problem
        try:
            return keep_mask(self._store, member.data, self._reader, self._limits)
        except (InvalidInput, TooLarge) as problem:
            return problem.detail


def keep_mask(store: ImageStore, data: bytes, reader: MaskReader, limits: IntakeLimits) -> KeptMask:
    """Read a mask, scale it as its image, and store its label map once.

    Raises the errors of `keep_image` and `MaskReader.read`.
    """
    refuse_too_many_bytes(data, limits)
    places, file_size = reader.read(data, limits.image_pixels, limits.working_side)
    pixels = np.bincount(places.ravel(), minlength=len(reader.classes)).tolist()
    counts = {name: count for name, count in zip(reader.classes, pixels, strict=False) if count}  # without void
    if not counts:
        raise InvalidInput("all of its pixels are void; leave the mask out, or name its classes")
    stored = put_once(store, from_array(places), data)
    classes, size = tuple(counts), (stored.width, stored.height)
    return KeptMask(stored.digest, *size, stored.bytes, classes, file_size, tuple(counts.values()))


def keep_values(store: ImageStore, data: bytes, limits: IntakeLimits) -> KeptImage:
    """Store the raw values of a mask before its spec is known: indices, grey values or colours.

    Raises the errors of `keep_image`, and InvalidInput for a file that is not a PNG.
    """
    refuse_too_many_bytes(data, limits)
    values = mask_values(data, limits.image_pixels, limits.working_side)
    return put_once(store, from_array(*values), data)


def keep_colours(store: ImageStore, data: bytes, limits: IntakeLimits) -> KeptImage:
    """Store the colours of a mask before its spec is known: its own or its palette's, neither mixed nor converted.

    Raises the errors of `keep_image`.
    """
    refuse_too_many_bytes(data, limits)
    return put_once(store, from_array(*decode_mask(data, "RGB", limits.image_pixels, limits.working_side)), data)


def images_beside_masks(sources: Sequence[SourceFile]) -> list[SourceFile]:
    """The images in folders named `images`, or all if there is none. Other folders may hold unrelated images."""
    inside = [source for source in sources if is_image(source.name)]
    return inside or list(sources)


def _with_mask(source: SourceFile, name: str, mask: KeptMask | str) -> SourceFile:
    if source.image is None:
        return source
    if isinstance(mask, str):
        return replace(source, image=None, failure=f"its mask {name!r} cannot be used: {mask}")
    if (failure := _misfit(name, mask, source.image)) is not None:
        return replace(source, image=None, failure=failure)
    return replace(source, mask=mask)


def _misfit(name: str, mask: KeptMask, image: KeptImage) -> str | None:
    """Why a mask does not fit its image, or may not: an EXIF orientation turned the image alone. None if it fits."""
    turned = image.orientation in TRANSPOSING
    if (sizes := _different_sizes(mask, image)) is not None:
        swapped = image.file_size is not None and mask.file_size == image.file_size[::-1]
        advice = "turn the mask as its photograph's EXIF says" if turned and swapped else "make them of one size"
        return f"its mask {name!r} has {sizes}; {advice}"
    if image.orientation in SAME_SIZE or (turned and mask.width == mask.height):
        return (
            f"its EXIF orientation {image.orientation} turned it, and the size of its mask {name!r} does not show "
            "whether that is turned, too; save the photograph upright, without EXIF orientation, with a mask that fits"
        )
    return None


def _different_sizes(mask: KeptMask, image: KeptImage) -> str | None:
    """Both sizes in words if mask and image differ, else None.

    Compares the sizes of the files, or of the stored images if the size of the image's file is unknown.
    """
    stored = (mask.width, mask.height), (image.width, image.height)
    mask_size, image_size = stored if image.file_size is None else (mask.file_size, image.file_size)
    if mask_size == image_size:
        return None
    return "{}×{} pixels, the image {}×{}".format(*mask_size, *image_size)
