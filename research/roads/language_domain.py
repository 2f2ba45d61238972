"""The tasks about driving scenes that examples of the tiny language model have (`research.domain.language_examples`).

The task is to predict masks: the look of things may change, never the layout.
"""

from __future__ import annotations

from research.domain.language_domain import SHARED_TASKS, LanguageDomain
from research.roads.instructions import INSTRUCTIONS
from tinyworld.domain.wording import Sentences
from tinyworld.roads.captions import describe
from tinyworld.roads.phrases import SLOTS
from tinyworld.roads.world import EDIT_FACTOR, Scene, sample_scene

_VERBS = ("segment", "label every pixel of", "find all parts of")
_SCENES = ("the road scene", "the driving scene", "the street", "what a car's camera sees", "roads and pedestrians")
TASKS: dict[str, Sentences] = {
    "masks": Sentences(
        (
            *(f"{verb} {scene}" for verb in _VERBS for scene in _SCENES),
            *("semantic segmentation of road scenes", "tell road, sidewalk, vehicles and pedestrians apart"),
        ),
        ("where may the car drive?", "say for each pixel what it shows", "find people and vehicles on the road"),
    ),
    **SHARED_TASKS,
    "surface": Sentences(("recognise the surface of the road", "is the road wet or dry?"), ("how is the road?",)),
    "traffic_light": Sentences(
        ("tell the state of the traffic light", "read the traffic light"), ("which lamp of the traffic light is on?",)
    ),
    "season": Sentences(("tell the season", "recognise the time of year"), ("which season is it?",)),
}
ROADS = LanguageDomain[Scene](
    "roads",
    lambda split, index, allow_withheld: sample_scene(split, index, allow_withheld=allow_withheld),
    lambda scene, seed, withheld: describe(scene, seed, withheld=withheld),
    SLOTS,
    EDIT_FACTOR,
    TASKS,
    "masks",
    INSTRUCTIONS,
)
