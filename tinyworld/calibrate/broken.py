"""Counterfactuals by the shipped generator that are good or broken in a known way, to calibrate the checks on.

    good        the edit, under the source's edges
    class       the same edit of a scene with another class, under that scene's edges
    gone        the good picture with the object painted over
    unedited    the source's own caption: nothing changed
    second      the edit, and a second field that the caption states, changed as well

Only pictures count in which both oracles see what was asked for.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import cv2
import numpy as np

from gateway.methods.checks import Scores
from gateway.methods.counterfactual import Edit
from shared.seeds import derive_seed
from tinyworld.judges.oracles import judge
from tinyworld.judges.trials import FIELDS, Drawing, Proposal, Studio, proposals, rephrased, source_picture
from tinyworld.objects.factors import scene_factors
from tinyworld.objects.pictures import Pixels, rendered
from tinyworld.objects.world import CLASSES, Scene, sample_scene

Kind = Literal["good", "class", "gone", "unedited", "second"]
# Every factor as often as the others, the fields of a factor in turn.
TURNS = ("colour", "companion", "background", "weather", "style", "pattern", "companion", "background", "time", "style")
KINDS: tuple[Kind, ...] = ("good", "class", "gone", "unedited", "second")


@dataclass(frozen=True, slots=True)
class Trial:
    """One picture that the checks see: what it is, of which edit of which scene, and the scores that it got."""

    scene: int
    kind: str  # "good", or how it is broken
    edit: Edit
    scores: Scores

    @property
    def factor(self) -> str:
        """Contrafact's factor of the edit."""
        return self.edit.changes[0].factor


@dataclass(frozen=True, slots=True)
class Asked:
    """A picture to be drawn, and the scene that it should show."""

    kind: Kind
    proposal: Proposal
    drawing: Drawing
    shows: Scene


def trials(studio: Studio, edits: int, batch: int) -> tuple[list[Trial], Mapping[str, int]]:
    """Scored pictures of all kinds for `edits` edits, and how many of each kind the oracles did not recognise."""
    asked = [one for proposal in calibration_edits(edits) for one in asked_of(proposal)]
    found: list[Trial] = []
    unlike: Counter[str] = Counter()
    for start in range(0, len(asked), batch):
        some = asked[start : start + batch]
        drawn = [(o, i) for o, i in zip(some, studio.draw([o.drawing for o in some]), strict=True) if i is not None]
        drawn += [(replace(one, kind="gone"), painted_over(one, image)) for one, image in drawn if one.kind == "good"]
        seen = judge([image for _, image in drawn])
        for (one, image), read in zip(drawn, seen, strict=True):
            if not recognised(one, read):
                unlike[one.kind] += 1
                continue
            source = source_picture(one.proposal.scene)
            ((_, scores),) = studio.check(one.proposal.scene, source, [image], [one.proposal.edit])
            found.append(Trial(one.proposal.scene.geometry_seed, one.kind, one.proposal.edit, scores))
    return found, unlike


def calibration_edits(count: int) -> Iterator[Proposal]:
    """Edits of the split "calibration", fields by `TURNS`, each of the next scene whose caption states the field."""
    index = 0
    for number in range(count):
        while True:
            scene = sample_scene("calibration", index)
            random = np.random.default_rng((0xCC, index))
            index += 1
            if found := next(proposals(scene, random, (TURNS[number % len(TURNS)],)), None):
                yield found
                break


def asked_of(proposal: Proposal) -> Iterator[Asked]:
    """What is to be drawn for an edit: all kinds but "gone", which is painted."""
    scene, wanted, edit = proposal.scene, proposal.wanted, proposal.edit
    seed = derive_seed("broken", scene.geometry_seed)
    random = np.random.default_rng((0xB20, scene.geometry_seed))
    source = source_picture(scene)
    yield Asked("good", proposal, Drawing(source, edit.new_caption, edit, seed), wanted)
    yield Asked("unedited", proposal, Drawing(source, edit.caption, edit, seed), scene)
    label = [name for name in CLASSES if name != scene.label][int(random.integers(len(CLASSES) - 1))]
    other = wanted.changed(label=label)
    prompt = re.sub(rf"\b{scene.label}\b", label, edit.new_caption)
    yield Asked("class", proposal, Drawing(source_picture(scene.changed(label=label)), prompt, edit, seed), other)
    stated = [field for field in FIELDS if field != proposal.field]
    second = next(proposals(scene, random, [str(field) for field in random.permutation(stated)]), None)
    if second is not None:
        both = wanted.changed(**{second.field: str(getattr(second.wanted, second.field))})
        (change,) = second.edit.changes
        prompt = rephrased(edit.new_caption, change.from_phrase, change.to_phrase)
        twice = Edit((*edit.changes, change), edit.caption, prompt)
        yield Asked("second", proposal, Drawing(source, twice.new_caption, twice, seed), both)


def painted_over(one: Asked, image: Pixels) -> Pixels:
    """The picture with the object painted over."""
    there = (rendered(one.proposal.scene)[1] == 1).astype(np.uint8)
    return np.asarray(cv2.inpaint(image, cv2.dilate(there, np.ones((9, 9), np.uint8)), 3, cv2.INPAINT_TELEA), np.uint8)


def recognised(one: Asked, read: Mapping[str, str | None]) -> bool:
    """Whether both oracles see the class, or its absence, and every changed field as asked for."""
    if one.kind == "gone":
        return read["label"] != one.proposal.scene.label
    shows = scene_factors(one.shows)
    changed = {one.proposal.field, *_differing(one.shows, one.proposal.scene)}
    return all(read.get(field) == shows.get(field) for field in ("label", *sorted(changed)))


def _differing(first: Scene, second: Scene) -> Sequence[str]:
    shown, other = scene_factors(first), scene_factors(second)
    return [field for field, value in shown.items() if other.get(field) != value]
