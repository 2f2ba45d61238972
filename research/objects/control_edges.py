"""The control images of pictures of objects for training the generator (`research.pictures.control_edges`)."""

from __future__ import annotations

import numpy as np

from research.objects.pictures import render_pair
from research.pictures.control_edges import draw_control, draw_sibling, edges_of
from research.pictures.rendered_once import Pixels
from tinyworld.objects.world import FACTOR_VALUES, Scene, withheld

# A sibling may differ in the factors of the edits that the editor makes.
SIBLING_FACTORS = ("weather", "time", "style", "background", "colour", "pattern", "companion", "companion_colour")
_VALUES = {name: FACTOR_VALUES[name] for name in SIBLING_FACTORS}


def sibling(scene: Scene, random: np.random.Generator) -> Scene:
    """The same scene with one to three of `SIBLING_FACTORS` changed, not withheld either."""
    return draw_sibling(scene, _VALUES, withheld, random)


def training_edges(scene: Scene, image: Pixels, mask: Pixels, random: np.random.Generator) -> Pixels:
    """A random control image (H x W, 0 and 1) of an image or of its sibling, given its mask."""
    region, of_sibling = draw_control(random)
    return edges_of(*(render_pair(sibling(scene, random)) if of_sibling else (image, mask)), region)
