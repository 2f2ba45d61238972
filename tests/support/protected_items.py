"""Renderings with protected regions."""

from __future__ import annotations

import torch

from diffusion_service.editors.controlnet import BatchKey, ControlNetEditor, Rendered, RenderItem
from diffusion_service.segmentation import LabelMap, Segmenter
from shared.media.images import Pixels
from shared.schemas.diffusion import ControlStrength, Protection, ProtectionKind, Rendering
from tests.support.control_sources import source

KEY = BatchKey(64, 64, 4, 3.0, (ControlStrength(kind="canny"),))


class HalfSegmenter(Segmenter):
    """The small segmenter, whose weights call everything an object; right of the middle it is overruled."""

    def label_map(self, image: Pixels) -> LabelMap:
        labels = super().label_map(image)
        labels[:, 32:] = 0
        return labels


def item(by: ProtectionKind | None, strength: float = 1.0, seed: int = 3, label: str = "object") -> RenderItem:
    protection = None if by is None else Protection(classes=(label,), by=by, strength=strength)
    return RenderItem(source(), Rendering(prompt="A red car.", seed=seed), "", protection)


def image(editor: ControlNetEditor, *items: RenderItem) -> list[Pixels]:
    rendered = editor.render(KEY, items)
    assert all(isinstance(outcome, Rendered) for outcome in rendered)
    return [outcome.image for outcome in rendered if isinstance(outcome, Rendered)]


class Watched:
    """The networks, with the final latents noted."""

    def __init__(self, networks: object, recorded: list[torch.Tensor]) -> None:
        self._networks, self._recorded = networks, recorded

    def __getattr__(self, name: str) -> object:
        return getattr(self._networks, name)

    def pictures(self, latents: torch.Tensor) -> list[Pixels]:
        self._recorded.append(latents)
        return self._networks.pictures(latents)  # type: ignore[attr-defined,no-any-return]
