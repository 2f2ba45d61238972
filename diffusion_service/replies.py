"""Replies of diffusion_service: computed images and masks at the source's size, as PNG."""

from __future__ import annotations

from collections.abc import Sequence

import cv2
import numpy as np

from diffusion_service.control_images import Source
from diffusion_service.editors.controlnet import Rendered
from diffusion_service.editors.inversion import Inversion
from diffusion_service.editors.prompt_to_prompt import Edited, EditResult, Refusal, attention_to
from diffusion_service.geometry import to_source
from diffusion_service.once import Once
from diffusion_service.protection import union
from diffusion_service.stable_diffusion import NOT_FINITE
from shared.chunks import chunks
from shared.media.images import Pixels, digest, encode
from shared.problems import NotFinite
from shared.schemas.base import ImagePayload
from shared.schemas.diffusion import (
    ControlKind,
    ControlRegion,
    Controls,
    EditEvaluations,
    EditReply,
    EditRequest,
    ProtectedRegion,
    ProtectionReply,
    RenderReply,
    RenderRequest,
)

# Replies for the same source repeat its control images, mask and reconstruction. One of 1024 × 1024 pixels takes up to
# 0.4 s to encode and 1.5 MB to keep.
_ENCODED = Once[str, ImagePayload](32)


def _payload(pixels: Pixels, source: Source) -> ImagePayload:
    return ImagePayload(png=encode(to_source(pixels, source.geometry)))


def of_source(pixels: Pixels) -> ImagePayload:
    """An image that does not differ between the edits of a source; encoded once."""
    return _ENCODED.get(digest(pixels), lambda: ImagePayload(png=encode(pixels)))


def _of_source(pixels: Pixels, source: Source) -> ImagePayload:
    return of_source(to_source(pixels, source.geometry))


def render_reply(
    source: Source, request: RenderRequest, controls: Controls, rendered: Sequence[Rendered | None]
) -> RenderReply:
    """The reply to a request, with its images (None where not finite) in order. Raises NotFinite if all are None."""
    finite = [result for result in rendered if result is not None]
    if not finite:
        raise NotFinite(NOT_FINITE)
    by_kind: dict[ControlKind, dict[ControlRegion, ImagePayload]] = {
        strength.kind: {
            rendering.region: _of_source(result.controls[index], source)
            for rendering, result in zip(request.renderings, rendered, strict=True)
            if result is not None
        }
        for index, strength in enumerate(controls)
    }
    first, keep = controls[0].kind, finite[0].keep
    return RenderReply(
        images=[None if result is None else _payload(result.image, source) for result in rendered],
        controls=by_kind.pop(first),
        keep_mask=None if keep is None else _of_source(keep, source),
        evaluations=finite[0].evaluations,
        prompts=["" if result is None else result.prompt for result in rendered],
        further_controls=by_kind,
        protection=None if request.protection is None else _protection(source, rendered),
    )


def _protection(source: Source, rendered: Sequence[Rendered | None]) -> ProtectionReply:
    regions = next(result.regions for result in rendered if result is not None)
    return ProtectionReply(
        mask=_of_source(union(regions, source.image.shape[:2]), source),
        regions=[_region(to_source(region.mask.view(np.uint8), source.geometry), region.label) for region in regions],
        outcomes=[[] if result is None else list(result.outcomes) for result in rendered],
    )


def _region(mask: Pixels, label: str) -> ProtectedRegion:
    """A region (height × width, not 0 inside) for the reply, in the source's pixels."""
    left, top, width, height = cv2.boundingRect(mask)
    return ProtectedRegion(
        label=label, share=float(mask.astype(bool).mean()), box=(left, top, left + width, top + height)
    )


def edit_reply(
    request: EditRequest, inversion: Inversion, results: Sequence[EditResult | None], tokens: Sequence[Sequence[int]]
) -> EditReply:
    """The reply to a request: its images (None where not finite or refused), edits first, then fractions.

    `tokens`: positions in the caption of each phrase of `attention_to`.
    """
    source, width = inversion.source, len(request.self_fractions)
    refusals = [row[0].reason if isinstance(row[0], Refusal) else None for row in chunks(results, width)]
    edited = [result if isinstance(result, Edited) else None for result in results]
    finite = [result for result in edited if result is not None]
    per_edit = list(chunks(edited, width))
    height, breadth = source.image.shape[:2]
    masks = [attention_to(inversion.maps, positions, height, breadth).mul(255).byte().numpy() for positions in tokens]
    return EditReply(
        reconstruction=_of_source(inversion.reconstruction, source),
        images=[[None if result is None else _payload(result.image, source) for result in row] for row in per_edit],
        attention=[_payload(mask, source) for mask in masks],
        keep_mask=None if inversion.keep is None else _of_source(inversion.keep, source),
        evaluations=EditEvaluations(
            inversion=inversion.evaluations,
            source=max((result.source_evaluations for result in finite), default=0),
            edit=finite[0].evaluations if finite else 0,
        ),
        caption=inversion.caption,
        prompts=[next((result.prompt for result in row if result is not None), "") for row in per_edit],
        refusals=refusals if any(refusals) else [],
    )
