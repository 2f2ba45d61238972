"""The control images of driving scenes for training the generator (`research.pictures.control_edges`)."""

from __future__ import annotations

import numpy as np

from research.pictures.control_edges import draw_control, draw_sibling, edges_of
from tinyworld.drawing.canvas import Image
from tinyworld.roads.world import CLASSES, LOOKS, Scene, withheld

_KEPT_CLASSES = [CLASSES.index(name) for name in ("vehicle", "pedestrian", "traffic light")]


def sibling(scene: Scene, random: np.random.Generator) -> Scene:
    """The same scene with one to three looks changed, not withheld either."""
    return draw_sibling(scene, LOOKS, withheld, random)


def standing(classes: Image) -> Image:
    """1 where a class mask has vehicles, pedestrians or traffic lights, 0 elsewhere."""
    return np.isin(classes, _KEPT_CLASSES).astype(np.uint8)


def training_edges(image: Image, sibling_image: Image, classes: Image, random: np.random.Generator) -> Image:
    """A random control image (H x W, 0 and 1) of an image or of its sibling, given their class mask."""
    region, of_sibling = draw_control(random)
    return edges_of(sibling_image if of_sibling else image, standing(classes), region)
