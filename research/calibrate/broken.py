"""Counterfactuals by the shipped generator that are good or broken in a known way, for calibrating the checks.

    good        the edit, under the source's edges
    class       the same edit of a scene with another class, under that scene's edges
    gone        the good image with the object painted over
    unedited    the source's own caption: nothing changed
    second      the edit, and a second field that the caption states, changed as well

Only images in which both oracles read the request count.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import cv2
import numpy as np

from gateway.methods.counterfactual import Edit, Scores
from research.judges.oracles.objects import judge
from research.judges.trials import Drawing, Studio, source_picture
from research.objects.pictures import render_pair
from research.pictures.rendered_once import Pixels
from shared.chunks import chunks
from shared.seeds import derive_seed
from tinyworld.objects.proposals import FIELDS, Proposal, proposals, rephrase
from tinyworld.objects.world import CLASSES, Scene, sample_scene, scene_factors

Kind = Literal["good", "class", "gone", "unedited", "second"]
# All factors are equally frequent; the fields of a factor take turns.
TURNS = ("colour", "companion", "background", "weather", "style", "pattern", "companion", "background", "time", "style")


@dataclass(frozen=True, slots=True)
class Trial:
    """One checked image: its kind, its edit and scene, and its scores."""

    scene: int
    kind: str  # "good", or how it is broken
    edit: Edit
    scores: Scores

    @property
    def factor(self) -> str:
        """Contrafact's factor of the edit."""
        return self.edit.changes[0].factor


@dataclass(frozen=True, slots=True)
class RequestedImage:
    """An image to render, and the scene that it should show."""

    kind: Kind
    proposal: Proposal
    drawing: Drawing
    shows: Scene


def trials(studio: Studio, edits: int, batch: int) -> tuple[list[Trial], Mapping[str, int]]:
    """Scored images of all kinds for `edits` edits, and how many of each kind the oracles did not recognise."""
    requests = [request for proposal in calibration_edits(edits) for request in requested_images(proposal)]
    scored: list[Trial] = []
    unlike: Counter[str] = Counter()
    for chunk in chunks(requests, batch):
        rendered_images = [
            (o, i) for o, i in zip(chunk, studio.draw([o.drawing for o in chunk]), strict=True) if i is not None
        ]
        rendered_images += [
            (replace(request, kind="gone"), without_object(request, image))
            for request, image in rendered_images
            if request.kind == "good"
        ]
        readings = judge([image for _, image in rendered_images])
        for (request, image), read in zip(rendered_images, readings, strict=True):
            if not is_recognised(request, read):
                unlike[request.kind] += 1
                continue
            source = source_picture(request.proposal.scene)
            ((_, scores),) = studio.check(request.proposal.scene, source, [image], [request.proposal.edit])
            scored.append(Trial(request.proposal.scene.geometry_seed, request.kind, request.proposal.edit, scores))
    return scored, unlike


def calibration_edits(count: int) -> Iterator[Proposal]:
    """Edits of the split "calibration", fields by `TURNS`, each of the next scene whose caption states the field."""
    index = 0
    for number in range(count):
        while True:
            scene = sample_scene("calibration", index)
            random = np.random.default_rng((0xCC, index))
            index += 1
            if edit := next(proposals(scene, random, (TURNS[number % len(TURNS)],)), None):
                yield edit
                break


def requested_images(proposal: Proposal) -> Iterator[RequestedImage]:
    """The images to render for an edit: all kinds but "gone", which is painted."""
    scene, changed_scene, edit = proposal.scene, proposal.target, proposal.edit
    seed = derive_seed("broken", scene.geometry_seed)
    random = np.random.default_rng((0xB20, scene.geometry_seed))
    source = source_picture(scene)
    yield RequestedImage("good", proposal, Drawing(source, edit.new_caption, edit, seed), changed_scene)
    yield RequestedImage("unedited", proposal, Drawing(source, edit.caption, edit, seed), scene)
    label = [name for name in CLASSES if name != scene.label][int(random.integers(len(CLASSES) - 1))]
    wrong_class = changed_scene.changed(label=label)
    prompt = re.sub(rf"\b{scene.label}\b", label, edit.new_caption)
    yield RequestedImage(
        "class", proposal, Drawing(source_picture(scene.changed(label=label)), prompt, edit, seed), wrong_class
    )
    stated = [field for field in FIELDS if field != proposal.field]
    second = next(proposals(scene, random, [str(field) for field in random.permutation(stated)]), None)
    if second is not None:
        two_changes = changed_scene.changed(**{second.field: str(getattr(second.target, second.field))})
        (change,) = second.edit.changes
        prompt = rephrase(edit.new_caption, change.from_phrase, change.to_phrase)
        twice = Edit((*edit.changes, change), edit.caption, prompt)
        yield RequestedImage("second", proposal, Drawing(source, twice.new_caption, twice, seed), two_changes)


def without_object(request: RequestedImage, image: Pixels) -> Pixels:
    """The image with the object painted over."""
    mask = (render_pair(request.proposal.scene)[1] == 1).astype(np.uint8)
    return np.asarray(cv2.inpaint(image, cv2.dilate(mask, np.ones((9, 9), np.uint8)), 3, cv2.INPAINT_TELEA), np.uint8)


def is_recognised(request: RequestedImage, read: Mapping[str, str | None]) -> bool:
    """Whether both oracles read the class, or its absence, and every changed field as requested."""
    if request.kind == "gone":
        return read["label"] != request.proposal.scene.label
    shows = scene_factors(request.shows)
    changed = {request.proposal.field, *_differing(request.shows, request.proposal.scene)}
    return all(read.get(field) == shows.get(field) for field in ("label", *sorted(changed)))


def _differing(first: Scene, second: Scene) -> Sequence[str]:
    own_values, other_values = scene_factors(first), scene_factors(second)
    return [field for field, value in own_values.items() if other_values.get(field) != value]
