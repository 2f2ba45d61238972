"""The caller's images as RGB pixels: files, PIL images, arrays and tensors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from contrafact.arrays import as_array, is_tensor
from embedded.library.datasets import ImageSet, LabelledImage
from shared.media.images import Pixels, decode, encode, from_pillow
from shared.problems import InvalidInput, Problem, TooLarge

Content = TypeVar("Content")

UNUSABLE = (InvalidInput, TooLarge, FileNotFoundError, PermissionError)  # one image; the others go on
LARGEST_UNIT = 1.0 + 1e-6


def pixels_of(image: object, *, channels_first: bool | None = None) -> Pixels:
    """RGB pixels, height × width × 3, of a file or its bytes, a PIL image, an array or a tensor.

    Arrays are height × width, height × width × channels, or with `channels_first` channels × height × width; tensors
    are channels first unless `channels_first` is False. Values are uint8, or floats from 0 to 1. Of a PIL image,
    orientation, colour profile, 16 bits and transparency are treated as a file's (docs/reference/image-files.md).
    Raises ValueError, and for files and PIL images what `shared.media.images.canonical` raises.
    """
    if isinstance(image, str | Path):
        return decode(Path(image).read_bytes())
    if isinstance(image, bytes):
        return decode(image)
    if isinstance(image, Image.Image):
        return from_pillow(image)
    try:
        array = as_array(image)
    except (TypeError, ValueError, RuntimeError) as error:
        raise _not_an_image(image) from error
    if array.dtype.kind not in "biuf":
        raise _not_an_image(image)
    return _from_array(array, is_tensor(image) if channels_first is None else channels_first)


def png_of(image: object, *, channels_first: bool | None = None) -> bytes:
    """The bytes to upload: those of a file, or a PNG of the pixels."""
    if isinstance(image, str | Path):
        return Path(image).read_bytes()
    if isinstance(image, bytes):
        return image
    return encode(pixels_of(image, channels_first=channels_first))


def first_pixels(images: ImageSet) -> Pixels:
    """The pixels of the first usable image. Raises the problem of the first image if none is."""
    first: Problem | None = None
    for position in range(images.length):
        image = images.read(position)
        try:
            return read_image(image, pixels_of)
        except UNUSABLE as error:
            first = first or named_problem(image, error)
    raise first or InvalidInput("the data set has no images")


def read_image(image: LabelledImage, read: Callable[..., Content]) -> Content:
    """What `read` makes of an image. Raises ValueError with its name for what is no image at all."""
    try:
        return read(image.image, channels_first=image.channels_first)
    except ValueError as error:
        raise ValueError(f"{image.name!r}: {error}") from error


def named_problem(image: LabelledImage, error: Exception) -> Problem:
    """The problem of an image that cannot be used, which begins with its name."""
    problem = error if isinstance(error, Problem) else InvalidInput(str(error))
    return problem.about(image.name)


def _not_an_image(image: object) -> ValueError:
    return ValueError(
        f"an image is given as {type(image).__name__}; give a path, a PIL image, or an array or tensor of numbers"
    )


def _from_array(array: NDArray[np.generic], channels_first: bool) -> Pixels:
    if array.ndim == 3 and channels_first:
        array = np.moveaxis(array, 0, -1)
    if array.ndim == 2:
        array = array[:, :, None]
    if array.ndim != 3 or array.shape[2] not in (1, 3):
        order = "channels × height × width" if channels_first else "height × width × channels"
        raise ValueError(f"an image has shape {array.shape}, read as {order}; it must have 1 or 3 channels")
    if array.size == 0:
        raise ValueError(f"an image of shape {array.shape} has no pixels; leave it out")
    if np.issubdtype(array.dtype, np.floating):
        values = array.astype(np.float64)
        if not (np.isfinite(values).all() and values.min() >= 0 and values.max() <= LARGEST_UNIT):
            raise ValueError("an image has floats outside 0 to 1; give the images before normalisation, or uint8")
        array = np.rint(values * 255)
    elif array.dtype != np.uint8:
        raise ValueError(f"an image is of {array.dtype}; give uint8, or floats from 0 to 1")
    return np.ascontiguousarray(np.broadcast_to(array.astype(np.uint8), (*array.shape[:2], 3)))
