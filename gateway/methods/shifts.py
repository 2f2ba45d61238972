"""Shifts: changes that the user writes ("at night", "in the snow"), made in every image. No language model.

1 caption the image
2 write the new caption: the shift's phrase replaces the first phrase of `replaces` that the caption has; without one,
  it is added at the end of the caption's first sentence
3 check the words; a refused shift is recorded with its reason, and not rendered in this image
4 invert the image, and make each edit by prompt-to-prompt
5 check the images
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from gateway.methods.arms import ComparedArms, RenderedArm, compare_arms, rows
from gateway.methods.caption import write_caption
from gateway.methods.counterfactual import (
    ACCEPTED,
    Change,
    ConfirmedChanges,
    Confirming,
    Edit,
    Factor,
    MethodCounterfactual,
    MethodImage,
    TaskDescription,
    Verdict,
)
from gateway.methods.inverted import EditingParameters, ProtectedClasses, edit_and_check
from gateway.methods.paraphrase import paraphrase, revision_with_paraphrase, sham_arms
from gateway.methods.schedule import Inputs, Proposal, accepted_edits
from gateway.methods.text_checks import check_caption, check_change, check_protected
from gateway.methods.validity import judge_validity
from gateway.methods.words import occurrences
from shared.schemas.base import Contract, JsonObject
from shared.service.endpoints import Services


def shifts(
    image: MethodImage, task: TaskDescription, services: Services, parameters: ShiftsParameters, seed: int
) -> Iterator[MethodCounterfactual]:
    """The counterfactuals of one source image: one per shift, in order, then their null arm and their sham arm.

    They are not random; `seed` is only recorded. Raises what the services raise.
    """
    inputs = Inputs("shifts", revision_with_paraphrase(REVISION, parameters), image, task, services, parameters, seed)
    caption = write_caption(image, services, parameters)  # 1
    edits = [shift_caption(caption, shift) for shift in parameters.shifts]  # 2
    proposals = [check_words(inputs, edit) for edit in edits]  # 3
    compared = edit_images(inputs, caption, accepted_edits(proposals))  # 4, 5
    yield from rows(inputs.lineage(), caption, proposals, *compared)


def shift_caption(caption: str, shift: Shift) -> Edit:
    """Step 2: the edit that a shift makes of the caption."""
    old, new_caption = apply_shift(caption, shift)
    return Edit((Change(shift.factor, old, shift.phrase, old, shift.value or shift.phrase),), caption, new_caption)


def apply_shift(caption: str, shift: Shift) -> tuple[str, str]:
    """The phrase of the caption that a shift replaces (empty where it is added), and the new caption."""
    for phrase in shift.replaces:
        if occurrences(caption, phrase):
            whole = rf"(?<!\w){re.escape(phrase.strip())}(?!\w)"
            return phrase, re.sub(whole, lambda _: shift.phrase, caption, flags=re.IGNORECASE)
    end = re.search(r"[.!?](?=\s+[^\W\da-z]|\s*$)|$", caption)
    place = end.start() if end else len(caption)
    return "", f"{caption[:place]} {shift.phrase}{caption[place:]}"


def check_words(inputs: Inputs[ShiftsParameters], edit: Edit) -> Proposal:
    """Step 3: the text checks. An added phrase replaces nothing, so no old phrase is checked."""
    (change,) = edit.changes
    truth, other_classes = inputs.image.ground_truth, inputs.other_classes
    if occurrences(edit.caption, change.to_phrase):
        refusal = Verdict(False, "no change", f"the caption already says “{change.to_phrase}”")
        return Proposal(edit, inputs.seed, refusal)
    replaced = edit.changes if change.from_phrase else ()
    verdict = (
        check_change(change, truth, other_classes)
        or check_caption(replaced, edit.caption, edit.new_caption, truth, other_classes)
        or check_protected(edit, inputs.task, inputs.parameters.protect)
        or ACCEPTED
    )
    return Proposal(edit, inputs.seed, verdict)


def edit_images(inputs: Inputs[ShiftsParameters], caption: str, edits: Sequence[Edit]) -> ComparedArms[float]:
    """Steps 4 and 5: one request for the edits with their null and sham arm, then the image checks."""
    if not edits:
        return ComparedArms([], [])
    p, sham = inputs.parameters, paraphrase(inputs, caption)
    all_edits = [*edits, None, *([sham.edit] if sham else [])]
    sweeps = edit_and_check(inputs, caption, all_edits, [p.self_fraction], p.thresholds)
    arms = [
        RenderedArm(only.image, inputs.seed, only.verdict, only.scores, only.fraction, sweep.evaluations)
        for sweep in sweeps
        for only in sweep.attempts
    ]
    n = len(edits)
    shams = sham_arms(sham, arms[n + 1 :]) if sham else None
    nulls = arms[n : n + 1]
    judged = judge_validity(inputs, edits, arms[:n], nulls, p.thresholds)
    return compare_arms(edits, judged, nulls, shams, p.thresholds_for_arms)


# --- The parameters.

REVISION = "2"  # raise it whenever the same replies would give other counterfactuals
LONGEST_PHRASE = 100
_MOST_SHIFTS, _MOST_REPLACED = 12, 20
Phrase = Annotated[str, Field(min_length=1, max_length=LONGEST_PHRASE)]


class Shift(Contract):
    """One shift; a plain string is its `phrase`. `value` names it in cells (default: the phrase)."""

    phrase: Phrase
    factor: Factor = "other"
    value: Annotated[str, Field(max_length=100)] = ""
    replaces: Annotated[tuple[Phrase, ...], Field(max_length=_MOST_REPLACED)] = ()

    @model_validator(mode="before")
    @classmethod
    def _from_phrase(cls, value: Any) -> Any:
        return {"phrase": value} if isinstance(value, str) else value


DEFAULT = (
    Shift(phrase="at night", factor="weather", value="night", replaces=("by day", "during the day", "at sunset")),
    Shift(phrase="in the snow", factor="weather", value="snow", replaces=("in the rain", "in the fog", "in the sun")),
)


class ShiftsParameters(EditingParameters):
    """A job's parameters for shifts."""

    shifts: Annotated[
        tuple[Shift, ...],
        Field(
            min_length=1, max_length=_MOST_SHIFTS, description="Phrases, each with factor, value and what it replaces."
        ),
    ] = DEFAULT
    protect: ProtectedClasses = ()
    self_fraction: Annotated[
        float, Field(ge=0, le=1, description="Share of the steps in which self-attention is the source's.")
    ] = 0.6

    def fraction(self) -> float | None:
        return self.self_fraction

    @model_validator(mode="after")
    def _shifts_differ(self) -> Self:
        phrases = [shift.phrase.lower() for shift in self.shifts]
        if twice := sorted({phrase for phrase in phrases if phrases.count(phrase) > 1}):
            raise ValueError(f"shifts names {', '.join(twice)} more than once; name each once")
        return self

    def renderings(self) -> tuple[int, int]:
        return len(self.shifts), 1

    def cells(self) -> int:
        return len(self.shifts)


# --- How findings of other methods are tested again.


def confirm(changes: ConfirmedChanges) -> JsonObject:
    """Shifts that make the changes, each by its commonest phrase, in place of the phrases that it replaced."""
    return {"shifts": [_shift(factor, value, phrases()) for (factor, value), phrases in changes.items()]}


def _shift(factor: str, value: str, phrases: Sequence[tuple[str, str]]) -> JsonObject:
    new = Counter(phrase for _, phrase in phrases)
    old = Counter(phrase for phrase, _ in phrases if phrase)
    phrase = min(new, key=lambda name: (-new[name], name))[:LONGEST_PHRASE]
    replaced = sorted(old, key=lambda name: (-old[name], name))[:_MOST_REPLACED]
    return {
        "phrase": phrase,
        "factor": factor,
        "value": value,
        "replaces": [name[:LONGEST_PHRASE] for name in replaced],
    }


CONFIRMING = Confirming("free", "shifts", _MOST_SHIFTS, confirm)
