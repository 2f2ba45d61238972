"""Instructions that change one factor of a picture: the sentences that both domains share, and their writer.

A sentence belongs to the slot of the new phrase. `{slot}` is the new phrase, `{old slot}` the phrase of the present
value; any other slot is a phrase of the scene as it is ("the {label}").
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tinyworld.domain.descriptions import PLACEHOLDER, Withheld, choose_phrase
from tinyworld.domain.wording import Sentences, Slot, with_articles

BY_RULE = 0.4  # of the instructions: "change {old phrase} to {new phrase}", as the method's rule words a caption's edit
CHANGES_NOTHING = Sentences(
    (
        "",
        "keep the image exactly as it is",
        "keep the picture as it is",
        "leave everything as it is",
        "change nothing",
    ),
    ("do not change the picture",),
)
SHARED_INSTRUCTIONS: dict[str, Sentences] = {
    "style": Sentences(
        ("turn it into a {style}", "make it a {style}", "redraw the {old style} as a {style}"),
        ("let it look like a {style}",),
    ),
    "weather adjective": Sentences(
        (
            "make it {weather adjective}",
            "make the weather {weather adjective}",
            "change the weather to {weather adjective}",
            "change the weather from {old weather adjective} to {weather adjective}",
        ),
        ("the weather should be {weather adjective}",),
    ),
    "weather adverb": Sentences(
        ("{weather adverb}", "show it {weather adverb}", "show the scene {weather adverb}"),
        ("let it take place {weather adverb}",),
    ),
    "time noun": Sentences(
        (
            "make it {time noun}",
            "change the time of day to {time noun}",
            "change it from {old time noun} to {time noun}",
        ),
        ("it should be {time noun}",),
    ),
    "time adverb": Sentences(
        ("{time adverb}", "show it {time adverb}", "show the scene {time adverb}"),
        ("let it take place {time adverb}",),
    ),
}


@dataclass(frozen=True, slots=True)
class InstructionWording:
    """How a domain says its instructions: its phrases, and sentences by the slot of the new phrase."""

    slots: Mapping[str, Slot]
    sentences: Mapping[str, Sentences]

    def fields(self) -> tuple[str, ...]:
        """The fields of a scene that instructions change, in a fixed order."""
        return tuple(dict.fromkeys(self.slots[name].field for name in self.sentences))

    def instruction(self, scene: object, field: str, value: str, seed: int, *, withheld: Withheld = "nothing") -> str:
        """An instruction that sets a `field` of a scene to `value`. If the scene has that value, it changes nothing.

        `seed` draws sentence, synonyms, capital and full stop. Half of the sentences or phrases that `withheld` names
        never occur in training. Raises KeyError for a field without instructions.
        """
        random = np.random.default_rng((0x125, seed))
        slots = [name for name in self.sentences if self.slots[name].field == field]
        if not slots:
            raise KeyError(f"no instruction changes {field!r}; they change {', '.join(self.fields())}")
        slot = slots[int(random.integers(len(slots)))]
        sentence = f"change {{old {slot}}} to {{{slot}}}"
        if random.random() >= BY_RULE or withheld != "nothing":
            sentence = _choose_sentence(self.sentences[slot], random, withheld)

        def phrase(name: str) -> str:
            named = self.slots[name.removeprefix("old ")]
            shown = value if name == slot else str(getattr(scene, named.field))
            return choose_phrase(named.wordings[shown], random, withheld=withheld == "phrases too")

        return _with_random_punctuation(
            with_articles(PLACEHOLDER.sub(lambda match: phrase(match[1]), sentence)), random
        )

    def of_phrases(self, slot: str, old: str, new: str, stated: Mapping[str, str], seed: int) -> str:
        """An instruction for a caption's edit: `old` becomes `new`, both of a slot. `stated`: its phrases by field.

        It uses no phrase that the caption lacks. Where the domain has no instruction of the slot, the rule words it.
        """
        random = np.random.default_rng((0x127, seed))
        phrases = {**stated, slot: new, f"old {slot}": old}
        usual = self.sentences[slot].usual if slot in self.sentences else ()
        fitting = [text for text in usual if " " in PLACEHOLDER.sub("", text).strip()]
        sentences = [text for text in fitting if set(PLACEHOLDER.findall(text)) <= set(phrases)]
        sentence = (sentences or [f"change {{old {slot}}} to {{{slot}}}"])[int(random.integers(max(1, len(sentences))))]
        text = with_articles(PLACEHOLDER.sub(lambda match: phrases[match[1]], sentence))
        return f"{text[0].upper()}{text[1:]}."


def no_change(seed: int, *, withheld: Withheld = "nothing") -> str:
    """A sham instruction: it says in words that nothing changes, or nothing at all."""
    random = np.random.default_rng((0x126, seed))
    return _with_random_punctuation(_choose_sentence(CHANGES_NOTHING, random, withheld), random)


def _choose_sentence(sentences: Sentences, random: np.random.Generator, withheld: Withheld) -> str:
    rare = withheld != "nothing" and random.random() < 0.5
    choices: Sequence[str] = sentences.withheld if rare else sentences.usual
    return choices[int(random.integers(len(choices)))]


def _with_random_punctuation(text: str, random: np.random.Generator) -> str:
    capital, stop = random.random(2) < 0.3
    text = text[:1].upper() + text[1:] if capital else text
    return f"{text}." if stop and text else text
