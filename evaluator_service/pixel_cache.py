"""Cache the decoded images that a training reads repeatedly, up to a number of bytes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from shared.images import Mode, Pixels

Key = tuple[str, Mode]


class PixelCache:
    """The most recently opened images, by digest and mode, in up to `max_bytes`; for one thread.

    An image larger than `max_bytes` is opened every time.
    """

    def __init__(self, opened: Callable[[str, Mode], Pixels], max_bytes: int) -> None:
        self._opened, self._max_bytes = opened, max_bytes
        self._images: OrderedDict[Key, Pixels] = OrderedDict()
        self.bytes = 0

    def get(self, digest: str, mode: Mode) -> Pixels:
        """The pixels of an image. Raises what opening it raises."""
        key = (digest, mode)
        if key in self._images:
            self._images.move_to_end(key)
            return self._images[key]
        pixels = self._opened(digest, mode)
        if pixels.nbytes <= self._max_bytes:
            self._images[key] = pixels
            self.bytes += pixels.nbytes
        while self.bytes > self._max_bytes:
            _, oldest = self._images.popitem(last=False)
            self.bytes -= oldest.nbytes
        return pixels
