"""The control images for training the generator, as an editor computes them.

Edges of the image itself or of a *sibling*: the same geometry with other factors, so that the ControlNet learns what to
take from edges (where things are) and what not (weather, style, colour).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, Protocol, Self, TypeVar

import numpy as np

from diffusion_service.control_images import canny, object_region, structure
from research.pictures.rendered_once import Pixels

Region = Literal["full", "structure", "object", "none"]
# How often a region is shown, and whether of the picture itself or of a sibling.
CONTROLS: tuple[tuple[Region, bool, float], ...] = (
    ("full", False, 0.15),
    ("structure", False, 0.10),
    ("object", False, 0.16),
    ("full", True, 0.13),
    ("structure", True, 0.16),
    ("object", True, 0.18),
    ("none", False, 0.12),
)


class Changeable(Protocol):
    """A scene of either domain, as far as siblings need it."""

    def changed(self, **factors: str) -> Self:
        """The same scene with some factors changed."""
        ...


Scene = TypeVar("Scene", bound=Changeable)


def draw_sibling(
    scene: Scene,
    values: Mapping[str, tuple[str | int, ...]],
    is_withheld: Callable[[Scene], bool],
    random: np.random.Generator,
) -> Scene:
    """The same scene with random values of one to three of these factors, not withheld either."""
    while True:
        count = int(random.choice((1, 2, 3), p=(0.6, 0.25, 0.15)))
        names = random.choice(tuple(values), size=count, replace=False)
        sibling = scene.changed(**{str(name): str(random.choice(np.array(values[str(name)]))) for name in names})
        if sibling != scene and not is_withheld(sibling):
            return sibling


def draw_control(random: np.random.Generator) -> tuple[Region, bool]:
    """A control region, and whether it is a sibling's, by the shares of `CONTROLS`."""
    region, of_sibling, _ = CONTROLS[int(random.choice(len(CONTROLS), p=[share for *_, share in CONTROLS]))]
    return region, of_sibling


def edges_of(image: Pixels, mask: Pixels, region: Region) -> Pixels:
    """Edges (H x W, 0 and 1) of an image in a control region, given its mask (1 where the object is visible).

    The companion is not kept, as the service's segmenter does not keep it either: an edit may replace it.
    """
    image, keep = np.ascontiguousarray(image), (mask == 1).astype(np.uint8) * 255
    if region == "none":
        return np.zeros(image.shape[:2], np.uint8)
    if region == "structure":
        return np.asarray(structure(image, keep) // 255, np.uint8)
    full = canny(image)
    return np.asarray((object_region(full, keep) if region == "object" else full) // 255, np.uint8)
