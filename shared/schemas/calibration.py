"""The contract of `GET /jobs/{job}/calibration`: errors of the checks from people's reviews of a random sample."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from shared.schemas.base import Contract, Kind
from shared.schemas.effects import CheckErrors, Estimate, Rate
from shared.schemas.validity import ValidityModel

Thresholds = dict[str, dict[str, float]]


class CheckErrorRates(Contract):
    """Errors of the checks on the sampled edits of a method that change one factor (None: all of them).

    `images` of them have a verdict. `errors` are the counts that a profile stores; None if there are fewer than 10
    valid or 10 invalid ones. They are numbers of independent images, so they are smaller than the sample where several
    edits share a source image. `pooled`: the factor has too few, so they are those of all factors.
    """

    factor: str | None
    images: int
    rejected_if_valid: Rate
    accepted_if_invalid: Rate
    errors: CheckErrors | None
    pooled: bool


class ClassErrorRates(Contract):
    """The same of the sampled edits of one class, over all factors.

    `errors`: None unless they are counts of 30 or more independent images, 10 of them valid and 10 invalid.
    """

    label: str
    images: int
    rejected_if_valid: Rate
    accepted_if_invalid: Rate
    errors: CheckErrors | None


class FittedThresholds(Contract):
    """Thresholds fitted on the sample: check → factor (or `default`) → lowest score.

    `errors`, `classes` (as in `MethodCalibration`) and `auroc` (of the least margin over all thresholds) were measured
    two-fold: on source images that did not choose the thresholds.
    """

    thresholds: Thresholds
    errors: list[CheckErrorRates]
    classes: list[ClassErrorRates] = Field(default_factory=list)
    auroc: float


class FittedValidity(Contract):
    """The model that combines all scores into P(valid), fitted on the sample, and the check `validity`.

    `thresholds` have the check: in place of all others, or, for a method that sweeps, after the job's own, which have
    chosen its images. `errors` and `classes` (as in `MethodCalibration`) were measured by cross-validation, on source
    images that fitted neither the model nor its threshold.
    """

    model: ValidityModel
    thresholds: Thresholds
    errors: list[CheckErrorRates]
    classes: list[ClassErrorRates] = Field(default_factory=list)


class MethodCalibration(Contract):
    """The calibration sample of one method: its rendered edits, accepted or rejected, in a random order.

    `rendered` edits are in the order; the first `answered` of them have a review, and `undecided` of these have no
    verdict (unsure, or reviewers disagree). `more`: about how many more decided reviews give 10 valid and 10 invalid
    edits, at the shares so far; if there are enough, the next 25. `half_width`: the most that the intervals of both
    errors extend to each side after them, 0 … 1.

    `errors`: over all factors, then by factor; `classes`: by class, if images have labels. `thresholds` are those of
    the job, for which they hold; `checks_off` are checks without a threshold that an image can miss, for all factors
    or for those in brackets. `separation` is the AUROC of each check's score,
    `judge` that of each answer of a vision-language judge, with its 95 % interval. `fitted`: None if there are too few
    reviews. `validity`: None with fewer than 25 valid or invalid edits. `sweeps`: thresholds also choose among several
    renderings of an edit, so errors at other thresholds are not known from this sample.
    """

    method: str
    rendered: int
    answered: int
    undecided: int
    more: int
    half_width: float
    errors: list[CheckErrorRates]
    classes: list[ClassErrorRates] = Field(default_factory=list)
    thresholds: Thresholds
    checks_off: list[str]
    separation: dict[str, float]
    judge: Annotated[dict[str, Estimate], Field(exclude_if=lambda judge: not judge)] = Field(default_factory=dict)
    fitted: FittedThresholds | None
    validity: FittedValidity | None = None
    sweeps: bool


class JobCalibration(Contract):
    """`GET /jobs/{job}/calibration`. `scorer`: the revision of the scorer's weights; empty if several made the job."""

    job: str
    kind: Kind
    scorer: Annotated[str, Field(description="revision of the scorer's weights; empty if several were used")]
    profile: str
    methods: list[MethodCalibration]
