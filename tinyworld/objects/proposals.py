"""Edits of drawn scenes by caption, as a faultless captioner and language model would write them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from gateway.methods.counterfactual import FACTORS, Change, Edit, Factor
from shared.seeds import derive_seed
from tinyworld.domain.descriptions import Description
from tinyworld.domain.wording import slot_of, with_articles
from tinyworld.objects.captions import describe
from tinyworld.objects.phrases import SLOTS
from tinyworld.objects.world import EDIT_FACTOR, FACTOR_VALUES, Scene

# Edges fix the object's size, so the generator cannot follow such an edit, and it is left out by default.
FIELDS = tuple(field for field in EDIT_FACTOR if field != "size")


@dataclass(frozen=True, slots=True)
class Proposal:
    """An edit of one field of a scene by captions, and the resulting scene."""

    field: str
    scene: Scene
    edit: Edit
    target: Scene

    @property
    def factor(self) -> Factor:
        """Contrafact's factor of the field."""
        return self.edit.changes[0].factor


def proposals(scene: Scene, random: np.random.Generator, fields: Sequence[str] = FIELDS) -> Iterator[Proposal]:
    """One edit per field that the scene's caption states, as a faultless language model would write it."""
    before = _caption(scene, 0)
    for field in fields:
        if field in before.stated:
            yield _proposal(scene, before, field, random)


def proposal(scene: Scene, field: str, random: np.random.Generator) -> Proposal | None:
    """An edit of one field, under a caption that states it; None where the scene does not show it."""
    captions = (_caption(scene, seed) for seed in range(40))
    return next((_proposal(scene, caption, field, random) for caption in captions if field in caption.stated), None)


def rephrase(caption: str, old: str, new: str) -> str:
    """The caption with the first `old` phrase replaced, all else word for word.

    >>> rephrased("A red bus by day.", "red", "orange")
    'An orange bus by day.'
    """
    return with_articles(re.sub(rf"\b{re.escape(old)}\b", new, caption, count=1))


def _caption(scene: Scene, seed: int) -> Description:
    return describe(scene, derive_seed("trial", scene.geometry_seed, seed))


def _proposal(scene: Scene, before: Description, field: str, random: np.random.Generator) -> Proposal:
    other_values = [v for v in FACTOR_VALUES[field] if v not in ("none", getattr(scene, field))]
    value = str(other_values[int(random.integers(len(other_values)))])
    old = next(mention.phrase for mention in before.mentions if mention.field == field)
    phrases = SLOTS[slot_of(old, SLOTS, field=field)].wordings[value].usual
    change = Change(_factor(field), old, phrases[int(random.integers(len(phrases)))], before.stated[field], value)
    edit = Edit((change,), before.text, rephrase(before.text, old, change.to_phrase))
    return Proposal(field, scene, edit, scene.changed(**{field: value}))


def _factor(field: str) -> Factor:
    return next(factor for factor in FACTORS if factor == EDIT_FACTOR[field])
