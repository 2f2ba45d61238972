"""Render new images under a control image: edits, their null arms and sham arms.

The checks of `checks.py` judge each image, and then those of its protected regions.

Checks of protected regions: the places of protected classes in the source, looked for in an image and its null arm.

Protected classes are labels of the profile's segmenter. An edit may not name them. Rendering keeps their shape; their
colour may follow the light. Then the same segmenter looks for each region of the source in the image
(docs/how-to/conditioning.md):

protected   each region's mask overlaps the mask of its class in the image
seam        the image's contrast along each region's outline is not much greater than in the null arm
light       if the surroundings of a region change colour against the null arm, the region changes too
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from math import dist
from typing import Annotated, NamedTuple, Self

from pydantic import Field, model_validator

from gateway.methods.arms import ComparedArms, RenderedArm, compare_arms
from gateway.methods.checks import check_images
from gateway.methods.counterfactual import ACCEPTED, Edit, Lineage, RegionOutcomeRecord, Scores, Verdict
from gateway.methods.paraphrase import ParaphraseParameters, Reference, paraphrase, sham_arms
from gateway.methods.schedule import Inputs, Proposal, accepted_proposals
from gateway.methods.validity import CheckParameters, judge_validity
from shared.chunks import chunks
from shared.problems import InvalidInput
from shared.profiles.diffusion import Diffusion
from shared.profiles.profile import Profile
from shared.schemas.base import MAX_IMAGES_PER_MESSAGE, Contract, ImagePayload
from shared.schemas.diffusion import (
    ControlKind,
    ControlRegion,
    Controls,
    ControlScale,
    ControlStrength,
    Fraction,
    Guidance,
    ProtectedRegion,
    Protection,
    ProtectionKind,
    ProtectionReply,
    RegionOutcome,
    Rendering,
    RenderReply,
    RenderRequest,
    chosen_controls,
)
from shared.schemas.effects import DoseParameter

LEAST_CHANGE = 12.0  # grey levels: if the colour of the surroundings changed less, the light is not checked
FAINTEST_OUTLINE = 1.0  # grey levels per pixel: fainter outlines of null arms count as this


class HeldShapes(Contract):
    """How protected classes are kept, and the limits of their checks for every region.

    `by`, inside the mask, whose edge is soft: `none` keeps nothing; `blended` takes the source's latents, noised to the
    step's level (arXiv 2206.02779), in the first `strength` of the steps; `relit` does the same, but their local mean
    is that of what the network draws there; `edges` weighs the control 1 + `strength` times as much.
    Checks: `protected` passes if every connected region has a mask IoU of at least `iou`; `seam` if no outline has more
    than `seam` times the contrast of the null arm; `light` if a region whose surroundings changed colour against the
    null arm changed at least `light` times as much.
    """

    by: ProtectionKind = "relit"
    strength: Fraction = 1.0
    iou: Fraction = 0.5
    seam: Annotated[float, Field(ge=1, le=100)] = 2.0
    light: Fraction = 0.15


def judge_regions(
    reply: ProtectionReply, image: Sequence[RegionOutcome], null: Sequence[RegionOutcome], limits: HeldShapes
) -> tuple[Verdict, Scores, list[RegionOutcomeRecord]]:
    """Verdict and scores of an image by its protected regions, and the record of each region, largest first.

    Scores: `protected`, the least IoU; `protected_kept`, the share of regions with at least the limit; `seam`, the
    largest contrast of an outline divided by the null arm's; `light`, the least change of colour divided by the change
    of the surroundings, if these changed. A source without protected regions has no scores.
    """
    regions = [_RegionScores.of(*outcomes) for outcomes in zip(reply.regions, image, null, strict=True)]
    if not regions:
        return ACCEPTED, {}, []
    regions.sort(key=lambda region: -region.source.share)
    scores = {
        "protected": min(region.iou for region in regions),
        "protected_kept": 1 - sum(region.iou < limits.iou for region in regions) / len(regions),
        "seam": max(region.seam for region in regions),
    }
    if lights := [region.light for region in regions if region.light is not None]:
        scores["light"] = min(lights)
    refusal = _check_overlap(regions, limits) or _check_seam(regions, limits) or _check_light(regions, limits)
    return refusal or ACCEPTED, scores, [region.record() for region in regions]


def _check_overlap(regions: Sequence[_RegionScores], limits: HeldShapes) -> Verdict | None:
    lost = sum(region.iou < limits.iou for region in regions)
    if not lost:
        return None
    worst = min(regions, key=lambda region: region.iou)
    reason = (
        f"{lost} of {len(regions)} protected regions moved; {worst.name} overlaps its place by "
        f"{worst.iou:.2f}; expected at least {limits.iou:.2f}"
    )
    return Verdict(False, "protected", reason)


def _check_seam(regions: Sequence[_RegionScores], limits: HeldShapes) -> Verdict | None:
    sharpest = max(regions, key=lambda region: region.seam)
    if sharpest.seam <= limits.seam:
        return None
    reason = (
        f"{sharpest.name} stands out: its outline is {sharpest.seam:.1f} times as sharp as in the null arm; "
        f"expected at most {limits.seam:.1f}"
    )
    return Verdict(False, "seam", reason)


def _check_light(regions: Sequence[_RegionScores], limits: HeldShapes) -> Verdict | None:
    lights = [(region.light, region.name) for region in regions if region.light is not None]
    if not lights:
        return None
    light, name = min(lights, key=lambda pair: pair[0])
    if light >= limits.light:
        return None
    reason = (
        f"{name} kept the old light: its colour changed {light:.0%} as much as its "
        f"surroundings'; expected at least {limits.light:.0%}"
    )
    return Verdict(False, "light", reason)


class _RegionScores(NamedTuple):
    """A protected region of the source, with its overlap, contrast and change of colour as in `judge_regions`."""

    source: ProtectedRegion
    iou: float
    seam: float
    light: float | None

    @classmethod
    def of(cls, source: ProtectedRegion, image: RegionOutcome, null: RegionOutcome) -> _RegionScores:
        around = dist(image.around, null.around)
        light = dist(image.inside, null.inside) / around if around >= LEAST_CHANGE else None
        return cls(source, image.iou, image.outline / max(null.outline, FAINTEST_OUTLINE), light)

    @property
    def name(self) -> str:
        return f"the {self.source.label} of {self.source.share:.1%} of the image"

    def record(self) -> RegionOutcomeRecord:
        """The region's entry in the lineage."""
        label, share, box = self.source.label, self.source.share, list(self.source.box)
        return {"label": label, "share": share, "box": box, "iou": self.iou, "seam": self.seam, "light": self.light}


