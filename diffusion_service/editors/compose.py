"""Cut an object out of its image and paste it on a background, at any scale and place. OpenCV alone, no network.

The object is a mask without small pieces. Its alpha is 1 inside and falls to 0 before the outline (feathering), over
fewer pixels in thin parts, so its own pixels stay exactly as they are unless it is scaled. The hole that it leaves is
filled with its mirrored neighbours on the left and right; only where there are none, by `cv2.inpaint` (Navier-Stokes),
which smears.

A composition is refused if its object cannot be pasted honestly: it is missing, fills the image, does not fit, would
show the straight edge at which the source's frame cuts it, or would stay where it is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import cv2
import numpy as np
from numpy.typing import NDArray

from shared.media.images import Pixels
from shared.media.regions import Mask, box_of, connected_regions
from shared.schemas.diffusion import Composition, Place

LEAST_SHARE = 0.005  # of the image's area; a smaller object is taken for a mistake of the segmenter
MOST_SHARE = 0.6  # of the image's area; around a larger object there is no background
LEAST_PIECE = 0.1  # of the object's largest region; smaller regions are dropped
FEATHER = 1 / 128  # of the short side: the width of the falling alpha
MOST_FEATHER = 4  # pixels; an outline is not softer in a larger photograph
LEAST_BUMP = 2  # pixels; what stands out less from a part belongs to its outline, and is no thin part
HOLE_MARGIN = 5 / 128  # of the short side: the outline, with its shadow and halo, is removed with the object
LEAST_BESIDE = 0.1  # of the columns, beside a hole that is filled with mirrored neighbours
PLACE_MARGIN = 0.04  # of the side, between a placed object and the image's edge
LEAST_MOVE = 0.08  # of the side; a smaller move shows nothing

Alpha = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class CutOut:
    """An object in its box: `colours` (height × width × 3), `alpha` (0 to 1), and its left and top in an image."""

    colours: Pixels
    alpha: Alpha
    left: int
    top: int

    @property
    def box(self) -> tuple[int, int, int, int]:
        """Left, top, right, bottom in the image; right and bottom are exclusive."""
        height, width = self.alpha.shape
        return self.left, self.top, self.left + width, self.top + height


def object_of(mask: Mask) -> Mask:
    """The mask (height × width) of the object: its regions without specks and small pieces; empty if none is left."""
    regions = connected_regions(mask)
    largest = max((int(region.sum()) for region in regions), default=0)
    large_regions = [region for region in regions if region.sum() >= LEAST_PIECE * largest]
    return np.logical_or.reduce(large_regions) if large_regions else np.zeros(mask.shape, np.bool_)


def refusal(mask: Mask) -> str:
    """Why an object cannot be cut out by its mask; "" if it can."""
    share = float(mask.mean())
    if share < LEAST_SHARE:
        return "there is no object to cut out in the image; send masks of the objects with the job"
    if share > MOST_SHARE:
        return f"the object fills {share:.0%} of the image, which leaves no background"
    return ""


def cut_out(source: Pixels, mask: Mask) -> CutOut:
    """The object of a source (height × width × 3) under its mask, which has at least one pixel."""
    left, top, right, bottom = box_of(mask)
    window = slice(top, bottom), slice(left, right)
    alpha = _falling(mask, min(_pixels(FEATHER, mask), MOST_FEATHER))
    return CutOut(source[window], alpha[window], left, top)


def compose(source: Pixels, mask: Mask, background: Pixels, composition: Composition) -> Pixels | str:
    """The object of the source on the background (both height × width × 3), or why that is refused.

    `mask` comes from `object_of`, `background` from `covering` or `without`. Outside the placed mask, the result is
    the background; inside it, beyond the feathered outline, the object.
    """
    placed = place(cut_out(source, mask), composition, mask.shape)
    return placed if isinstance(placed, str) else paste_onto(background, placed)


def place(object_: CutOut, composition: Composition, size: tuple[int, ...]) -> CutOut | str:
    """The object scaled, mirrored and moved inside an image of (height, width), or why that is refused.

    Without a place, the middle of its lower edge stays where it is: an object keeps standing on its ground.
    """
    left, top, right, bottom = object_.box
    changed = _mirror(_scale(object_, composition.scale), composition.mirrored)
    height, width = changed.alpha.shape
    x, y = (left + right - width) // 2, bottom - height
    if composition.place is not None:
        x, y = _destination(composition.place, (x, y), (height, width), size)
        if abs(x - left) < LEAST_MOVE * size[1] and abs(y - top) < LEAST_MOVE * size[0]:
            return "the object is there already"
    if x < 0 or y < 0 or x + width > size[1] or y + height > size[0]:
        return "the object does not fit into the image at this size"
    moved = replace(changed, left=x, top=y)
    if _shows_cut(_edges_touched(object_.box, size), _edges_touched(moved.box, size), composition.mirrored):
        return "the frame cuts the object, and the cut would show there"
    return moved


def covering(background: Pixels, size: tuple[int, ...]) -> Pixels:
    """A background (or, height × width, its mask) cropped about its middle and scaled to (height, width)."""
    height, width = background.shape[:2]
    scale = max(size[0] / height, size[1] / width)
    rows, columns = min(height, max(1, round(size[0] / scale))), min(width, max(1, round(size[1] / scale)))
    y, x = (height - rows) // 2, (width - columns) // 2
    cropped = np.ascontiguousarray(background[y : y + rows, x : x + columns])
    if cropped.shape[:2] == size:
        return cropped
    way = cv2.INTER_NEAREST_EXACT if background.ndim == 2 else cv2.INTER_AREA if scale < 1 else cv2.INTER_CUBIC
    return np.asarray(cv2.resize(cropped, (size[1], size[0]), interpolation=way), np.uint8)


def without(image: Pixels, mask: Mask) -> Pixels:
    """The image (height × width × 3) with the object under the mask removed, and filled from its surroundings."""
    if not mask.any() or mask.all():
        return image
    margin = _pixels(HOLE_MARGIN, mask)
    kernel = cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (2 * margin + 1, 2 * margin + 1))
    hole = np.asarray(cv2.dilate(mask.astype(np.uint8), kernel) > 0)
    left, _, right, _ = box_of(hole)
    if mask.shape[1] - (right - left) < LEAST_BESIDE * mask.shape[1]:
        filled = np.asarray(cv2.inpaint(image, hole.astype(np.uint8), margin, cv2.INPAINT_NS), np.uint8)
    else:
        filled = _mirror_in(image, hole)
    return _over(image, filled, _falling(hole, min(_pixels(FEATHER, mask), MOST_FEATHER)))


def paste_onto(background: Pixels, object_: CutOut) -> Pixels:
    """The background with the object over it, as far as it lies inside."""
    height, width = background.shape[:2]
    rows, columns = object_.alpha.shape
    top, left = max(0, object_.top), max(0, object_.left)
    bottom, right = min(height, object_.top + rows), min(width, object_.left + columns)
    target = slice(top, bottom), slice(left, right)
    part = slice(top - object_.top, bottom - object_.top), slice(left - object_.left, right - object_.left)
    image = background.copy()
    image[target] = _over(background[target], object_.colours[part], object_.alpha[part])
    return image


def _mirror_in(image: Pixels, hole: Mask) -> Pixels:
    """The image with the columns of the hole's box filled by their mirrored neighbours, the left ones into the right.

    Rows keep their place, so ground, horizon and sky continue through the hole with their texture.
    """
    left, _, right, _ = box_of(hole)
    span, beside = right - left, image.shape[1] - right
    filled = image.copy()
    if not left:
        filled[:, left:right] = image[:, right + _reflect(span, beside)[::-1]]
    elif not beside:
        filled[:, left:right] = image[:, left - 1 - _reflect(span, left)]
    else:
        sides = image[:, left - 1 - _reflect(span, left)], image[:, right + _reflect(span, beside)[::-1]]
        filled[:, left:right] = _over(*sides, np.broadcast_to(_crossing(span), (len(image), span)))
    return filled


def _reflect(count: int, available: int) -> NDArray[np.intp]:
    """Distances 0 … count - 1 from the hole's edge, reflected at both ends of the available columns."""
    distance = np.arange(count) % (2 * available)
    return np.where(distance < available, distance, 2 * available - 1 - distance)


