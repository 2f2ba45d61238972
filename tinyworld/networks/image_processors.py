"""The image processors that stand beside the networks' weights: 128 pixels a side, values in −1 … 1."""

from __future__ import annotations

from transformers import SegformerImageProcessorPil, ViTImageProcessorPil

from tinyworld.pictures.augmentation import SIDE

_SQUARE = {"height": SIDE, "width": SIDE}
_HALF = [0.5] * 3


def classifier_processor() -> ViTImageProcessorPil:
    """Of networks that read whole images."""
    return ViTImageProcessorPil(size=_SQUARE, image_mean=_HALF, image_std=_HALF)


def segmenter_processor() -> SegformerImageProcessorPil:
    """Of networks that read every pixel; their labels keep their numbers."""
    return SegformerImageProcessorPil(size=_SQUARE, image_mean=_HALF, image_std=_HALF, do_reduce_labels=False)