class ControlledParameters(ParaphraseParameters, CheckParameters):
    """Parameters of methods that render new images."""

    reference: Annotated[
        Reference,
        Field(
            description="null: effects are measured against the caption unchanged; sham: against a paraphrase of it, "
            "which is rendered too."
        ),
    ] = "null"

    control: Annotated[ControlKind, Field(description="What the ControlNet sees of the source.")] = "canny"
    control_scale: Annotated[ControlScale, Field(description="Weight of the control.")] = 1.0
    controls: Annotated[
        Controls, Field(description="Several kinds at once, each with scale, start and end, in place of `control`.")
    ] = ()
    protect: Annotated[
        tuple[str, ...],
        Field(max_length=50, description="Segmenter labels to protect and check; none: only edges are controlled."),
    ] = ()
    protection: Annotated[
        HeldShapes, Field(description="How protected classes are held (by, strength) and checked (iou, seam, light).")
    ] = HeldShapes()
    steps: Annotated[int, Field(ge=1, le=200, description="Denoising steps.")] = 20
    guidance: Annotated[Guidance, Field(description="Classifier-free guidance scale.")] = 7.5
    negative_prompt: Annotated[str, Field(max_length=1_000, description="What the images should not show.")] = ""

    @model_validator(mode="after")
    def _each_kind_once(self) -> Self:
        chosen_controls("canny", 1.0, self.controls)
        return self

    def dosed(self, parameter: DoseParameter | None, diffusion: Diffusion) -> DoseParameter | None:
        """Few-step weights render one guidance only: at another one, other weights would."""
        few_step = diffusion.few_step
        fixed = few_step is not None and (self.steps, self.guidance) == (few_step.steps, few_step.guidance)
        if fixed and parameter == "guidance":
            raise InvalidInput("few-step weights rendered this job, and they have one guidance; dose control_scale")
        return parameter or ("control_scale" if fixed else "guidance")

    def refuse_profile(self, profile: Profile) -> str:
        """The profile lacks a ControlNet, or the segmenter that `protect` needs."""
        controlnets = profile.diffusion.controlnets
        if missing := [control.kind for control in self.strengths if control.kind not in controlnets]:
            return (
                f"asks for control by {', '.join(missing)}; profile {profile.profile.name!r} has ControlNets for "
                f"{', '.join(controlnets)}"
            )
        if self.protect and profile.diffusion.segmenter is None:
            return (
                f"has `protect`, which needs a segmenter, and profile {profile.profile.name!r} has none; name "
                "[diffusion.segmenter]"
            )
        return ""

    @property
    def strengths(self) -> Controls:
        """The controls of an image: `controls`, or else `control` with its weight."""
        return self.controls or (ControlStrength(kind=self.control, scale=self.control_scale),)

    def request(self, source: ImagePayload, renderings: Sequence[Rendering]) -> RenderRequest:
        """The request to the editor."""
        p = self.protection
        control, scale = ("canny", 1.0) if self.controls else (self.control, self.control_scale)
        return RenderRequest(
            source=source,
            renderings=list(renderings),
            control=control,
            control_scale=scale,
            controls=self.controls,
            protection=Protection(classes=self.protect, by=p.by, strength=p.strength) if self.protect else None,
            negative_prompt=self.negative_prompt,
            steps=self.steps,
            guidance=self.guidance,
        )


