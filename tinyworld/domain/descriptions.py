"""What captions of both domains consist of: mentions of factors, and the random choice of their phrases."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

import numpy as np

from tinyworld.domain.wording import Wording

OMITTED = 0.22  # probability that a caption leaves a factor out, other than the class
SYNONYM = 0.3  # probability of another phrase than the commonest
PLACEHOLDER = re.compile(r"\{([\w ]+)\}")


@dataclass(frozen=True, slots=True)
class Mention:
    """A factor that a caption states: the `Scene` field, its value and the phrase, verbatim in the text."""

    field: str
    value: str
    phrase: str


@dataclass(frozen=True, slots=True)
class Description:
    """A caption and the fields that it states, in the order of the text, each once."""

    text: str
    mentions: tuple[Mention, ...]

    @property
    def stated(self) -> dict[str, str]:
        """Values by field."""
        return {mention.field: mention.value for mention in self.mentions}


# What no training shows, for judging only: nothing, new sentences around known phrases, or new phrases as well.
Withheld = Literal["nothing", "sentences", "phrases too"]


def choose_phrase(wording: Wording, random: np.random.Generator, *, withheld: bool) -> str:
    """A phrase of a value: the commonest, a synonym or, with `withheld`, a withheld one half of the time."""
    if withheld and wording.withheld and random.random() < 0.5:
        return wording.withheld[int(random.integers(len(wording.withheld)))]
    if len(wording.usual) > 1 and random.random() < SYNONYM:
        return wording.usual[1 + int(random.integers(len(wording.usual) - 1))]
    return wording.usual[0]
