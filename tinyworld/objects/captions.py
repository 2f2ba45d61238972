"""Captions of scenes, and the exact parser from captions back to factors.

`describe` says a scene in 2 to 4 short sentences with paraphrases, synonyms and omitted factors; `read` is its
inverse: `read(describe(scene, seed).text)` equals the stated factors. So captions written by models can be judged.
"""

from __future__ import annotations

import re

import numpy as np

from tinyworld.domain.descriptions import OMITTED, PLACEHOLDER, Description, Mention, Withheld, choose_phrase
from tinyworld.domain.wording import SKIES, Sentences, with_articles
from tinyworld.objects.phrases import COMPANIES, OPENINGS, SLOTS
from tinyworld.objects.world import Scene

_OPTIONAL = ("style", "size", "colour", "pattern", "background", "weather", "time")


def caption(scene: Scene, seed: int, *, withheld: Withheld = "nothing") -> str:
    """The text of `describe`."""
    return describe(scene, seed, withheld=withheld).text


def describe(scene: Scene, seed: int, *, withheld: Withheld = "nothing", omitted: float = OMITTED) -> Description:
    """Describe a scene: always the class, and each other factor with probability 1 - `omitted`.

    `seed` (any non-negative integer) draws omissions, sentences and synonyms. Half of the sentences or phrases that
    `withheld` names never occur in training. The text never mentions a companion "none" or the silhouette. It has at
    most 45 words.
    """
    return _Writer(scene, np.random.default_rng((0xCA, seed)), withheld, omitted).write()


class _Writer:
    """Writes one caption: one stream of random choices, and the mentions made so far."""

    def __init__(self, scene: Scene, random: np.random.Generator, withheld: Withheld, omitted: float) -> None:
        self.scene = scene
        self.random = random
        self.omitted = omitted
        self.new_sentences = withheld != "nothing"
        self.new_phrases = withheld == "phrases too"
        self.mentions: list[Mention] = []

    def write(self) -> Description:
        stated = {field for field in _OPTIONAL if self.random.random() >= self.omitted}
        friend = self.scene.companion != "none" and self.random.random() >= self.omitted
        if friend:
            stated |= {field for field in ("companion_colour", "relation") if self.random.random() >= self.omitted}
        elif not stated & {"weather", "time"}:
            stated.add("weather")  # two sentences at least
        tail = [(SKIES, stated & {"weather", "time"})] if stated & {"weather", "time"} else []
        if friend:
            tail.insert(int(self.random.integers(len(tail) + 1)), (COMPANIES, stated & {"relation"}))
        sentences: list[str] = []
        for table, key in [(OPENINGS, stated & {"style", "background"}), *tail]:
            short = len(tail) == 2 and any(sentence.count(".") > 1 for sentence in sentences)
            sentences.append(self._fill(self._sentence(table[frozenset(key)], short=short), stated))
        return Description(with_articles(" ".join(sentences)), tuple(self.mentions))

    def _sentence(self, sentences: Sentences, *, short: bool) -> str:
        withheld = self.new_sentences and self.random.random() < 0.5
        choices = [s for s in (sentences.withheld if withheld else sentences.usual) if not short or s.count(".") == 1]
        return choices[int(self.random.integers(len(choices)))]

    def _fill(self, sentence: str, stated: set[str]) -> str:
        return PLACEHOLDER.sub(lambda match: self._words(match[1], stated), sentence)

    def _words(self, slot: str, stated: set[str]) -> str:
        if slot == "object":
            adjectives = [self._phrase(field) for field in ("size", "colour", "pattern") if field in stated]
            return " ".join([*adjectives, self._phrase("label")])
        if slot != "friend":
            return self._phrase(slot)
        if "companion_colour" not in stated:
            return self._phrase("companion")
        if self.scene.companion == "person":
            return f"{self._phrase('companion')} in {self._phrase('companion_colour')}"
        return f"{self._phrase('companion_colour')} {self._phrase('companion')}"

    def _phrase(self, slot: str) -> str:
        field = SLOTS[slot].field
        value = str(getattr(self.scene, field))
        phrase = choose_phrase(SLOTS[slot].wordings[value], self.random, withheld=self.new_phrases)
        mention = Mention(field, value, phrase)
        if mention not in self.mentions:
            self.mentions.append(mention)
        return phrase


def _vocabulary() -> dict[str, tuple[str, str]]:
    """(field, value) by phrase, longest phrase first; colours are listed under "colour"."""
    meanings = {
        phrase: (slot.field, value)
        for name, slot in SLOTS.items()
        if name != "companion_colour"
        for value, wording in slot.wordings.items()
        for phrase in wording.all
    }
    return dict(sorted(meanings.items(), key=lambda item: -len(item[0])))


_VALUES = _vocabulary()
_PHRASE = re.compile(rf"\b({'|'.join(map(re.escape, _VALUES))})\b")
_ADJECTIVES = ("size", "colour", "pattern")
_BETWEEN_ADJECTIVES = re.compile(r"[ ,]+(and )?")


def read(text: str) -> dict[str, str]:
    """The factors that a caption states, by `Scene` field; the first statement wins where two disagree.

    Adjectives belong to the noun that they precede, or to the companion in "a person in red"; adjectives of nothing
    known are left out. A side ("left") counts only where a companion is stated. Never raises.
    """
    text = text.lower()
    matches = list(_PHRASE.finditer(text))
    stated: dict[str, str] = {}
    for index, match in enumerate(matches):
        field, value = _VALUES[match[0]]
        if field in _ADJECTIVES:
            field = _possessive(field, _noun(text, matches, index))
        if field:
            stated.setdefault(field, value)
    if "companion" not in stated:
        stated.pop("relation", None)
    return stated


def _noun(text: str, matches: list[re.Match[str]], index: int) -> str:
    """Field of the noun that the adjective at `place` belongs to ("label", "companion" or "")."""
    if index and text[matches[index - 1].end() : matches[index].start()] == " in ":
        before = _VALUES[matches[index - 1][0]][0]
        if before == "companion":
            return before
    for match, following in zip(matches[index:], matches[index + 1 :], strict=False):
        if not _BETWEEN_ADJECTIVES.fullmatch(text[match.end() : following.start()]):
            return ""
        field = _VALUES[following[0]][0]
        if field not in _ADJECTIVES:
            return field
    return ""


def _possessive(adjective: str, noun: str) -> str:
    """The scene field that an adjective of a noun states, "" when the scene has none."""
    if noun == "label":
        return adjective
    return "companion_colour" if noun == "companion" and adjective == "colour" else ""
