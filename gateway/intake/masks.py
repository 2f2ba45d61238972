"""Checks segmentation masks and converts them to class indices. No database, no HTTP.

    PNG of indices, grey values or colours ──MaskSpec──► index of the class of each pixel, 255 for void
    masks/a.png ──same stem, or the manifest's column `mask`──► images/a.jpg

A mask must have exactly the size of its image. If intake scales an image down, it scales the mask to the same size and
takes the value at the centre of each pixel (`shared.media.images.decode_mask`), so values are never mixed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from shared.media.images import Pixels, PngHeader, decode_mask, png_header
from shared.media.label_maps import VOID
from shared.media.manifests import shared_folder
from shared.problems import InvalidInput, quote
from shared.schemas.masks import MaskSpec

FOLDERS = {"mask": "masks", "image": "images"}
# Cityscapes has leftImg8bit/val/CITY/NAME_leftImg8bit.png beside gtFine/val/CITY/NAME_gtFine_labelIds.png and others.
CITYSCAPES = {"mask": ("gtfine", "gtcoarse"), "image": ("leftimg8bit", "rightimg8bit")}
_CITYSCAPES_MASK = re.compile(r"(?P<stem>.+)_gt(Fine|Coarse)_(?P<values>[A-Za-z]+)$")
_PALETTE, _GREY = 3, 0
_UNKNOWN = 254


class FileValues(NamedTuple):
    """Values of a mask's pixels, scaled down to the working side, and width and height of its file."""

    pixels: np.ndarray
    file_size: tuple[int, int]


@dataclass(frozen=True, slots=True)
class MaskReader:
    """Reads masks by their spec. `classes` are the job's: the spec's names after the label map, without duplicates.

    `places` maps each value (an index, or a colour as 0xRRGGBB) to its index in `classes`, or to `VOID`.
    """

    classes: tuple[str, ...]
    places: Mapping[int, int]
    coloured: bool

    def read(self, data: bytes, max_pixels: int, working_side: int | None = None) -> FileValues:
        """The class index of each pixel, height × width.

        Raises InvalidInput, Malformed or TooLarge, with the reason, if the file is not a mask of these classes.
        """
        header = _header(data)
        read = _colours if self.coloured else _indices
        values = read(data, header, max_pixels, working_side)
        places = self._place(values.pixels)
        if (places == _UNKNOWN).any():
            raise InvalidInput(self._unknown(values.pixels, places))
        return FileValues(places, values.file_size)

    def reads(self, name: str) -> bool:
        """Whether a mask has the values of the spec: Cityscapes has several of each image, in other values."""
        match = _CITYSCAPES_MASK.match(name.rpartition(".")[0])
        if match is None:
            return True
        if self.coloured:
            return match["values"] == "color"
        train_ids = "road" in self.classes and self.places.get(0) == self.classes.index("road")
        return match["values"] == ("labelTrainIds" if train_ids else "labelIds")

    def _place(self, values: np.ndarray) -> Pixels:
        if not self.coloured:
            table = np.full(256, _UNKNOWN, np.uint8)
            table[list(self.places)] = list(self.places.values())
            return np.asarray(table[values])
        values_of_classes = np.array(sorted(self.places), np.uint32)
        place = np.searchsorted(values_of_classes, values).clip(max=len(values_of_classes) - 1)
        table = np.array([self.places[int(value)] for value in values_of_classes], np.uint8)
        return np.where(values_of_classes[place] == values, table[place], np.uint8(_UNKNOWN))

    def _unknown(self, values: np.ndarray, places: Pixels) -> str:
        rows, columns = np.nonzero(places == _UNKNOWN)
        unknown = values[rows[0], columns[0]]
        name = f"the colour #{unknown:06x}" if self.coloured else f"the index {unknown}"
        return (
            f"{len(rows):,} of its pixels have no class; the first (x {columns[0]}, y {rows[0]}) has {name}; "
            "add it to `masks.classes`, or to `masks.void`"
        )


# Masks of objects (`JobSpec.object_masks`): any value but 0 is the object.
OBJECT_READER = MaskReader(("background", "object"), {0: 0, **dict.fromkeys(range(1, 256), 1)}, coloured=False)


def mask_reader(spec: MaskSpec, label_map: Mapping[str, str]) -> MaskReader:
    """The reader of a job's masks. Classes with the same name after the label map are merged."""
    names = [label_map.get(item.name, item.name) for item in spec.classes]
    classes = tuple(dict.fromkeys(names))
    places = {
        _value(item.colour or item.index or 0): classes.index(name)
        for item, name in zip(spec.classes, names, strict=True)
    }
    places |= {_value(value): VOID for value in spec.void}
    return MaskReader(classes, places, spec.classes[0].index is None)


