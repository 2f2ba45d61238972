"""Edit the source image by inversion and prompt-to-prompt; shared by LANCE, LANCE-R, reconstruction and shifts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

from pydantic import Field

from gateway.methods.arms import ComparedArms, RenderedArm, compare_arms
from gateway.methods.checks import RENDERED_CHECKS, check_images
from gateway.methods.counterfactual import Edit, Lineage, MethodParameters, Scores, Thresholds, TriedFraction, Verdict
from gateway.methods.paraphrase import ParaphraseParameters, new_words, paraphrase, sham_arms
from gateway.methods.schedule import Inputs
from gateway.methods.validity import CheckParameters, judge_validity
from shared.chunks import chunks
from shared.profiles.diffusion import Diffusion
from shared.schemas.base import MAX_IMAGES_PER_MESSAGE, ImagePayload
from shared.schemas.diffusion import (
    ControlScale,
    EditControl,
    EditReply,
    EditRequest,
    Fraction,
    Guidance,
    InversionKind,
    LocalBlend,
    NullText,
    PhraseWeight,
    PromptEdit,
    WordAttention,
)
from shared.schemas.effects import DoseParameter

MAX_EDITED_IMAGES = MAX_IMAGES_PER_MESSAGE - 1  # edits per request; the reply also contains the reconstruction
ProtectedClasses = Annotated[
    tuple[str, ...], Field(max_length=50, description="Classes that edits may not name; their shape is not held here.")
]


class InversionParameters(MethodParameters):
    """A job's parameters for caption and inversion. Defaults are LANCE's, except `direct` instead of `null_text`."""

    inversion: Annotated[
        InversionKind,
        Field(description="direct: Direct (PnP) inversion; null_text: optimised null embeddings (LANCE)."),
    ] = "direct"
    null_text: Annotated[NullText, Field(description="How null_text optimises (LANCE: 10 iterations, rate 0.01).")] = (
        NullText()
    )
    control: Annotated[
        EditControl,
        Field(description="none: the UNet alone; empty: a ControlNet that sees no edges; else: those of that region."),
    ] = "none"
    control_scale: Annotated[ControlScale, Field(description="Weight of the control.")] = 1.0
    steps: Annotated[int, Field(ge=1, le=200, description="Steps of inversion, and of sampling.")] = 50
    guidance: Annotated[Guidance, Field(description="Classifier-free guidance scale.")] = 7.5
    caption_prompt: Annotated[str, Field(max_length=500, description="Prefix given to the captioner.")] = ""
    caption_min_tokens: Annotated[int, Field(ge=0, le=200, description="Shortest caption.")] = 20
    caption_max_tokens: Annotated[int, Field(ge=1, le=256, description="Longest caption.")] = 100
    caption_beams: Annotated[int, Field(ge=1, le=8, description="Beams of the caption search.")] = 5


class EditingParameters(InversionParameters, ParaphraseParameters, CheckParameters):
    """A job's parameters for edits and their checks."""

    cross_fraction: Annotated[
        float,
        Field(
            ge=0, le=1, description="Share of the steps in which cross-attention is the source's, where captions agree."
        ),
    ] = 0.8
    attention: Annotated[
        WordAttention,
        Field(
            description="Prompt-to-prompt: new words take over the attention of those that they replace (replace), or "
            "have their own (refine)."
        ),
    ] = "replace"
    reweight: Annotated[
        float, Field(ge=-10, le=10, description="Prompt-to-prompt: how strongly the image attends to the new phrase.")
    ] = 1.0
    blend: Annotated[
        bool,
        Field(
            description="Prompt-to-prompt's LocalBlend: only the area that attends to the old or new phrase changes."
        ),
    ] = False

    def dosed(self, parameter: DoseParameter | None, diffusion: Diffusion) -> DoseParameter | None:
        return parameter or "guidance"


