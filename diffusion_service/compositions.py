"""Requests for compositions: find the objects, compose each image, and encode the reply."""

from __future__ import annotations

import numpy as np

from diffusion_service.editors.compose import MOST_SHARE, compose, covering, object_of, refusal, without
from shared.images import Pixels, decode, encode
from shared.problems import InvalidInput
from shared.regions import Mask
from shared.schemas.base import ImagePayload
from shared.schemas.compositions import ComposeReply, ComposeRequest, Composition

Masks = dict[bytes, Pixels]  # an image's PNG → the segmenter's mask of its objects, height × width


def to_segment(request: ComposeRequest) -> list[bytes]:
    """The images (PNG), each once, whose objects a segmenter must find."""
    images = [request.source.png] if request.mask is None else []
    for composition in request.compositions:
        if composition.background and composition.clear and composition.background_mask is None:
            images.append(composition.background.png)
    return list(dict.fromkeys(images))


def compose_reply(request: ComposeRequest, masks: Masks) -> ComposeReply:
    """The images of a request; `masks` has those of `to_segment`. Raises InvalidInput for a mask of another size."""
    source = decode(request.source.png)
    mask = object_of(_mask(request.source, request.mask, source, masks))
    reason = refusal(mask)
    outcomes = [reason or _compose(source, mask, composition, masks) for composition in request.compositions]
    return ComposeReply(
        images=[None if isinstance(image, str) else ImagePayload(png=encode(image)) for image in outcomes],
        refusals=[image if isinstance(image, str) else "" for image in outcomes],
        mask=ImagePayload(png=encode(np.where(mask, np.uint8(255), np.uint8(0)))),
    )


def _compose(source: Pixels, mask: Mask, composition: Composition, masks: Masks) -> Pixels | str:
    if composition.background is None:
        return compose(source, mask, without(source, mask), composition)
    background = _background(composition, composition.background, masks, source.shape[:2])
    return background if isinstance(background, str) else compose(source, mask, background, composition)


def _background(composition: Composition, image: ImagePayload, masks: Masks, size: tuple[int, ...]) -> Pixels | str:
    pixels = decode(image.png)
    if composition.clear:
        objects = object_of(_mask(image, composition.background_mask, pixels, masks))
        if objects.mean() > MOST_SHARE:
            return "the objects of the background fill it, which leaves no background"
        pixels = without(pixels, objects)
    return covering(pixels, size)


def _mask(image: ImagePayload, mask: ImagePayload | None, pixels: Pixels, masks: Masks) -> Mask:
    values = masks[image.png] if mask is None else decode(mask.png, "L")
    if values.shape != pixels.shape[:2]:
        raise InvalidInput("a mask must have the size of its image; send both from one file")
    return np.asarray(values > 0)
