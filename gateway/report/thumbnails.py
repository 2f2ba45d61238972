"""Small versions of images for pages and the report."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Mapping, Sequence

from PIL import Image

from gateway.report.overlays import paint_png

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

    def overlay(self, image: str, label_map: str) -> str:
        """An image with the classes of a label map painted over it."""

        def paint() -> bytes:
            return paint_png(self._load(image), self._load(label_map), self._colours)

        return self._embed((image, label_map), image, paint, LONGEST_SIDE)

    def _embed(self, key: tuple[str, ...], image: str, draw: Callable[[], bytes], side: int) -> str:
        if key not in self._uris:
            shown_side = side if self._left > 0 else min(side, SMALL_SIDE)
            self._uris[key] = data_uri(thumbnail(draw(), self._packets.get(image), shown_side))
        self._left -= len(self._uris[key])  # a page repeats the picture wherever it shows it
        return self._uris[key]