class SweepParameters(EditingParameters):
    """A job's parameters for a sweep over self-attention fractions.

    The fractions are LANCE's (Table 6); its code sweeps 0.4 to 0.8, and refines (docs/reference/methods.md).
    """

    self_fractions: Annotated[
        tuple[Fraction, ...],
        Field(
            min_length=1,
            max_length=MAX_EDITED_IMAGES,
            description="Shares of the steps in which self-attention is the source's: each is tried, the best is kept.",
        ),
    ] = (0.4, 0.5, 0.6, 0.7, 0.8, 0.9)

    def renderings(self) -> tuple[int, int]:
        """Each edit under every fraction, and a null arm for each fraction that is chosen."""
        edits, fractions = self.cells(), len(set(self.self_fractions))
        return edits * fractions, min(edits, fractions)


@dataclass(frozen=True, slots=True)
class Attempt:
    """An image edited with one self-attention fraction (None: not finite), with its verdict and scores."""

    fraction: float
    image: ImagePayload | None
    verdict: Verdict
    scores: Scores


@dataclass(frozen=True, slots=True)
class Sweep:
    """The attempts at one edit, one for each fraction, and their cost in network evaluations.

    `evaluations` includes a share of the inversion and the source branch, which the edits of a request have in common.
    """

    attempts: tuple[Attempt, ...]
    evaluations: int

    def arm(self, chosen: Attempt, seed: int) -> RenderedArm[float]:
        """The image of one attempt, whose null arm has the same fraction, with the whole sweep in its lineage."""
        tried: list[TriedFraction] = [
            {"self_fraction": a.fraction, "check": a.verdict.check, "reason": a.verdict.reason, "scores": a.scores}
            for a in self.attempts
        ]
        lineage: Lineage = {"self_fraction": chosen.fraction, "sweep": tried}
        return RenderedArm(
            chosen.image, seed, chosen.verdict, chosen.scores, chosen.fraction, self.evaluations, lineage=lineage
        )


@dataclass(frozen=True, slots=True)
class EditedBatch:
    """The reply to one request: each edit (None: the null arm) of the source image under each fraction."""

    edits: Sequence[Edit | None]
    fractions: Sequence[float]
    reply: EditReply

    @property
    def images(self) -> list[ImagePayload | None]:
        """The images of the first edit under every fraction, then those of the second."""
        return [image for row in self.reply.images for image in row]

    @property
    def refusals(self) -> Sequence[str | None]:
        """Why the editor refuses each edit, None where it does not."""
        return self.reply.refusals or [None] * len(self.edits)

    @property
    def keep_mask(self) -> ImagePayload | None:
        """The mask of the region that must stay in the source image."""
        return self.reply.keep_mask


