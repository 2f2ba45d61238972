"""Preprocessing of a model under test: by its own image processor, or as its `contrafact.json` describes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from transformers import AutoImageProcessor

from shared.media.images import Pixels
from shared.problems import InvalidInput
from shared.schemas.models import Preprocessing

Prepare = Callable[[Sequence[Pixels]], NDArray[np.float32]]
MAX_SIDE = 4_096
RGB = 3
MAX_RESIZED_PIXELS = 64_000_000
_RESAMPLE = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}


class Placement(NamedTuple):
    """Where an image lies in a model's input, whose x is the image's x · `across` + `left`, and y likewise."""

    across: float
    down: float
    left: float = 0.0
    top: float = 0.0

    def undo(self, boxes: NDArray[np.float64]) -> NDArray[np.float64]:
        """Boxes (n × 4 corners) of the model's input in pixels of the image."""
        offset, factor = [self.left, self.top] * 2, [self.across, self.down] * 2
        return np.asarray((boxes - offset) / factor)


def placement(image: Pixels, size: tuple[int, int], how: Preprocessing | None) -> Placement:
    """The placement of an image in an input of `size` (height, width); without a description it fills the input."""
    height, width = image.shape[:2]
    if how is not None and how.fit.startswith("letterbox"):
        (wide, high), left, top = _letterbox(width, height, how)
        return Placement(wide / width, high / height, left, top)
    return Placement(size[1] / width, size[0] / height)


def processors(
    location: str,
    subfolder: str = "",
    revision: str | None = None,
    *,
    whole: bool = False,
    pads: bool = False,
    channels: int | None = None,
) -> Prepare:
    """Images (height × width × 3) → batch × channels × height × width, by the processor stored with the weights.

    It uses the PIL backend, because the other needs torchvision and rounds differently. `channels` are those that the
    model's configuration names; a model with one gets grey images. Raises InvalidInput if the resulting sizes differ,
    and with `whole` if it crops or pads: a segmenter's map would then not match the image. With `pads` it may pad to
    the largest image of a batch, which has no effect on one that is prepared alone.
    """
    processor = AutoImageProcessor.from_pretrained(location, backend="pil", subfolder=subfolder, revision=revision)
    padded = getattr(processor, "pad_size", None) if pads else getattr(processor, "do_pad", False)
    if whole and (getattr(processor, "do_center_crop", False) or padded):
        raise InvalidInput(
            "the image processor crops or pads; set do_center_crop and do_pad to false, because the places in its "
            "images would not be those in yours"
        )
    edge = _largest_side(processor)
    mode = "L" if _channels(processor, channels) == 1 else "RGB"

    def prepare(images: Sequence[Pixels]) -> NDArray[np.float32]:
        for image in images:
            _refuse_huge(image.shape[1], image.shape[0], edge)
        arrays = [_process(processor, Image.fromarray(image).convert(mode)) for image in images]
        if len({array.shape for array in arrays}) > 1:
            raise InvalidInput("the image processor keeps sizes that differ; give it a size, so that images can batch")
        return np.concatenate(arrays)

    return prepare


def from_description(how: Preprocessing) -> Prepare:
    """As `processors`, from a description; the layout is `how.layout`."""
    count = 1 if how.channels == "grey" else 3
    mean, std = np.array(how.mean[:count], np.float32), np.array(how.std[:count], np.float32)

    def prepare(images: Sequence[Pixels]) -> NDArray[np.float32]:
        grey = how.channels == "grey"
        pictures = [Image.fromarray(image).convert("L" if grey else "RGB") for image in images]
        batch = np.stack([np.asarray(_fit(picture, how)) for picture in pictures]).astype(np.float32)
        if grey:
            batch = batch[..., None]
        if how.channels == "bgr":
            batch = batch[..., ::-1]
        batch = (batch * np.float32(how.scale) - mean) / std
        return np.ascontiguousarray(batch.transpose(0, 3, 1, 2) if how.layout == "nchw" else batch)

    return prepare


def _process(processor: Any, image: Image.Image) -> NDArray[np.float32]:
    """Process one image; "pt" is the only kind of tensor that every processor supports."""
    return np.asarray(processor(images=image, return_tensors="pt")["pixel_values"].float().numpy())


def _channels(processor: Any, channels: int | None) -> int:
    """The channels of a model's images. Raises InvalidInput unless it takes RGB or grey ones, as its processor does."""
    mean = getattr(processor, "image_mean", None) if getattr(processor, "do_normalize", None) else None
    normalised = len(mean) if isinstance(mean, list | tuple) else None
    if channels is not None and normalised not in (None, channels):
        raise InvalidInput(
            f"config.json says that the model takes {channels} channels (num_channels), and preprocessor_config.json "
            f"has {normalised} means; correct the wrong one"
        )
    needed = channels or normalised or RGB
    if needed not in (1, RGB):
        raise InvalidInput(f"the model takes images of {needed} channels; only RGB and grey models can be tested")
    return needed


def _largest_side(processor: Any) -> int:
    """The largest side that the processor names (0: none). Raises InvalidInput above MAX_SIDE."""
    size_options = [getattr(processor, name, None) for name in ("size", "crop_size")]
    sides = [side for size in size_options if size for side in dict(size).values() if isinstance(side, int | float)]
    largest = int(max(sides, default=0))
    if largest > MAX_SIDE:
        raise InvalidInput(
            f"the image processor makes images of {largest:,} pixels a side; at most {MAX_SIDE:,} are supported"
        )
    return largest


def _refuse_huge(width: int, height: int, edge: int) -> None:
    """Refuse elongated images that would not fit into memory once their short side is resized to `edge`."""
    if edge * edge * max(width, height) / min(width, height) > MAX_RESIZED_PIXELS:
        raise InvalidInput(f"the image is too long and thin for a model that resizes its short side to {edge}; crop it")


def _letterbox(width: int, height: int, how: Preprocessing) -> tuple[tuple[int, int], int, int]:
    """Width and height of an image in its letterbox, and the place of its left upper corner, as Ultralytics rounds."""
    factor = min(how.width / width, how.height / height)
    wide, high = max(1, round(width * factor)), max(1, round(height * factor))
    if how.fit == "letterbox-corner":
        return (wide, high), 0, 0
    return (wide, high), round((how.width - wide) / 2 - 0.1), round((how.height - high) / 2 - 0.1)


def _fit(image: Image.Image, how: Preprocessing) -> Image.Image:
    resample = _RESAMPLE[how.resample]
    if how.fit.startswith("letterbox"):
        size, left, top = _letterbox(*image.size, how)
        filled = Image.new(image.mode, (how.width, how.height), (how.pad,) * len(image.getbands()))
        filled.paste(image.resize(size, resample), (left, top))
        return filled
    if how.fit == "stretch":
        return image.resize((how.width, how.height), resample)
    edge = how.shortest_edge or max(how.height, how.width)
    _refuse_huge(image.width, image.height, edge)
    factor = edge / min(image.size)
    resized = image.resize((max(edge, round(image.width * factor)), max(edge, round(image.height * factor))), resample)
    left, top = (resized.width - how.width) // 2, (resized.height - how.height) // 2
    return resized.crop((left, top, left + how.width, top + how.height))
