"""Small versions of images for pages and the report.

A label map painted over its image, in the job's colours: for pages and the report.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from PIL import Image

from shared.media.images import Pixels, decode
from shared.media.label_maps import OTHER, VOID, Map

OPACITY = 0.6
OUTLINE = 0.9  # darkness of the borders between classes
_OTHER_COLOUR = (255, 0, 255)
_VOID_COLOUR = (128, 128, 128)
LONGEST_SIDE = 256  # pixels
SMALL_SIDE = 128  # pixels, of a report's pictures beyond the first FULL_BYTES
FULL_BYTES = 5_000_000


def thumbnail(png: bytes, packet: bytes | None = None, side: int = LONGEST_SIDE) -> bytes:
    """A PNG of any size as a WebP with at most `side` pixels on the longest side, with this XMP packet."""
    with Image.open(io.BytesIO(png), formats=("PNG",)) as image:
        small = image.convert("RGB")
    small.thumbnail((side, side), Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    small.save(buffer, "WEBP", quality=88, method=4, **({} if packet is None else {"xmp": packet}))
    return buffer.getvalue()


def data_uri(webp: bytes) -> str:
    """The WebP as a data URI."""
    return "data:image/webp;base64," + base64.b64encode(webp).decode()


class EmbeddedPictures:
    """Thumbnails as data URIs, each image loaded once. Those beyond `full_bytes` of a page are smaller.

    So a report stays below 15 MB, however many segmenters or findings a job has. `load` returns the PNG bytes of an
    image's digest; `packets`: the XMP of generated images by digest.
    """

    def __init__(
        self,
        load: Callable[[str], bytes],
        colours: Sequence[tuple[int, int, int]],
        packets: Mapping[str, bytes],
        full_bytes: int = FULL_BYTES,
    ) -> None:
        self._load, self._colours, self._packets, self._left = load, colours, packets, full_bytes
        self._uris: dict[tuple[str, ...], str] = {}

    def picture(self, digest: str, side: int = LONGEST_SIDE) -> str:
        """An image, with at most `side` pixels on its longest side."""
        return self._embed((digest, str(side)), digest, lambda: self._load(digest), side)

    def overlay(self, image: str, label_map: str | None) -> str:
        """An image with the classes of a label map painted over it; the image alone without a map."""
        if label_map is None:
            return self.picture(image)

        def paint() -> bytes:
            return paint_png(self._load(image), self._load(label_map), self._colours)

        return self._embed((image, label_map), image, paint, LONGEST_SIDE)

    def _embed(self, key: tuple[str, ...], image: str, draw: Callable[[], bytes], side: int) -> str:
        if key not in self._uris:
            shown_side = side if self._left > 0 else min(side, SMALL_SIDE)
            self._uris[key] = data_uri(thumbnail(draw(), self._packets.get(image), shown_side))
        self._left -= len(self._uris[key])  # a page repeats the picture wherever it shows it
        return self._uris[key]


def paint(image_png: bytes, map_png: bytes, colours: Sequence[tuple[int, int, int]]) -> Pixels:
    """The image under translucent class colours, with dark borders between classes. Void pixels are grey.

    Raises the errors of `shared.media.images.decode`, and ValueError if the map's size differs from the image's.
    """
    image, label_map = decode(image_png), decode(map_png, "L")
    if image.shape[:2] != label_map.shape:
        raise ValueError(f"the label map's size {label_map.shape} differs from the image's {image.shape[:2]}")
    table = np.zeros((256, 3), np.float32)
    table[: len(colours)] = colours
    table[OTHER], table[VOID] = _OTHER_COLOUR, _VOID_COLOUR
    pixels = (1 - OPACITY) * image + OPACITY * table[label_map]
    pixels[_borders(label_map)] *= 1 - OUTLINE
    return np.asarray(pixels.round().astype(np.uint8))


def paint_png(image_png: bytes, map_png: bytes, colours: Sequence[tuple[int, int, int]]) -> bytes:
    """`paint` as a PNG file."""
    buffer = io.BytesIO()
    Image.fromarray(paint(image_png, map_png, colours)).save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()


def _borders(label_map: Map) -> np.ndarray:
    borders = np.zeros(label_map.shape, bool)
    borders[:, 1:] |= label_map[:, 1:] != label_map[:, :-1]
    borders[1:] |= label_map[1:] != label_map[:-1]
    return borders
