"""Shifts: changes that the user writes ("at night", "in the snow"), made in every image. No language model.

1 caption the image. 2 the new caption: the shift's phrase in place of the first of its `replaces` that the caption has,
or else at the end of the caption's first sentence. 3 text checks. 4 inversion and prompt-to-prompt. 5 image checks.
A shift that a text check refuses in an image is not rendered there, and is kept with its reason.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from gateway.methods.checks import Scores, check_images, skipped_checks
from gateway.methods.counterfactual import (
    Change,
    Counterfactual,
    Edit,
    Factor,
    Services,
    SourceImage,
    TaskDescription,
    Verdict,
)
from gateway.methods.inverted import EditingParameters, Pictures, ProtectedClasses, caption_of, edited
from gateway.methods.text_checks import check_caption, check_change, check_protected_classes
from gateway.methods.words import occurrences
from shared.schemas.base import Contract, ImagePayload
from shared.schemas.diffusion import PromptEdit

REVISION = "1"  # raise it whenever the same replies would give other counterfactuals
Phrase = Annotated[str, Field(min_length=1, max_length=100)]


class Shift(Contract):
    """One shift; a plain string is its `phrase`. `value` names it in cells (default: the phrase)."""

    phrase: Phrase
    factor: Factor = "other"
    value: Annotated[str, Field(max_length=100)] = ""
    replaces: Annotated[tuple[Phrase, ...], Field(max_length=20)] = ()

    @model_validator(mode="before")
    @classmethod
    def _from_phrase(cls, value: Any) -> Any:
        return {"phrase": value} if isinstance(value, str) else value


DEFAULT = (
    Shift(phrase="at night", factor="weather", value="night", replaces=("by day", "during the day", "at sunset")),
    Shift(phrase="in the snow", factor="weather", value="snow", replaces=("in the rain", "in the fog", "in the sun")),
)


class ShiftsParameters(EditingParameters):
    """What a job may choose about shifts."""

    shifts: Annotated[
        tuple[Shift, ...],
        Field(min_length=1, max_length=12, description="Phrases, each with factor, value and what it replaces."),
    ] = DEFAULT
    protect: ProtectedClasses = ()
    self_fraction: Annotated[
        float, Field(ge=0, le=1, description="Share of the steps in which self-attention is the source's.")
    ] = 0.6

    @model_validator(mode="after")
    def _shifts_differ(self) -> Self:
        phrases = [shift.phrase.lower() for shift in self.shifts]
        if twice := sorted({phrase for phrase in phrases if phrases.count(phrase) > 1}):
            raise ValueError(f"shifts that occur more than once: {', '.join(twice)}; leave each in once")
        return self


@dataclass(frozen=True, slots=True)
class _Made:
    """What came of an edit or (edit None) of the null arm; without image where a text check refused it."""

    edit: Edit | None
    verdict: Verdict
    image: ImagePayload | None = None
    scores: Scores = field(default_factory=dict)
    evaluations: int = 0


def shifts(
    image: SourceImage, task: TaskDescription, services: Services, parameters: ShiftsParameters, seed: int
) -> Iterator[Counterfactual]:
    """The counterfactuals of one source image: one per shift, in order, then their null arm.

    Nothing is drawn, so `seed` only names them. A failure of a service is raised.
    """
    caption = caption_of(image, services, parameters)
    proposed = [
        _Made(edit, _refusal(edit, image, task, parameters.protect) or Verdict(True))
        for edit in _edits(caption, parameters)
    ]
    lineage = {
        "method": "shifts",
        "revision": REVISION,
        "parameters": parameters.model_dump(mode="json"),
        "skipped_checks": list(skipped_checks(image, task)),
        "caption": caption,
    }
    for ordinal, made in enumerate(_render(image, task, services, parameters, caption, proposed)):
        yield Counterfactual(
            ordinal=ordinal,
            arm="edit" if made.edit else "null",
            seed=seed,
            edit=made.edit,
            null_ordinal=len(proposed) if made.edit and made.image else None,
            image=made.image,
            verdict=made.verdict,
            scores=made.scores,
            lineage={**lineage, "evaluations": made.evaluations},
        )


def shifted(caption: str, shift: Shift) -> tuple[str, str]:
    """The phrase of the caption that a shift replaces (empty where it is added), and the new caption."""
    for phrase in shift.replaces:
        if occurrences(caption, phrase):
            whole = rf"(?<!\w){re.escape(phrase.strip())}(?!\w)"
            return phrase, re.sub(whole, lambda _: shift.phrase, caption, flags=re.IGNORECASE)
    end = re.search(r"[.!?](?=\s+[^\W\da-z]|\s*$)|$", caption)
    place = end.start() if end else len(caption)
    return "", f"{caption[:place]} {shift.phrase}{caption[place:]}"


def _edits(caption: str, parameters: ShiftsParameters) -> Iterator[Edit]:
    for shift in parameters.shifts:
        old, new_caption = shifted(caption, shift)
        yield Edit((Change(shift.factor, old, shift.phrase, old, shift.value or shift.phrase),), caption, new_caption)


def _refusal(edit: Edit, image: SourceImage, task: TaskDescription, protect: Sequence[str]) -> Verdict | None:
    """What a text check has against an edit. A phrase that is only added takes none away, so none must have gone."""
    (change,) = edit.changes
    if occurrences(edit.caption, change.to_phrase):
        return Verdict(False, "no change", f"the caption already says “{change.to_phrase}”")
    others = [label for label in task.classes if label != image.ground_truth]
    replaced = edit.changes if change.from_phrase else ()
    return (
        check_change(change, image.ground_truth, others)
        or check_caption(replaced, edit.caption, edit.new_caption, image.ground_truth, others)
        or check_protected_classes(edit.changes, edit.caption, edit.new_caption, protect)
    )


def _render(
    image: SourceImage,
    task: TaskDescription,
    services: Services,
    parameters: ShiftsParameters,
    caption: str,
    proposed: Sequence[_Made],
) -> list[_Made]:
    """The proposed edits, rendered and checked where they were not refused, and their null arm if there are any."""
    wanted = [made.edit for made in proposed if made.edit and made.verdict.accepted]
    if not wanted:
        return list(proposed)
    arms = [*wanted, None]
    prompts = [edit.new_caption if edit else caption for edit in arms]
    asked = [PromptEdit(prompt=prompt, cross_fraction=parameters.cross_fraction) for prompt in prompts]
    reply = edited(image, services, parameters, caption, asked, [parameters.self_fraction])
    images = [row[0] for row in reply.images]
    pictures, limits = Pictures(images, reply.keep_mask), parameters.thresholds
    checked = check_images(services, image, task, pictures, arms, limits, recaption=parameters.recaption)
    once = reply.evaluations.inversion + reply.evaluations.source
    evaluations = reply.evaluations.edit + round(once / len(arms))
    made = {
        edit: _Made(edit, verdict, picture, scores, evaluations)
        for edit, picture, (verdict, scores) in zip(arms, images, checked, strict=True)
    }
    return [*(made.get(one.edit, one) for one in proposed), made[None]]
