"""Requests to diffusion_service at full size: renderings under every region, four at once, edits, inversions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from diffusion_service.segmentation import Segmenter
from research.full_services.generators import CAPTION, NIGHT
from research.full_services.served import Client, Step, weights, write_profile
from shared.media.images import Pixels, encode
from shared.profiles.weights import Weights
from shared.schemas.base import ImagePayload
from shared.schemas.diffusion import (
    ControlKind,
    ControlRegion,
    ControlStrength,
    EditRequest,
    NullText,
    PromptEdit,
    Protection,
    Rendering,
    RenderRequest,
)
from shared.service.endpoints import Services

GUIDANCE = 7.5
KINDS: tuple[ControlKind, ...] = ("canny", "segmentation", "depth", "soft_edges")


def picture(side: int) -> Pixels:
    """A scene of rectangles, `side` pixels square."""
    image = np.full((side, side, 3), (120, 160, 210), np.uint8)
    scale = side // 64
    for corner, opposite, colour in (((0, 40), (63, 63), (90, 90, 90)), ((14, 20), (50, 48), (200, 30, 30))):
        cv2.rectangle(image, [scale * value for value in corner], [scale * value for value in opposite], colour, -1)
    return image


def generator_profile(
    folder: Path, kinds: Sequence[ControlKind], *, keep: str | None = None, max_batch: int = 4
) -> Path:
    """Write the profile of the generator in `folder`; with `keep`, a label, its segmenter and depth estimator too."""
    lines = ["[diffusion]", f"max_batch = {max_batch}", 'scheduler = "UniPCMultistepScheduler"']
    lines.append(f"base = {weights(folder, 'base', 'bfloat16')}")
    lines += [f"controlnets.{kind} = {weights(folder, f'control-{kind}', 'bfloat16')}" for kind in kinds]
    if keep is not None:
        lines += [f"{name} = {weights(folder, name, 'float32')}" for name in ("segmenter", "depth")]
        lines += ['palette = "ade20k"', f'keep_labels = ["{keep}"]']
    return write_profile(folder, diffusion="\n".join(lines))


def common_label(folder: Path, side: int) -> str:
    """The label that the segmenter in `folder` gives most pixels of the picture."""
    segmenter = Segmenter(Weights(path=folder, licence="none", gigabytes=1), [], device="cpu")
    values, counts = np.unique(segmenter.label_map(picture(side)), return_counts=True)
    return str(segmenter.labels[values[counts.argmax()]])


def source_of(side: int) -> ImagePayload:
    """The picture as the services take it."""
    return ImagePayload(png=encode(picture(side)))


def rendering(source: ImagePayload, *regions: ControlRegion, **options: Any) -> Step:
    """Render one image per region in one guided denoising step, all in one batch."""

    async def step(client: Client) -> dict[str, Any]:
        renderings = [Rendering(prompt=NIGHT, region=region, seed=seed) for seed, region in enumerate(regions)]
        request = RenderRequest.model_validate(
            {"source": source, "renderings": renderings, "steps": 1, "guidance": GUIDANCE, **options}
        )
        reply = await client.ask(Services.render, request)
        facts = {"images": len(reply.images), "finite": sum(image is not None for image in reply.images)}
        if reply.protection is not None:
            facts["protected regions"] = len(reply.protection.regions)
        return facts

    return step


def editing(source: ImagePayload, inversion: str = "direct", null_text: NullText | None = None) -> Step:
    """Invert in one step, and edit in one guided step under the source's self- and cross-attention."""

    async def step(client: Client) -> dict[str, Any]:
        request = EditRequest.model_validate(
            {
                "source": source, "caption": CAPTION, "edits": [PromptEdit(prompt=NIGHT)], "self_fractions": [1.0],
                "inversion": inversion, "null_text": null_text or NullText(), "steps": 1, "guidance": GUIDANCE,
            }
        )  # fmt: skip
        reply = await client.ask(Services.edit, request)
        images = [image for row in reply.images for image in row]
        return {"images": len(images), "finite": sum(image is not None for image in images)}

    return step


def all_steps(side: int, label: str) -> Mapping[str, Step]:
    """Every kind of request, with ControlNets of four kinds and a segmenter whose `label` is protected."""
    source, protection = source_of(side), Protection(classes=(label,), by="relit")
    controls = [ControlStrength(kind=kind) for kind in KINDS]
    return {
        "render one, region full": rendering(source, "full"),
        "edit one by prompt-to-prompt": editing(source),
        "render one under four ControlNets": rendering(source, "full", controls=controls),
        "render one, region structure": rendering(source, "structure"),
        "render one, region object": rendering(source, "object"),
        "render one, region full, a protected class": rendering(source, "full", protection=protection),
        "render four, every region, a protected class": rendering(
            source, "full", "structure", "object", "full", protection=protection
        ),
    }


def xl_steps(side: int) -> Mapping[str, Step]:
    """A rendering and an edit."""
    source = source_of(side)
    return {"render one, region full": rendering(source, "full"), "edit one by prompt-to-prompt": editing(source)}


def null_text_steps(side: int) -> Mapping[str, Step]:
    """Null-text inversion with two gradients, and an edit over it."""
    how = NullText(iterations=2, least_psnr=0, least_gain=0)
    return {"null-text inversion with two gradients, one edit": editing(source_of(side), "null_text", how)}
