"""The public contract of doses: a finding's edits at several strengths, and undone."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from shared.schemas.base import Contract
from shared.schemas.estimates import Interval

# guidance: classifier-free guidance, times the dose. self_fraction: its complement (the share of the steps in which the
# edited image has its own self-attention), times the dose. control_scale: the weight of the control divided by the
# dose. image_guidance: of InstructPix2Pix, divided by the dose. wording: of an instruction, which says its degree.
DoseParameter = Literal["guidance", "self_fraction", "control_scale", "image_guidance", "wording"]
DosedParameter = Literal[DoseParameter, "severity"]  # severity: of corruptions
FULL_DOSE = 1.0
MOST_DOSED_EDITS = 400  # of a job: they are its parameters
LEAST_CHANGE = 0.05  # of `edit_shown`, from the smallest to the largest dose, by which the edit shows more or less


def _ascending(doses: tuple[float, ...]) -> tuple[float, ...]:
    if FULL_DOSE not in doses or list(doses) != sorted(set(doses)):
        raise ValueError("doses rise, each once, and 1 (the finding's own) is one of them, such as 0.5, 1, 1.5")
    return doses


DoseOption = Annotated[
    tuple[Annotated[float, Field(gt=0, le=4)], ...],
    Field(min_length=2, max_length=5, description="relative to the finding's own dose, which is 1; rising"),
    AfterValidator(_ascending),
]


class DoseRequest(Contract):
    """`POST /jobs/{job}/doses`: which weaknesses to render again, and at which doses. Nothing is required."""

    method: Annotated[
        str | None, Field(max_length=200, description="whose weaknesses; default: the only method that has some")
    ] = None
    parameter: Annotated[
        DoseParameter | None,
        Field(description="what is dosed; default: guidance, or control_scale or wording for editors without"),
    ] = None
    doses: DoseOption = (0.5, FULL_DOSE, 1.5)
    images: Annotated[
        int, Field(ge=1, le=200, description="most source images of a weakness; more of them are sampled")
    ] = 40


_ANOTHER_DOSE = "Dose another parameter, or smaller and larger doses."


class DosePoint(Contract):
    """The effect at one dose (−1 … 1, negative is worse). `interval` is None under 12 source images (or groups).

    `value` of the dosed parameter (mean over edits where they differ). `edit_shown`: mean directional similarity
    (−1 … 1) of its images, None if it is not known.
    """

    dose: float
    value: float | None
    delta_accuracy: float
    interval: Interval | None = None
    edit_shown: float | None = None


class Undone(Contract):
    """The edit undone: the images at full dose, edited back to the captions of their sources, in `sources` images.

    `remaining`: accuracy on them minus accuracy on the source images (−1 … 1). `regained`: minus accuracy on the images
    at full dose. Both intervals are at 95 %, None under 12 source images (or groups). `returns`: more than 5 points are
    regained, and no loss of more than 5 points is established to remain; `returns in part`: both are; `does not
    return`: only the loss is; `undecided`: neither.
    """

    verdict: Literal["returns", "returns in part", "does not return", "undecided", "too few images"]
    sources: int
    remaining: float
    remaining_interval: Interval | None = None
    regained: float
    regained_interval: Interval | None = None


class DoseCurve(Contract):
    """The effect of a cell by dose, in the `sources` images that count at every dose (`groups`, if they are grouped).

    `job` rendered the doses of `method`. `severity` is the parameter of corruptions, whose doses are 1 to 5. `trend`:
    change of the effect from the smallest to the largest dose along each source image's least-squares line, averaged,
    with its 95 % interval (None under 12 source images or groups). `grows`: the interval lies on the side of the effect
    at full dose (of corruptions: at severity 5); `shrinks`: on the other side.
    """

    job: str
    method: str
    parameter: DosedParameter
    sources: int
    groups: int | None = None
    points: list[DosePoint]
    trend: float
    trend_interval: Interval | None = None
    verdict: Literal["grows", "shrinks", "no trend established", "too few images"]
    undone: Undone | None = None

    @property
    def unchanged_edit(self) -> str:
        """A sentence, if the images show the edit about equally at all doses; else ""."""
        shown = [point.edit_shown for point in self.points if point.edit_shown is not None]
        if self.parameter == "severity" or len(shown) < len(self.points) or max(shown) - min(shown) >= LEAST_CHANGE:
            return ""
        figures = ", ".join(f"{share:.2f}" for share in shown)
        return (
            f"This dose does not change the edit: the images show it equally at each (φ {figures}), so a missing trend "
            f"says nothing. {_ANOTHER_DOSE}"
        )
