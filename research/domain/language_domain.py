"""What training examples of the tiny language model need to know of a domain."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pydoc_data.topics import topics
from typing import Generic, TypeVar

from research.domain.instructions import InstructionWording
from tinyworld.domain.descriptions import Description, Withheld
from tinyworld.domain.scenes import Split
from tinyworld.domain.wording import Sentences, Slot

SHARED_TASKS: dict[str, Sentences] = {
    "weather": Sentences(
        ("recognise the weather", "tell what the weather is like", "classify the weather in the picture"),
        ("which weather is it?",),
    ),
    "time": Sentences(
        ("tell the time of day", "decide whether it is day or night", "recognise the time of day"), ("is it day?",)
    ),
    "style": Sentences(
        ("tell photos from paintings", "recognise the kind of picture", "classify the style"), ("is this a photo?",)
    ),
}


def english_words() -> list[str]:
    """Common English words, commonest first, from the language reference that Python itself ships."""
    words = re.findall(r"(?<![\w.])[a-z]{3,9}(?![\w.(])", " ".join(topics.values()))
    return [word for word, count in Counter(words).most_common() if count >= 3]


WORDS = english_words()
S = TypeVar("S")


@dataclass(frozen=True)
class LanguageDomain(Generic[S]):
    """What examples need to know of a domain: scenes, captions, phrases, what may be edited, what tasks ask for,
    instructions.

    `main` is the field that most tasks ask for; one that scenes lack ("masks") has no ground truth in words.
    """

    name: str
    scene: Callable[[Split, int, bool], S]  # split, index, whether withheld combinations are allowed
    described: Callable[[S, int, Withheld], Description]  # scene, seed, what no training shows
    slots: Mapping[str, Slot]
    edit_factor: Mapping[str, str]
    tasks: Mapping[str, Sentences]
    main: str
    instructions: InstructionWording
    carriers: list[str] = field(init=False, repr=False)  # words that state nothing in a caption

    def __post_init__(self) -> None:
        phrases = (p for slot in self.slots.values() for wording in slot.wordings.values() for p in wording.all)
        stating = {word for phrase in phrases for word in phrase.split()}
        object.__setattr__(self, "carriers", [word for word in WORDS if word not in stating])
