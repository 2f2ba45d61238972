"""Captions of driving scenes, and the exact parser from captions back to factors.

`describe` says a scene in 2 to 4 sentences with paraphrases, synonyms and omitted factors; `read` is its inverse:
`read(describe(scene, seed).text)` equals the stated factors. No colour word occurs twice in a caption, so that a phrase
to change is unambiguous.
"""

from __future__ import annotations

import re

import numpy as np

from tinyworld.domain.descriptions import OMITTED, PLACEHOLDER, Description, Mention, Withheld, choose_phrase
from tinyworld.domain.wording import SKIES, Sentences, with_articles
from tinyworld.roads.phrases import LIGHT, OPENINGS, PEOPLE, SLOTS, SURROUNDINGS, TRAFFIC
from tinyworld.roads.world import Scene

_ALWAYS_THERE = ("style", "place", "surface", "season", "buildings", "weather", "time")
_MOST_SENTENCES = 4
Topic = tuple[dict[frozenset[str], Sentences], frozenset[str]]


def caption(scene: Scene, seed: int, *, withheld: Withheld = "nothing") -> str:
    """The text of `describe`."""
    return describe(scene, seed, withheld=withheld).text


def describe(scene: Scene, seed: int, *, withheld: Withheld = "nothing", omitted: float = OMITTED) -> Description:
    """Describe a scene: always the road, and each other factor with probability 1 - `omitted` at most.

    The text mentions at most three of sky, surroundings, vehicle, pedestrian and traffic light, drawn at random. `seed`
    draws omissions, sentences and synonyms. Half of the sentences or phrases that `withheld` names never occur in
    training.
    """
    return _Writer(scene, np.random.default_rng((0x20CA, seed)), withheld, omitted).write()


class _Writer:
    """Writes one caption: one stream of random choices, and the mentions made so far."""

    def __init__(self, scene: Scene, random: np.random.Generator, withheld: Withheld, omitted: float) -> None:
        self.scene, self.random, self.omitted = scene, random, omitted
        self.new_sentences = withheld != "nothing"
        self.new_phrases = withheld == "phrases too"
        self.mentions: list[Mention] = []
        self.stated_fields: set[str] = set()

    def write(self) -> Description:
        self.stated_fields = {field for field in _ALWAYS_THERE if self._is_stated()}
        self.stated_fields |= {"vehicle_colour"} if self._is_stated() else set()
        self.stated_fields |= {field for field in ("pedestrian", "where") if self._is_stated()}
        self.stated_fields |= {"clothes"} if self._is_stated() else set()
        topics = self._topics()
        topics = [topics[i] for i in self.random.permutation(len(topics))[: _MOST_SENTENCES - 1]]
        if not topics:
            self.stated_fields.add("weather")
            topics = [(SKIES, frozenset({"weather"}))]
        sentences: list[str] = []
        opening: Topic = (OPENINGS, frozenset(self.stated_fields & {"style", "place"}))
        for index, (table, key) in enumerate([opening, *topics]):
            remaining = _MOST_SENTENCES - sum(s.count(".") for s in sentences) - (len(topics) - index)
            sentences.append(self._fill(self._sentence(table[key], longest=remaining)))
        return Description(with_articles(" ".join(sentences)), tuple(self.mentions))

    def _is_stated(self) -> bool:
        return bool(self.random.random() >= self.omitted)

    def _topics(self) -> list[Topic]:
        """The topics of sentences besides the road itself."""
        scene, stated, topics = self.scene, self.stated_fields, list[Topic]()
        if key := frozenset(stated & {"weather", "time"}):
            topics.append((SKIES, key))
        if key := frozenset(stated & {"season", "buildings"}):
            topics.append((SURROUNDINGS, key))
        if scene.vehicle != "none" and self._is_stated():
            topics.append(({frozenset(): TRAFFIC}, frozenset()))
        if scene.pedestrian != "none" and self._is_stated():
            topics.append((PEOPLE, frozenset(stated & {"pedestrian", "where"})))
        if scene.traffic_light != "none" and self._is_stated():
            topics.append(({frozenset(): LIGHT}, frozenset()))
        stated_colours = {scene.vehicle_colour, scene.traffic_light}
        if scene.clothes in stated_colours:
            stated.discard("clothes")
        if scene.vehicle_colour == scene.traffic_light:
            stated.discard("vehicle_colour")
        return topics

    def _sentence(self, sentences: Sentences, *, longest: int) -> str:
        withheld = self.new_sentences and self.random.random() < 0.5
        choices = [s for s in (sentences.withheld if withheld else sentences.usual) if s.count(".") <= max(1, longest)]
        return choices[int(self.random.integers(len(choices)))]

    def _fill(self, sentence: str) -> str:
        return PLACEHOLDER.sub(lambda match: self._words(match[1]), sentence)

    def _words(self, slot: str) -> str:
        if slot == "road":
            return f"{self._phrase('surface')} road" if "surface" in self.stated_fields else "road"
        if slot == "ahead":
            colour = f"{self._phrase('vehicle_colour')} " if "vehicle_colour" in self.stated_fields else ""
            return colour + self._phrase("vehicle")
        if slot == "person":
            return f"pedestrian in {self._phrase('clothes')}" if "clothes" in self.stated_fields else "pedestrian"
        return self._phrase(slot)

    def _phrase(self, slot: str) -> str:
        field = SLOTS[slot].field
        value = str(getattr(self.scene, field))
        phrase = choose_phrase(SLOTS[slot].wordings[value], self.random, withheld=self.new_phrases)
        self.mentions.append(Mention(field, value, phrase))
        return phrase


_COLOURED = ("vehicle_colour", "clothes", "traffic_light")  # share their words; what stands beside them decides
_BEFORE = {
    "traffic_light": re.compile(r"traffic light (is|shows|has turned) $"),
    "clothes": re.compile(r"(pedestrian|person) in $"),
}
_VALUES: dict[str, tuple[str, str]] = {
    phrase: (slot.field, value)
    for slot in SLOTS.values()
    if slot.field not in _COLOURED
    for value, wording in slot.wordings.items()
    for phrase in wording.all
}
_COLOUR_VALUES: dict[str, dict[str, str]] = {
    name: {phrase: value for value, wording in SLOTS[name].wordings.items() for phrase in wording.all}
    for name in _COLOURED
}
_PHRASES = sorted(
    {*_VALUES, *(phrase for values in _COLOUR_VALUES.values() for phrase in values)}, key=len, reverse=True
)
_PHRASE = re.compile(rf"(?<![\w-])({'|'.join(map(re.escape, _PHRASES))})(?![\w-])")
_VEHICLE = re.compile(r" (car|bus|truck|lorry)\b")


def read(text: str) -> dict[str, str]:
    """The factors that a caption states, by `Scene` field; the first statement wins where two disagree.

    A colour is that of the traffic light, of the pedestrian's clothes, or of the vehicle before which it stands; other
    colours are left out. Never raises.
    """
    text = text.lower()
    stated: dict[str, str] = {}
    for match in _PHRASE.finditer(text):
        before, after = text[: match.start()], text[match.end() :]
        if match[0] in _VALUES:
            field, value = _VALUES[match[0]]
        else:
            fields = [name for name, pattern in _BEFORE.items() if pattern.search(before)]
            field = fields[0] if fields else "vehicle_colour" if _VEHICLE.match(after) else ""
            value = _COLOUR_VALUES.get(field, {}).get(match[0], "")
        if field and value:
            stated.setdefault(field, value)
    return stated
