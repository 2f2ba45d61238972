"""The tasks about objects that examples of the tiny language model have (`research.domain.language_examples`)."""

from __future__ import annotations

from research.domain.language_domain import SHARED_TASKS, LanguageDomain
from research.objects.instructions import INSTRUCTIONS
from tinyworld.domain.wording import Sentences
from tinyworld.objects.captions import describe
from tinyworld.objects.phrases import SLOTS
from tinyworld.objects.world import EDIT_FACTOR, Scene, sample_scene

_VERBS = ("classify", "recognise", "identify", "name", "tell", "detect")
_THINGS = ("the vehicle", "the object", "the main object", "what is shown", "the thing", "cars and buses")
_PLACES = ("", " in the image", " in the picture", " in a street photo", " that the picture shows", " in a photo")
TASKS: dict[str, Sentences] = {
    "label": Sentences(
        (
            *(f"{verb} {thing}{place}" for verb in _VERBS for thing in _THINGS for place in _PLACES),
            *("image classification", "object recognition", "which object is this?"),
        ),
        ("what is this?", "decide which vehicle one sees", "put the image into its class", "find out what it is"),
    ),
    **{name: SHARED_TASKS[name] for name in ("weather", "time")},
    "colour": Sentences(
        ("name the colour of the object", "which colour does the object have?", "recognise the colour"),
        ("what colour is it?",),
    ),
    "background": Sentences(
        ("recognise the place", "tell where the picture was taken", "classify the background"), ("where is this?",)
    ),
    "companion": Sentences(
        ("tell what stands beside the object", "name the thing nearby", "which animal stands beside it?"),
        ("what else is there?",),
    ),
    "style": SHARED_TASKS["style"],
}


OBJECTS = LanguageDomain[Scene](
    "objects",
    lambda split, index, allow_withheld: sample_scene(split, index, allow_withheld=allow_withheld),
    lambda scene, seed, withheld: describe(scene, seed, withheld=withheld),
    SLOTS,
    EDIT_FACTOR,
    TASKS,
    "label",
    INSTRUCTIONS,
)
