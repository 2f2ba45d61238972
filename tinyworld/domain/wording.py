"""Phrases and sentences of captions: their types, and those that both domains have.

A *slot* is a grammatical place. All phrases of one slot can replace one another in any sentence, except for "a"/"an"
(`with_articles`). Phrases and sentences under `withheld` are never shown to a model in training: they test whether a
model understands or has memorised.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass


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


@dataclass(frozen=True, slots=True)
class Sentences:
    """Ways to say one thing. `{slot}` is a phrase, `{object}` and `{friend}` are phrases with their adjectives."""

    usual: tuple[str, ...]
    withheld: tuple[str, ...]


COLOUR_WORDINGS = {
    "red": Wording(("red", "crimson"), ("scarlet",)),
    "orange": Wording(("orange",), ("tangerine",)),
    "yellow": Wording(("yellow", "golden"), ("lemon",)),
    "green": Wording(("green", "emerald"), ("olive",)),
    "blue": Wording(("blue", "navy"), ("azure",)),
    "purple": Wording(("purple", "violet"), ("lilac",)),
    "white": Wording(("white",), ("ivory",)),
    "black": Wording(("black",), ("jet",)),
}

SKY_SLOTS = ("weather adjective", "weather adverb", "time noun", "time adverb")
SHARED_SLOTS: dict[str, Slot] = {
    "style": Slot("style", {
        "photo": Wording(("photo", "photograph"), ("snapshot",)),
        "painting": Wording(("painting", "oil painting"), ("canvas",)),
        "sketch": Wording(("pencil sketch", "drawing"), ("doodle",)),
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
}  # fmt: skip

# Keyed by which of the optional factors are stated.
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

_ARTICLE = re.compile(r"\b([Aa])n?(?= (\w))")


def with_articles(text: str) -> str:
    """The text with every "a"/"an" made to fit the word that follows it."""
    return _ARTICLE.sub(lambda m: m[1] + ("n" if m[2].lower() in "aeiou" else ""), text)


def slot_of(phrase: str, slots: Mapping[str, Slot], *, field: str | None = None) -> str:
    """Name of the slot of a phrase, among those of a field if given. KeyError for an unknown phrase."""
    for name, slot in slots.items():
        if (field is None or slot.field == field) and any(phrase in w.all for w in slot.wordings.values()):
            return name
    raise KeyError(f"{phrase!r} is not a phrase of tinyworld")


def check_wordings(slots: Mapping[str, Slot], values: Mapping[str, Collection[str | int]]) -> None:
    """Raise ValueError unless every value of each slot's field has a wording, and nothing else has."""
    for slot in slots.values():
        expected = set(values[slot.field]) - {"none"}
        if set(slot.wordings) != expected:
            raise ValueError(f"the wordings of {slot.field} are {set(slot.wordings)}, its values {expected}")
