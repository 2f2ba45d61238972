"""Limit how many images an uploaded model gets at once, from the time that earlier images took.

A batch that exceeds its time limit ends the process and quarantines the model, even if each of its images is within the
limit. So an image that is larger than all earlier ones runs alone. Later batches have the number of images that would
take half of the limit, assuming that each takes as long as the largest so far.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from shared.batching import BatchTooLong
from shared.images import Pixels

SHARE = 0.5  # of the limit: a batch may take longer than its images did


class Pace:
    """Seconds per image of the largest images so far, of one model."""

    def __init__(self, batch_seconds: float) -> None:
        """`batch_seconds` is the time limit of a batch."""
        self._seconds = SHARE * batch_seconds
        self._largest = 0
        self._seconds_per_image = 0.0

    def check(self, images: Sequence[Pixels]) -> None:
        """Raise BatchTooLong unless the images (height × width × 3) may run at once."""
        if len(images) == 1:
            return
        if _largest(images) > self._largest:
            raise BatchTooLong(f"images of {_largest(images):,} pixels have not been timed yet")
        if len(images) * self._seconds_per_image > self._seconds:
            raise BatchTooLong(f"an image takes {self._seconds_per_image:.1f} s; these may take {self._seconds:g} s")

    @contextmanager
    def time_batch(self, images: Sequence[Pixels]) -> Iterator[None]:
        """Time a batch that runs in the block; one that fails does not count."""
        started = time.monotonic()
        yield
        if (largest := _largest(images)) >= self._largest:
            self._largest = largest
            self._seconds_per_image = (time.monotonic() - started) / len(images)


def _largest(images: Sequence[Pixels]) -> int:
    """Pixels of the largest image."""
    return max(int(image.shape[0] * image.shape[1]) for image in images)