_Arm = tuple[Edit | None, Rendering]  # an edit, a null arm (None), or a sham arm (an edit without changes)


def render_with_null_arms(
    inputs: Inputs[ControlledParameters],
    caption: str,
    proposals: Sequence[Proposal],
    region_of: Callable[[Edit], ControlRegion],
) -> ComparedArms[Rendering]:
    """Images of the accepted proposals, each under the control of its region, and of their null arms, all checked.

    A null arm is the same rendering under `caption`; equal null arms are rendered once. If the job asks for sham arms,
    each null arm has one: the same rendering under a paraphrase. Sends as few requests as the limit of images per
    message allows.
    """
    accepted = accepted_proposals(proposals)
    renderings = [
        Rendering(prompt=proposal.edit.new_caption, region=region_of(proposal.edit), seed=proposal.seed)
        for proposal in accepted
    ]
    nulls = list(dict.fromkeys(_null(rendering, caption) for rendering in renderings))
    sham = paraphrase(inputs, caption) if accepted else None
    arms: list[_Arm] = [
        *((proposal.edit, rendering) for proposal, rendering in zip(accepted, renderings, strict=True)),
        *((None, null) for null in nulls),
        *((sham.edit, _null(null, sham.edit.new_caption)) for null in nulls if sham),
    ]
    images = _render(inputs, caption, arms)
    first_sham = len(accepted) + len(nulls)
    shams = sham_arms(sham, images[first_sham:]) if sham else None
    edits, null_arms = [proposal.edit for proposal in accepted], images[len(accepted) : first_sham]
    judged = judge_validity(inputs, edits, images[: len(accepted)], null_arms, inputs.parameters.thresholds)
    return compare_arms(edits, judged, null_arms, shams, inputs.parameters.thresholds_for_arms)


def _render(inputs: Inputs[ControlledParameters], caption: str, arms: Sequence[_Arm]) -> list[RenderedArm[Rendering]]:
    """The checked images of all arms, in their order; `arms` contain the null arm of each."""
    images: list[RenderedArm[Rendering]] = []
    outcomes: dict[Rendering, _Regions] = {}
    for batch in chunks(arms, MAX_IMAGES_PER_MESSAGE - 1):  # the source travels too
        reply = inputs.services.render(
            inputs.parameters.request(inputs.image.image, [rendering for _, rendering in batch])
        )
        images += _check_reply(inputs, caption, batch, reply)
        if reply.protection is not None:
            of_batch = zip(batch, reply.protection.outcomes, strict=True)
            outcomes |= {rendering: _Regions(reply.protection, outcome) for (_, rendering), outcome in of_batch}
    if not outcomes:
        return images
    limits = inputs.parameters.protection
    return [
        _with_regions(image, outcomes[rendering], outcomes[_null(rendering, caption)], limits)
        for image, (_, rendering) in zip(images, arms, strict=True)
    ]


def _null(rendering: Rendering, caption: str) -> Rendering:
    return rendering.model_copy(update={"prompt": caption})


def _check_reply(
    inputs: Inputs[ControlledParameters],
    caption: str,
    arms: Sequence[_Arm],
    reply: RenderReply,
) -> Iterator[RenderedArm[Rendering]]:
    """The images of a reply, each with its verdict, scores, cost, control image and lineage."""
    p = inputs.parameters
    edits = [edit for edit, _ in arms]
    checked = check_images(
        inputs.services,
        inputs.image,
        inputs.task,
        reply,
        edits,
        p.thresholds,
        recaption=p.recaption,
        second=p.second_thresholds,
    )
    for (_, rendering), image, (verdict, scores) in zip(arms, reply.images, checked, strict=True):
        control = reply.controls.get(rendering.region)  # missing if no image of the region is finite
        lineage: Lineage = {"rendering": rendering.model_dump(mode="json")}
        pair = _null(rendering, caption)
        yield RenderedArm(image, rendering.seed, verdict, scores, pair, reply.evaluations, control, lineage)


class _Regions(NamedTuple):
    """The protected regions of the source, and the outcome of each in one image."""

    reply: ProtectionReply
    outcomes: list[RegionOutcome]


def _with_regions(
    arm: RenderedArm[Rendering], regions: _Regions, null: _Regions, limits: HeldShapes
) -> RenderedArm[Rendering]:
    """The same arms with the outcomes of the protected regions, which may refuse images that passed all other checks.

    A null arm has no reference for seam and light, so only a moved region refuses it. Regions have no outcome if the
    image or its null arm is not finite.
    """
    if len({len(outcomes) for outcomes in (regions.reply.regions, regions.outcomes, null.outcomes)}) > 1:
        return arm
    verdict, scores, outcomes = judge_regions(regions.reply, regions.outcomes, null.outcomes, limits)
    if not arm.verdict.accepted:
        verdict = arm.verdict
    lineage: Lineage = {**arm.lineage, "protected": outcomes}
    return replace(arm, verdict=verdict, scores=arm.scores | scores, lineage=lineage)
