"""The control images for training the generator, as an editor computes them.

Edges of the picture itself or of a *sibling*: the same geometry with other factors, so that the
ControlNet learns what to take from edges (where things are) and what not (weather, style, colour).
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from diffusion_service.conditioning import canny, object_region, structure
from tinyworld.objects.pictures import Pixels, rendered
from tinyworld.objects.world import FACTOR_VALUES, Scene, withheld

# What a sibling may differ in: the edits that the editor will be asked for.
SIBLING_FACTORS = ("weather", "time", "style", "background", "colour", "pattern", "companion", "companion_colour")

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


def sibling(scene: Scene, random: np.random.Generator) -> Scene:
    """The same scene with one to three of `SIBLING_FACTORS` changed, not withheld either."""
    while True:
        count = int(random.choice((1, 2, 3), p=(0.6, 0.25, 0.15)))
        names = random.choice(SIBLING_FACTORS, size=count, replace=False)
        changes = {str(name): str(random.choice(np.array(FACTOR_VALUES[str(name)]))) for name in names}
        changed = scene.changed(**changes)
        if changed != scene and not withheld(changed):
            return changed


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


def training_edges(scene: Scene, image: Pixels, mask: Pixels, random: np.random.Generator) -> Pixels:
    """A random control image (H x W, 0 and 1) of an image, by the shares of `CONTROLS`."""
    region, of_sibling, _ = CONTROLS[int(random.choice(len(CONTROLS), p=[share for *_, share in CONTROLS]))]
    return edges_of(*(rendered(sibling(scene, random)) if of_sibling else (image, mask)), region)
