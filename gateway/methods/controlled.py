"""What methods share that draw images anew under control: parameters, the requests, and the checks of the images.

Protected classes are labels of the profile's segmenter. An edit may not name them; their shape is held while the image
is made, and their look may follow the light; afterwards each region of the source is looked for in the image, by the
same segmenter (docs/conditioning.md). The checks of an image, beside those of `checks.py`:

protected   each region's mask overlaps that of its class in the image
seam        along each region's outline the image changes not much more sharply than in the null arm
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple, Self

from pydantic import Field, model_validator

from gateway.methods.checks import Scores, check_images
from gateway.methods.counterfactual import Edit, Services, SourceImage, TaskDescription, Verdict
from shared.schemas.base import MAX_IMAGES_PER_MESSAGE, Contract, ImagePayload
from shared.schemas.diffusion import (
    ControlKind,
    Controls,
    ControlScale,
    Fraction,
    ProtectedRegion,
    Protection,
    ProtectionKind,
    ProtectionReply,
    RegionOutcome,
    Rendering,
    RenderRequest,
    chosen_controls,
)

FAINT = 1.0  # grey levels per pixel: outlines of null arms fainter than this count as this


class HeldShapes(Contract):
    """How what is protected is held, and what the checks ask: least `iou`, largest `seam` in outlines of null arms."""

    by: ProtectionKind = "relit"
    strength: Fraction = 1.0
    iou: Fraction = 0.5
    seam: Annotated[float, Field(ge=1, le=100)] = 2.0


class ControlledParameters(Contract):
    """Parameters of methods that draw images anew."""

    control: Annotated[ControlKind, Field(description="What the ControlNet sees of the source.")] = "canny"
    control_scale: Annotated[ControlScale, Field(description="Weight of the control.")] = 1.0
    controls: Annotated[
        Controls, Field(description="Several kinds at once, each with scale, start and end, in place of `control`.")
    ] = ()
    protect: Annotated[
        tuple[str, ...],
        Field(max_length=50, description="The segmenter's labels to be held and checked; none: edges alone hold."),
    ] = ()
    protection: Annotated[
        HeldShapes, Field(description="How they are held (by, strength), and checked (iou, seam).")
    ] = HeldShapes()
    steps: Annotated[int, Field(ge=1, le=200, description="Denoising steps.")] = 20
    guidance: Annotated[float, Field(ge=1, le=30, description="Classifier-free guidance scale.")] = 7.5
    negative_prompt: Annotated[str, Field(max_length=1_000, description="What the images should not show.")] = ""
    thresholds: Annotated[
        dict[str, dict[str, float]],
        Field(description="Of the image checks, by check and factor (or `default`); the profile fills them in."),
    ] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _one_choice_of_controls(self) -> Self:
        chosen_controls(self.control, self.control_scale, self.controls)
        return self

    def request(self, source: ImagePayload, renderings: Sequence[Rendering]) -> RenderRequest:
        """What the editor is asked for."""
        p = self.protection
        return RenderRequest(
            source=source,
            renderings=list(renderings),
            control=self.control,
            control_scale=self.control_scale,
            controls=self.controls,
            protection=Protection(classes=self.protect, by=p.by, strength=p.strength) if self.protect else None,
            negative_prompt=self.negative_prompt,
            steps=self.steps,
            guidance=self.guidance,
        )


@dataclass(frozen=True, slots=True)
class Arm:
    """What is rendered: for an edit, or (None) for the null arm of some."""

    rendering: Rendering
    edit: Edit | None


class Made(NamedTuple):
    """An arm's image, its verdict and scores, and for the lineage what it cost, its control image and regions."""

    image: ImagePayload
    verdict: Verdict
    scores: Scores
    lineage: dict[str, Any]


