"""The language of tinyworld: the phrases of every factor value, and the sentences that use them.

A *slot* is a grammatical place; all phrases of one slot can replace one another in any sentence, but for
"a"/"an" (`with_articles`). Phrases and sentences under `withheld` are never shown to a model in training:
they are there to judge whether a model understood or memorised.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from tinyworld.objects.world import CLASSES, FACTOR_VALUES
from tinyworld.scenes import COLOURS, COMPANION_COLOURS


@dataclass(frozen=True, slots=True)
class Wording:
    """The phrases of one value in one slot, the commonest first."""

    usual: tuple[str, ...]
    withheld: tuple[str, ...] = ()

    @property
    def all(self) -> tuple[str, ...]:
        """Every phrase, usual ones first."""
        return self.usual + self.withheld


@dataclass(frozen=True, slots=True)
class Slot:
    """One grammatical place: the scene field that it states, and the wording of each value."""

    field: str
    wordings: dict[str, Wording]


_COLOURS = {
    "red": Wording(("red", "crimson"), ("scarlet",)),
    "orange": Wording(("orange",), ("tangerine",)),
    "yellow": Wording(("yellow", "golden"), ("lemon",)),
    "green": Wording(("green", "emerald"), ("olive",)),
    "blue": Wording(("blue", "navy"), ("azure",)),
    "purple": Wording(("purple", "violet"), ("lilac",)),
    "white": Wording(("white",), ("ivory",)),
    "black": Wording(("black",), ("jet",)),
}

SLOTS: dict[str, Slot] = {
    "style": Slot("style", {
        "photo": Wording(("photo", "photograph"), ("snapshot",)),
        "painting": Wording(("painting", "oil painting"), ("canvas",)),
        "sketch": Wording(("pencil sketch", "drawing"), ("doodle",)),
    }),
    "size": Slot("size", {
        "small": Wording(("small", "little"), ("tiny",)),
        "large": Wording(("large", "big"), ("huge",)),
    }),
    "colour": Slot("colour", {colour: _COLOURS[colour] for colour in COLOURS}),
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
    "weather adjective": Slot("weather", {
        "clear": Wording(("clear", "cloudless"), ("bright",)),
        "rain": Wording(("rainy", "wet"), ("drizzly",)),
        "snow": Wording(("snowy", "wintry"), ("frosty",)),
        "fog": Wording(("foggy", "misty"), ("hazy",)),
    }),
    "weather adverb": Slot("weather", {
        "clear": Wording(("in clear weather", "under a clear sky"), ("without a cloud",)),
        "rain": Wording(("in the rain", "in a shower"), ("in a downpour",)),
        "snow": Wording(("in the snow", "in falling snow"), ("in a snowstorm",)),
        "fog": Wording(("in the fog", "in thick mist"), ("in a haze",)),
    }),
    "time noun": Slot("time", {
        "day": Wording(("day", "daytime"), ("noon",)),
        "sunset": Wording(("sunset", "dusk"), ("twilight",)),
        "night": Wording(("night", "nighttime"), ("midnight",)),
    }),
    "time adverb": Slot("time", {
        "day": Wording(("during the day", "in daylight"), ("at noon",)),
        "sunset": Wording(("at sunset", "at dusk"), ("at twilight",)),
        "night": Wording(("at night", "after dark"), ("at midnight",)),
    }),
    "companion": Slot("companion", {
        "person": Wording(("person", "pedestrian"), ("passer-by",)),
        "dog": Wording(("dog", "puppy"), ("hound",)),
        "bicycle": Wording(("bicycle", "bike"), ("cycle",)),
        "sign": Wording(("sign", "signpost"), ("placard",)),
    }),
    "companion_colour": Slot("companion_colour", {colour: _COLOURS[colour] for colour in COMPANION_COLOURS}),
    "relation": Slot("relation", {"left": Wording(("left",)), "right": Wording(("right",))}),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Sentences:
    """Ways to say one thing. `{slot}` is a phrase, `{object}` and `{friend}` are phrases with their adjectives."""

    usual: tuple[str, ...]
    withheld: tuple[str, ...]


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
SKIES: dict[frozenset[str], Sentences] = {
    frozenset({"weather", "time"}): Sentences(
        (
            "It is a {weather adjective} {time noun}.",
            "It is {weather adjective} {time adverb}.",
            "The weather is {weather adjective}. It is {time noun}.",
            "The scene is set {time adverb} {weather adverb}.",
        ),
        ("All of this happens {weather adverb} {time adverb}.",),
    ),
    frozenset({"weather"}): Sentences(
        ("It is {weather adjective}.", "The weather is {weather adjective}.", "The scene is set {weather adverb}."),
        ("All of this happens {weather adverb}.",),
    ),
    frozenset({"time"}): Sentences(
        ("It is {time noun}.", "The scene is set {time adverb}."), ("All of this happens {time adverb}.",)
    ),
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

_ARTICLE = re.compile(r"\b([Aa])n?(?= (\w))")


def with_articles(text: str) -> str:
    """The text with every "a"/"an" made to fit the word that follows it."""
    return _ARTICLE.sub(lambda m: m[1] + ("n" if m[2].lower() in "aeiou" else ""), text)


def slot_of(phrase: str, *, field: str | None = None, slots: Mapping[str, Slot] = SLOTS) -> str:
    """Name of the slot that a phrase belongs to (of a field, where a phrase serves two); KeyError for none."""
    for name, slot in slots.items():
        if (field is None or slot.field == field) and any(phrase in w.all for w in slot.wordings.values()):
            return name
    raise KeyError(f"{phrase!r} is not a phrase of tinyworld")


def _check_tables() -> None:
    """Every value of every stated factor has a wording, and none else."""
    for slot in SLOTS.values():
        expected = set(FACTOR_VALUES[slot.field]) - {"none"}
        if set(slot.wordings) != expected:
            raise ValueError(f"the wordings of {slot.field} are {set(slot.wordings)}, its values {expected}")


_check_tables()
