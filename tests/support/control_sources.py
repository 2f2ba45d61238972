"""Source images for control images."""

from __future__ import annotations

from diffusion_service.control_images import Source
from diffusion_service.geometry import fit
from shared.media.images import digest
from tests.support.controlnet_items import PHOTO


def source() -> Source:
    return Source(PHOTO, fit(64, 64, 64, 8), digest(PHOTO))