def render_arms(
    image: SourceImage,
    task: TaskDescription,
    services: Services,
    parameters: ControlledParameters,
    caption: str,
    arms: Mapping[int, Arm],
) -> dict[int, Made]:
    """The arms of one source image by their ordinals, in as few messages as their limit of images allows.

    Every edit's null arm (its rendering with `caption` for prompt) must be among them where classes are protected.
    """
    results: dict[int, Made] = {}
    regions: dict[Rendering, tuple[ProtectionReply, list[RegionOutcome]]] = {}
    ordinals = sorted(arms)
    most = MAX_IMAGES_PER_MESSAGE - 1  # the source travels too
    for batch in (ordinals[start : start + most] for start in range(0, len(ordinals), most)):
        renderings = [arms[ordinal].rendering for ordinal in batch]
        reply = services.render(parameters.request(image.image, renderings))
        edits = [arms[ordinal].edit for ordinal in batch]
        checked = check_images(services, image, task, reply, edits, parameters.thresholds)
        for ordinal, picture, (verdict, scores) in zip(batch, reply.images, checked, strict=True):
            control = reply.controls[arms[ordinal].rendering.region]
            results[ordinal] = Made(picture, verdict, scores, {"evaluations": reply.evaluations, "control": control})
        if reply.protection is not None:
            outcomes = zip(renderings, reply.protection.outcomes, strict=True)
            regions |= {rendering: (reply.protection, outcome) for rendering, outcome in outcomes}
    if not regions:
        return results
    return {
        ordinal: _with_regions(made, arms[ordinal], caption, parameters.protection, regions)
        for ordinal, made in results.items()
    }


def _with_regions(
    made: Made,
    arm: Arm,
    caption: str,
    limits: HeldShapes,
    regions: Mapping[Rendering, tuple[ProtectionReply, list[RegionOutcome]]],
) -> Made:
    """The same with what became of the protected regions; they refuse edits that no other check refuses."""
    reply, outcomes = regions[arm.rendering]
    _, plain = regions[arm.rendering.model_copy(update={"prompt": caption})]
    verdict, scores, told = judge_regions(reply, outcomes, plain, limits)
    if arm.edit is None or not made.verdict.accepted:
        verdict = made.verdict
    return Made(made.image, verdict, made.scores | scores, made.lineage | {"protected": told})


def judge_regions(
    reply: ProtectionReply, image: Sequence[RegionOutcome], null: Sequence[RegionOutcome], limits: HeldShapes
) -> tuple[Verdict, Scores, list[dict[str, Any]]]:
    """Verdict and scores of an image by its protected regions, and for the lineage what became of each, largest first.

    Scores: `protected`, the least IoU; `protected_kept`, the share of regions at or above its limit; `seam`, the most
    that an outline's contrast has grown over the null arm's. A source without such regions has none of them.
    """
    if not reply.regions:
        return Verdict(True), {}, []
    found = sorted(
        (
            (region, outcome.iou, outcome.outline / max(plain.outline, FAINT))
            for region, outcome, plain in zip(reply.regions, image, null, strict=True)
        ),
        key=lambda one: -one[0].share,
    )
    lost = [one for one in found if one[1] < limits.iou]
    scores = {
        "protected": min(iou for _, iou, _ in found),
        "protected_kept": 1 - len(lost) / len(found),
        "seam": max(seam for _, _, seam in found),
    }
    told = [
        {"label": region.label, "share": region.share, "box": list(region.box), "iou": iou, "seam": seam}
        for region, iou, seam in found
    ]
    if lost:
        region, iou, _ = min(lost, key=lambda one: one[1])
        reason = (
            f"{len(lost)} of {len(found)} protected regions are not where they were; {_named(region)} overlaps its "
            f"place by {iou:.2f}, and {limits.iou:.2f} is wanted"
        )
        return Verdict(False, "protected", reason), scores, told
    region, _, seam = max(found, key=lambda one: one[2])
    if seam > limits.seam:
        reason = (
            f"{_named(region)} stands out: its outline is {seam:.1f} times as sharp as in the null arm, and at most "
            f"{limits.seam:.1f} is allowed"
        )
        return Verdict(False, "seam", reason), scores, told
    return Verdict(True), scores, told


def _named(region: ProtectedRegion) -> str:
    return f"the {region.label} of {region.share:.1%} of the image"
