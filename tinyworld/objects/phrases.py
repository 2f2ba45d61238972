"""The language of the domain `objects`: the phrases of every factor value, and the sentences that use them."""

from __future__ import annotations

from tinyworld.domain.scenes import COLOURS, COMPANION_COLOURS
from tinyworld.domain.wording import COLOUR_WORDINGS, SHARED_SLOTS, SKY_SLOTS, Sentences, Slot, Wording, check_wordings
from tinyworld.objects.world import CLASSES, FACTOR_VALUES

SLOTS: dict[str, Slot] = {
    "style": SHARED_SLOTS["style"],
    "size": Slot("size", {
        "small": Wording(("small", "little"), ("tiny",)),
        "large": Wording(("large", "big"), ("huge",)),
    }),
    "colour": Slot("colour", {colour: COLOUR_WORDINGS[colour] for colour in COLOURS}),
    "pattern": Slot("pattern", {
        "plain": Wording(("plain", "unpatterned"), ("patternless",)),
        "striped": Wording(("striped", "banded"), ("stripy",)),
        "dotted": Wording(("dotted", "spotted"), ("speckled",)),
    }),
    "label": Slot("label", {label: Wording((label,)) for label in CLASSES}),
    "background": Slot("background", {
        "beach": Wording(("on a beach", "by the sea"), ("on the seashore",)),
        "meadow": Wording(("in a meadow", "in a grassy field"), ("on a green pasture",)),
        "city": Wording(("in a city", "among tall buildings"), ("downtown",)),
        "forest": Wording(("in a forest", "among trees"), ("in the woods",)),
        "desert": Wording(("in a desert", "among sand dunes"), ("in a dry wasteland",)),
        "mountains": Wording(("in the mountains", "below high peaks"), ("in the highlands",)),
    }),
    **{name: SHARED_SLOTS[name] for name in SKY_SLOTS},
    "companion": Slot("companion", {
        "person": Wording(("person", "pedestrian"), ("passer-by",)),
        "dog": Wording(("dog", "puppy"), ("hound",)),
        "bicycle": Wording(("bicycle", "bike"), ("cycle",)),
        "sign": Wording(("sign", "signpost"), ("placard",)),
    }),
    "companion_colour": Slot("companion_colour", {colour: COLOUR_WORDINGS[colour] for colour in COMPANION_COLOURS}),
    "relation": Slot("relation", {"left": Wording(("left",)), "right": Wording(("right",))}),
}  # fmt: skip


# Keyed by which of the optional factors are stated.
OPENINGS: dict[frozenset[str], Sentences] = {
    frozenset({"style", "background"}): Sentences(
        (
            "A {style} of a {object} {background}.",
            "This {style} shows a {object} {background}.",
            "This is a {style} of a {object}. The {label} is {background}.",
        ),
        ("Here is a {style} in which a {object} appears {background}.",),
    ),
    frozenset({"style"}): Sentences(
        ("A {style} of a {object}.", "This {style} shows a {object}.", "This is a {style} of a {object}."),
        ("Here is a {style} in which a {object} appears.",),
    ),
    frozenset({"background"}): Sentences(
        (
            "A {object} is {background}.",
            "There is a {object} {background}.",
            "The picture shows a {object}. The {label} is {background}.",
        ),
        ("One sees a {object} {background}.",),
    ),
    frozenset(): Sentences(("There is a {object}.", "The picture shows a {object}."), ("One sees a {object}.",)),
}
COMPANIES: dict[frozenset[str], Sentences] = {
    frozenset({"relation"}): Sentences(
        (
            "A {friend} is to the {relation} of the {label}.",
            "To the {relation} of the {label} there is a {friend}.",
            "On the {relation} there is a {friend}.",
        ),
        ("Its {relation} side has a {friend} for company.",),
    ),
    frozenset(): Sentences(
        ("A {friend} is beside the {label}.", "There is also a {friend}.", "Next to the {label} there is a {friend}."),
        ("It has a {friend} for company.",),
    ),
}
check_wordings(SLOTS, FACTOR_VALUES)
