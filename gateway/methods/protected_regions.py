"""Checks of protected regions: the places of protected classes in the source, looked for in an image and its null arm.

Protected classes are labels of the profile's segmenter. An edit may not name them. Rendering keeps their shape; their
colour may follow the light. Then the same segmenter looks for each region of the source in the image
(docs/how-to/conditioning.md):

protected   each region's mask overlaps the mask of its class in the image
seam        the image's contrast along each region's outline is not much greater than in the null arm
light       if the surroundings of a region change colour against the null arm, the region changes too
"""

from __future__ import annotations

from collections.abc import Sequence
from math import dist
from typing import Annotated, NamedTuple

from pydantic import Field

from gateway.methods.counterfactual import ACCEPTED, Scores, Verdict
from gateway.methods.lineage import RegionOutcomeRecord
from shared.schemas.base import Contract
from shared.schemas.diffusion import Fraction, ProtectedRegion, ProtectionKind, ProtectionReply, RegionOutcome

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
