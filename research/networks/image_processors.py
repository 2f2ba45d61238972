"""Image processors, stored with the networks' weights: values in −1 … 1, 128 pixels a side by default."""

from __future__ import annotations

from transformers import SegformerImageProcessorPil, ViTImageProcessorPil

from research.pictures.augmentation import SIDE

_HALF = [0.5] * 3


def classifier_processor(side: int = SIDE) -> ViTImageProcessorPil:
    """Of networks that read whole images, `side` pixels wide and high."""
    return ViTImageProcessorPil(size=_square(side), image_mean=_HALF, image_std=_HALF)


def segmenter_processor() -> SegformerImageProcessorPil:
    """Of networks that read every pixel; their labels keep their numbers."""
    return SegformerImageProcessorPil(size=_square(SIDE), image_mean=_HALF, image_std=_HALF, do_reduce_labels=False)


def _square(side: int) -> dict[str, int]:
    return {"height": side, "width": side}