def _crossing(span: int) -> Alpha:
    """0 at the left, 1 at the right, with a smooth step in the middle third."""
    share = np.clip((np.linspace(0, 1, span, dtype=np.float32) - 1 / 3) * 3, 0, 1)
    return np.asarray(share * share * (3 - 2 * share), np.float32)


def _over(below: Pixels, above: Pixels, alpha: Alpha) -> Pixels:
    weight = alpha[..., None]
    return np.asarray(np.rint(above * weight + below * (1 - weight)), np.uint8)


def _falling(mask: Mask, reach: int) -> Alpha:
    """1 inside the mask, falling to 0 over the last `reach` pixels before its outline; 0 outside.

    In a part that is narrower than that on both sides, it falls from 1 in the middle: antennas and legs stay opaque.
    The image's edge is no outline: an object that the frame cuts stays whole there.
    """
    padded = cv2.copyMakeBorder(mask.astype(np.uint8), 1, 1, 1, 1, cv2.BORDER_REPLICATE)
    distance = cv2.distanceTransform(padded, cv2.DIST_L2, cv2.DIST_MASK_PRECISE)[1:-1, 1:-1]
    return np.asarray(np.clip(distance / _half_width(distance, reach + 1), 0, 1), np.float32)


def _half_width(distance: Alpha, most: int) -> Alpha:
    """Half the width, 1 to `most` pixels, of the part around each pixel with this distance from the outline."""
    half = np.ones(distance.shape, np.float32)
    for width in range(2, most + 1):
        side = 2 * (width - 1 + LEAST_BUMP) + 1
        wide = cv2.dilate((distance >= width).astype(np.uint8), np.ones((side, side), np.uint8))
        half[wide > 0] = width
    return half