def invert_and_edit(
    inputs: Inputs[EditingParameters], caption: str, edits: Sequence[Edit | None], fractions: Sequence[float]
) -> Iterator[EditedBatch]:
    """Invert the source image under its caption, and make each edit under each self-attention fraction.

    A request has as many edits as its limit of images allows. Without edits nothing is sent.
    """
    p = inputs.parameters
    for batch in chunks(edits, max(1, MAX_EDITED_IMAGES // len(fractions))):
        prompt_edits = [prompt_edit(p, edit) if edit else null_edit(p, caption) for edit in batch]
        request = edit_request(inputs.image.image, p, caption, prompt_edits, fractions)
        yield EditedBatch(batch, fractions, inputs.services.edit(request))


def prompt_edit(parameters: EditingParameters, edit: Edit) -> PromptEdit:
    """The instruction for one edit. Phrases are weighed, and the image blended, where the edit names phrases for it.

    A sham edit has no changes; the words that it has for others weigh as much as an edit's, so that the effect against
    it does not contain the weight.
    """
    p, changes = parameters, edit.changes
    phrases = [change.to_phrase for change in changes] if changes else [new_words(edit)]
    weighed = [phrase for phrase in phrases if phrase] if p.reweight != 1 else []
    blended = [change for change in changes if change.from_phrase and change.to_phrase] if p.blend else []
    return PromptEdit(
        prompt=edit.new_caption,
        attention=p.attention,
        cross_fraction=p.cross_fraction,
        weights=[PhraseWeight(phrase=phrase, weight=p.reweight) for phrase in weighed],
        blend=LocalBlend(source_phrase=blended[0].from_phrase, phrase=blended[0].to_phrase) if blended else None,
    )


def null_edit(parameters: EditingParameters, caption: str) -> PromptEdit:
    """The instruction for a null arm: the caption unchanged, so that there is nothing to weigh or to blend."""
    return PromptEdit(prompt=caption, cross_fraction=parameters.cross_fraction)


def check_batch(
    inputs: Inputs[EditingParameters], batch: EditedBatch, thresholds: Thresholds, checks: Sequence[str]
) -> list[Sweep]:
    """A sweep for each edit of the batch, with the verdict of `checks` on each of its images.

    An edit that the editor refuses is refused as `editor`, with its reason.
    """
    edits, p = [edit for edit in batch.edits for _ in batch.fractions], inputs.parameters
    checked = iter(
        check_images(
            inputs.services,
            inputs.image,
            inputs.task,
            batch,
            edits,
            thresholds,
            checks,
            p.recaption,
            p.second_thresholds,
        )
    )
    cost = batch.reply.evaluations
    evaluations = round((cost.inversion + cost.source) / len(batch.edits)) + cost.edit * len(batch.fractions)
    sweeps = []
    for row, refusal in zip(batch.reply.images, batch.refusals, strict=True):
        attempts = [Attempt(f, image, *next(checked)) for f, image in zip(batch.fractions, row, strict=True)]
        if refusal is not None:
            attempts = [replace(attempt, verdict=Verdict(False, "editor", refusal)) for attempt in attempts]
        sweeps.append(Sweep(tuple(attempts), evaluations))
    return sweeps


def edit_and_check(
    inputs: Inputs[EditingParameters],
    caption: str,
    edits: Sequence[Edit | None],
    fractions: Sequence[float],
    thresholds: Thresholds,
) -> list[Sweep]:
    """Each edit (None: the null arm) under each self-attention fraction, with the checks of newly rendered images."""
    batches = invert_and_edit(inputs, caption, edits, fractions)
    return [sweep for batch in batches for sweep in check_batch(inputs, batch, thresholds, RENDERED_CHECKS)]


def with_compared_arms(
    inputs: Inputs[EditingParameters],
    caption: str,
    edits: Sequence[Edit],
    arms: Sequence[RenderedArm[float]],
    checks: Sequence[str],
) -> ComparedArms[float]:
    """The arms of edits, with a null arm (caption unchanged) for each chosen fraction, by rising fraction.

    Unless the job turns them off, each of these fractions also has a sham arm (caption paraphrased). Both are judged by
    those of the edit's `checks` that apply to them.
    """
    fractions = sorted({arm.pair for arm in arms})
    if not fractions:
        return ComparedArms(arms, [])
    sham = paraphrase(inputs, caption)
    sweeps = edit_and_check(inputs, caption, [None, *([sham.edit] if sham else [])], fractions, {})
    nulls, *edited = ([_alone(inputs, sweep, attempt) for attempt in sweep.attempts] for sweep in sweeps)
    shams = sham_arms(sham, edited[0]) if sham else None
    judged = judge_validity(inputs, edits, arms, nulls, inputs.parameters.thresholds)
    return compare_arms(edits, judged, nulls, shams, inputs.parameters.thresholds_for_arms, checks)


def _alone(inputs: Inputs[EditingParameters], sweep: Sweep, attempt: Attempt) -> RenderedArm[float]:
    """One attempt as a separate arm, with its share of the cost."""
    return Sweep((attempt,), round(sweep.evaluations / len(sweep.attempts))).arm(attempt, inputs.seed)


def edit_request(
    source: ImagePayload,
    parameters: InversionParameters,
    caption: str,
    edits: Sequence[PromptEdit] = (),
    self_fractions: Sequence[float] = (0.0,),
) -> EditRequest:
    """The request to invert an image and edit it. The service inverts once for requests with equal inversions."""
    return EditRequest(
        source=source,
        caption=caption,
        edits=list(edits),
        self_fractions=list(self_fractions),
        inversion=parameters.inversion,
        null_text=parameters.null_text,
        control=parameters.control,
        control_scale=parameters.control_scale,
        steps=parameters.steps,
        guidance=parameters.guidance,
    )
