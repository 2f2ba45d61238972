"""The control images of driving scenes for training the generator: edges, or the classes in their colours.

As for objects (`tinyworld.objects.dataset`): edges of the image itself or of a *sibling*, which has the same layout and
another look, so that the ControlNet learns to use the layout of the edges only.
"""

from __future__ import annotations

import numpy as np

from tinyworld.drawing.canvas import Image
from tinyworld.objects.dataset import CONTROLS, edges_of
from tinyworld.roads.world import CLASSES, LOOKS, RoadScene, withheld

_KEPT = [CLASSES.index(name) for name in ("vehicle", "pedestrian", "traffic light")]


def sibling(scene: RoadScene, random: np.random.Generator) -> RoadScene:
    """The same scene with one to three looks changed, not withheld either."""
    while True:
        count = int(random.choice((1, 2, 3), p=(0.6, 0.25, 0.15)))
        names = random.choice(tuple(LOOKS), size=count, replace=False)
        changed = scene.changed(**{str(name): str(random.choice(np.array(LOOKS[str(name)]))) for name in names})
        if changed != scene and not withheld(changed):
            return changed


def standing(classes: Image) -> Image:
    """1 where a class mask has vehicles, pedestrians or traffic lights, 0 elsewhere."""
    return np.isin(classes, _KEPT).astype(np.uint8)


def training_edges(image: Image, sibling_image: Image, classes: Image, random: np.random.Generator) -> Image:
    """Edges (H x W, 0 and 1) of an image or of its sibling, given their class mask, by the shares of `CONTROLS`."""
    region, of_sibling, _ = CONTROLS[int(random.choice(len(CONTROLS), p=[share for *_, share in CONTROLS]))]
    return edges_of(sibling_image if of_sibling else image, standing(classes), region)