def _scale(object_: CutOut, scale: float) -> CutOut:
    if scale == 1:
        return object_
    rows, columns = object_.alpha.shape
    size = max(1, round(columns * scale)), max(1, round(rows * scale))
    way = cv2.INTER_AREA if scale < 1 else cv2.INTER_CUBIC
    colours = np.asarray(cv2.resize(np.ascontiguousarray(object_.colours), size, interpolation=way), np.uint8)
    alpha = np.clip(cv2.resize(object_.alpha, size, interpolation=way), 0, 1).astype(np.float32)
    return replace(object_, colours=colours, alpha=alpha)


def _mirror(object_: CutOut, mirrored: bool) -> CutOut:
    if not mirrored:
        return object_
    return replace(object_, colours=object_.colours[:, ::-1], alpha=object_.alpha[:, ::-1])


def _destination(
    where: Place, current: tuple[int, int], object_: tuple[int, int], size: tuple[int, ...]
) -> tuple[int, int]:
    """Left and top of an object of (height, width) at a place of an image of (height, width)."""
    x, y = current
    beside, above = round(PLACE_MARGIN * size[1]), round(PLACE_MARGIN * size[0])
    match where:
        case "left":
            return beside, y
        case "right":
            return size[1] - object_[1] - beside, y
        case "top":
            return x, above
        case "bottom":
            return x, size[0] - object_[0] - above
        case "middle":
            return (size[1] - object_[1]) // 2, (size[0] - object_[0]) // 2


def _edges_touched(box: tuple[int, int, int, int], size: tuple[int, ...]) -> tuple[bool, bool, bool, bool]:
    """Whether a box touches the left, top, right and bottom edge of the image."""
    return box[0] <= 0, box[1] <= 0, box[2] >= size[1], box[3] >= size[0]


def _shows_cut(before: tuple[bool, bool, bool, bool], after: tuple[bool, bool, bool, bool], mirrored: bool) -> bool:
    if mirrored:
        before = before[2], before[1], before[0], before[3]
    return any(cut and not touches for cut, touches in zip(before, after, strict=True))


def _pixels(share: float, mask: Mask) -> int:
    return max(1, round(share * float(min(mask.shape))))
