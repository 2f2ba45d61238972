"""What methods share that draw images anew under control: parameters, the requests, and the checks of the images.

Protected classes are labels of the profile's segmenter. An edit may not name them; their shape is held while the image
is made, and their look may follow the light; afterwards each region of the source is looked for in the image, by the
same segmenter (docs/how-to/conditioning.md). The checks of an image, beside those of `checks.py`:

protected   each region's mask overlaps that of its class in the image
seam        along each region's outline the image changes not much more sharply than in the null arm
light       where the surroundings of a region have another colour than in the null arm, so has the region
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import dist
from typing import Annotated, Any, NamedTuple, Self

from pydantic import Field, model_validator

from gateway.methods.checks import Scores, check_images
from gateway.methods.counterfactual import Edit, Services, SourceImage, TaskDescription, Verdict
from gateway.methods.recaption import Recaption
from shared.schemas.base import MAX_IMAGES_PER_MESSAGE, Contract, ImagePayload
from shared.schemas.diffusion import (
    ControlKind,
    Controls,
    ControlScale,
    ControlStrength,
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

MOVED = 12.0  # grey levels: surroundings whose colour changed less say nothing of the light
FAINT = 1.0  # grey levels per pixel: outlines of null arms fainter than this count as this


class HeldShapes(Contract):
    """How what is protected is held, and what the checks ask of every region.

    `iou`: least overlap. `seam`: largest contrast of the outline, over the null arm's. `light`: least change of its
    colour from the null arm's, over that of its surroundings.
    """

    by: ProtectionKind = "relit"
    strength: Fraction = 1.0
    iou: Fraction = 0.5
    seam: Annotated[float, Field(ge=1, le=100)] = 2.0
    light: Fraction = 0.15


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
        HeldShapes, Field(description="How they are held (by, strength), and checked (iou, seam, light).")
    ] = HeldShapes()
    steps: Annotated[int, Field(ge=1, le=200, description="Denoising steps.")] = 20
    guidance: Annotated[float, Field(ge=1, le=30, description="Classifier-free guidance scale.")] = 7.5
    negative_prompt: Annotated[str, Field(max_length=1_000, description="What the images should not show.")] = ""
    recaption: Recaption = False
    thresholds: Annotated[
        dict[str, dict[str, float]],
        Field(description="Of the image checks, by check and factor (or `default`); the profile fills them in."),
    ] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _each_kind_once(self) -> Self:
        chosen_controls("canny", 1.0, self.controls)
        return self

    @property
    def strengths(self) -> Controls:
        """What holds an image; `controls` stand in place of `control` and its weight, which a profile may give."""
        return self.controls or (ControlStrength(kind=self.control, scale=self.control_scale),)

    def request(self, source: ImagePayload, renderings: Sequence[Rendering]) -> RenderRequest:
        """What the editor is asked for."""
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
        checked = check_images(
            services, image, task, reply, edits, parameters.thresholds, recaption=parameters.recaption
        )
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
    that an outline's contrast has grown over the null arm's; `light`, the least change of colour over that of the
    surroundings, where these changed. A source without such regions has none of them.
    """
    fates = [_Fate.of(*one) for one in zip(reply.regions, image, null, strict=True)]
    if not fates:
        return Verdict(True), {}, []
    fates.sort(key=lambda one: -one.region.share)
    worst = min(fates, key=lambda one: one.iou)
    lost = sum(one.iou < limits.iou for one in fates)
    scores = {"protected": worst.iou, "protected_kept": 1 - lost / len(fates), "seam": max(one.seam for one in fates)}
    verdict = Verdict(True)
    if lit := [one for one in fates if one.light is not None]:
        dullest = min(lit, key=lambda one: one.light or 0.0)
        scores["light"] = dullest.light or 0.0
        if scores["light"] < limits.light:
            verdict = Verdict(
                False,
                "light",
                f"{dullest.name} kept the old light: its colour changed {scores['light']:.0%} as much as its "
                f"surroundings', and {limits.light:.0%} is wanted",
            )
    if scores["seam"] > limits.seam:
        sharpest = max(fates, key=lambda one: one.seam)
        verdict = Verdict(
            False,
            "seam",
            f"{sharpest.name} stands out: its outline is {sharpest.seam:.1f} times as sharp as in the null arm, and at "
            f"most {limits.seam:.1f} is allowed",
        )
    if lost:
        verdict = Verdict(
            False,
            "protected",
            f"{lost} of {len(fates)} protected regions are not where they were; {worst.name} overlaps its place by "
            f"{worst.iou:.2f}, and {limits.iou:.2f} is wanted",
        )
    return verdict, scores, [one.told() for one in fates]


class _Fate(NamedTuple):
    """What became of one region: overlap, contrast and change of colour as `judge_regions` scores them."""

    region: ProtectedRegion
    iou: float
    seam: float
    light: float | None

    @classmethod
    def of(cls, region: ProtectedRegion, now: RegionOutcome, null: RegionOutcome) -> _Fate:
        around = dist(now.around, null.around)
        light = dist(now.inside, null.inside) / around if around >= MOVED else None
        return cls(region, now.iou, now.outline / max(null.outline, FAINT), light)

    @property
    def name(self) -> str:
        return f"the {self.region.label} of {self.region.share:.1%} of the image"

    def told(self) -> dict[str, Any]:
        """As the lineage keeps it."""
        region = {"label": self.region.label, "share": self.region.share, "box": list(self.region.box)}
        return region | {"iou": self.iou, "seam": self.seam, "light": self.light}