def mask_values(data: bytes, max_pixels: int, working_side: int | None = None) -> FileValues:
    """The raw values of a mask: indices or grey values (height × width), or colours (height × width × 3).

    Saved as a PNG they give the same mask, except that a palette loses its colours. Raises the errors of
    `MaskReader.read`.
    """
    header = _header(data)
    if header.colour_type in (_GREY, _PALETTE):
        return _indices(data, header, max_pixels, working_side)
    return FileValues(*decode_mask(data, "RGB", max_pixels, working_side))


def is_mask(name: str) -> bool:
    """Whether a file of an archive lies in a folder of masks."""
    return not {FOLDERS["mask"], *CITYSCAPES["mask"]}.isdisjoint(name.lower().split("/")[:-1])


def is_image(name: str) -> bool:
    """Whether a file of an archive lies in a folder of images."""
    return not {FOLDERS["image"], *CITYSCAPES["image"]}.isdisjoint(name.lower().split("/")[:-1])


def match_masks(images: Sequence[str], masks: Sequence[str], named: Sequence[str | None] | None) -> list[str | None]:
    """The mask of each image (None: no mask), by the manifest's names (`named`) or else by equal stems.

    Raises InvalidInput for masks without an image, named masks that were not sent, and stems that are not unique.
    """
    matched = _by_stem(images, masks) if named is None or not any(named) else _by_name(images, masks, named)
    if left := sorted(set(masks) - set(matched)):
        raise InvalidInput(f"no image belongs to the masks {quote(left)}; give both the same name, or leave them out")
    return matched


def _by_name(images: Sequence[str], masks: Sequence[str], named: Sequence[str | None]) -> list[str | None]:
    root = shared_folder([*images, *masks])
    by_name = {mask.removeprefix(root): mask for mask in masks} | {mask: mask for mask in masks}
    if missing := sorted({name for name in named if name is not None and name not in by_name}):
        raise InvalidInput(
            f"the manifest names masks that were not sent: {quote(missing)}; put them into a folder `masks`"
        )
    return [None if name is None else by_name[name] for name in named]


def _by_stem(images: Sequence[str], masks: Sequence[str]) -> list[str | None]:
    by_stem: dict[str, str] = {}
    for mask in masks:
        if (stem := _stem(mask)) in by_stem:
            raise InvalidInput(f"two masks have the stem {stem!r}; give one for each image")
        by_stem[stem] = mask
    stems = [_stem(image) for image in images]
    if twice := sorted({stem for stem in stems if stem in by_stem and stems.count(stem) > 1}):
        raise InvalidInput(f"one mask would belong to several images: {quote(twice)}; give each image its own")
    return [by_stem.get(stem) for stem in stems]


def _stem(name: str) -> str:
    """The name without its suffix and without the folders `images` and `masks`, or those and endings of Cityscapes."""
    *folders, file = name.split("/")
    left_out = {*FOLDERS.values(), *CITYSCAPES["image"], *CITYSCAPES["mask"]}
    meaningful = [folder for folder in folders if folder.lower() not in left_out]
    stem = file.rpartition(".")[0] or file
    match = _CITYSCAPES_MASK.match(stem)
    stem = stem.removesuffix("_leftImg8bit").removesuffix("_rightImg8bit") if match is None else match["stem"]
    return "/".join([*meaningful, stem])


def _header(data: bytes) -> PngHeader:
    header = png_header(data)
    if header is None:
        raise InvalidInput("a mask must be a PNG, since JPEG and WebP may change its values; save it as one")
    return header


def _value(value: int | str) -> int:
    return int(value.removeprefix("#"), 16) if isinstance(value, str) else value


def _colours(data: bytes, _: PngHeader, max_pixels: int, working_side: int | None) -> FileValues:
    pixels, file_size = decode_mask(data, "RGB", max_pixels, working_side)
    wide = pixels.astype(np.uint32)
    return FileValues((wide[..., 0] << 16) | (wide[..., 1] << 8) | wide[..., 2], file_size)


def _indices(data: bytes, header: PngHeader, max_pixels: int, working_side: int | None) -> FileValues:
    """Palette indices or grey values of the file. Pillow scales grey values below 8 bits to 0 … 255; this undoes it."""
    if header.colour_type not in (_GREY, _PALETTE):
        raise InvalidInput("the mask is in colour, but `masks` names indices; give `colour` for each class instead")
    pixels, file_size = decode_mask(data, "L", max_pixels, working_side)
    spread = header.colour_type == _GREY and header.bits < 8
    return FileValues(pixels // np.uint8(255 // (2**header.bits - 1)) if spread else pixels, file_size)
