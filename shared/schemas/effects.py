"""Effects in cells: what is estimated, the checks' errors that correct it, and whether it is a finding."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from shared.schemas.base import Contract
from shared.schemas.doses import DoseCurve
from shared.schemas.estimates import Bounds, ChangedImages, Confirmation, Corroboration, Interval, Panel
from shared.schemas.finding_notes import FindingNote

Direction = Literal["to", "from"]
Metric = Literal["accuracy", "iou"]
# Who judged which counterfactuals are valid: people, or models (oracles, a vision-language model).
Judges = Literal["people", "models"]
# What the errors of the checks, or the reviewed sample, of a cell are pooled over: its own changed images stand for
# themselves, or it is pooled over its class, over its factor, or over everything.
Pool = Literal["cell", "class", "factor", "all"]
OtherEstimand = Literal["edits", "null", "both", "second"]
# weakness and improvement are findings; the other two are not.
Standing = Literal["weakness", "improvement", "nothing found", "too few images"]
BEYOND = 0.05  # a finding's effect is larger than 5 points
LEAST_SOURCES = 12  # source images (or groups) of a tested cell; a cell with fewer has "too few images"


class Cell(Contract):
    """Class × factor value × direction: the unit of a finding. `label` is a class of the model under test.

    Of segmenters also "all classes": the mean IoU of an image.
    """

    label: str
    factor: str
    value: str
    direction: Direction


class CheckErrors(Contract):
    """Errors of the automatic checks on counterfactuals of known validity: counts of valid and invalid ones."""

    valid: Annotated[int, Field(ge=1)]
    valid_accepted: Annotated[int, Field(ge=0)]
    invalid: Annotated[int, Field(ge=1)]
    invalid_accepted: Annotated[int, Field(ge=0)]

    @model_validator(mode="after")
    def _parts_of_wholes(self) -> Self:
        if self.valid_accepted > self.valid or self.invalid_accepted > self.invalid:
            raise ValueError("more accepted than measured")
        return self


class ValidEffect(Contract):
    """The effect among valid counterfactuals: wrongly accepted ones count against the effect.

    `valid`: the estimated share of valid ones among a cell's accepted counterfactuals. `valid_low`: its lower limit, at
    a fifth of the interval's error. `estimate` assumes that every invalid one contributes to the effect (the cautious
    bound). `interval` covers the effect even in the worst case for the invalid ones. `stands`: the interval lies beyond
    5 points; of an improvement, only if its own changed images were reviewed and most are valid. `source`: whether
    `valid` comes from the checks' calibration or from reviews of this job. `pool`: the counterfactuals that `valid` is
    pooled over. `cell`: reviewed changed images of the cell itself (at least 10; fewer suffice if most are invalid, and
    then the effect does not stand). Otherwise the cell's class, if 30 or more of its counterfactuals were judged, or
    the cell's factor over all classes, or all.
    """

    valid: float
    valid_low: float
    estimate: float
    interval: Interval
    stands: bool
    source: Literal["checks", "reviews"] = "checks"
    pool: Pool = "all"


class OtherEffect(Contract):
    """The effect in a cell for another choice of pairs or of reference arm; it has no test and gives no finding.

    `edits`: accepted edits, whether or not their null or sham arms are accepted; it makes edits look better than they
    are. `null`: against the null arm, both arms accepted, if the main estimate is against sham arms. `both`: pairs that
    the profile's second scorer accepts as well. `second`: pairs that the second scorer accepts, even if the first one
    refuses them. `interval` is None under 12 source images (or groups), and in an adaptive design where the pairs are
    not those of the main estimate.
    """

    estimand: OtherEstimand
    sources: int
    counterfactuals: int
    delta_accuracy: float
    delta_probability: float | None
    interval: Interval | None = None


class CellEffect(Contract):
    """Effect of one method's edits of one cell on one model under test, minus the sham arm (without one, the null arm).

    Groups weigh equally. A pair counts if both arms are accepted; `others` has the other estimands.

    `groups`: number of groups of the source images; None if each image is its own group. Tests are over groups.

    `delta_accuracy` and `delta_probability` (None where a probability is not known) are in −1 … 1, negative is worse.
    `p_value` tests an effect of at most 5 points, either way; `q_value` is its Benjamini-Hochberg adjustment over the
    family. Both, and the intervals, are None under 12 source images. `selected_interval` is the interval of a rejected
    cell at the level adjusted for selection (FCR). `images_needed` estimates how many source images would settle an
    effect of this size, beside the other tested cells. `detectable`: the smallest drop that a tested cell with this
    many source images detects with 80 % power, given the accuracy on its null arms. `breakdown` (of a finding): the
    share of its images, 0 to 1, that may be invalid before the finding is in doubt. `among_valid`: the effect corrected
    for the checks' errors; None if these are not known. `bounds`: the effect if refused pairs had been counted; None in
    results from before there were bounds. `changed` (of a finding): the images that it rests on, and what reviewers
    found. `panel` (of a weakness): the reference models, if the job has any; `confirmation`: what a job with another
    editor shows, if one was asked to confirm it. `corroboration` (of a finding): what the job's own images show that
    have the value; None without ground truth and for segmenters. `dose`: its effect at several doses of the edit, and
    undone, if a job of doses rendered them; of corruptions, by severity. `note` (of a finding): what people decided
    about it.
    """

    cell: Cell
    sources: int
    groups: int | None = None
    counterfactuals: int
    delta_accuracy: float
    delta_probability: float | None
    interval: Interval | None = None
    selected_interval: Interval | None = None
    p_value: float | None = None
    q_value: float | None = None
    standing: Standing
    images_needed: int | None = None
    detectable: float | None = None
    breakdown: float | None = None
    among_valid: ValidEffect | None = None
    others: list[OtherEffect] = Field(default_factory=list)
    bounds: Bounds | None = None
    changed: ChangedImages | None = None
    panel: Panel | None = None
    confirmation: Confirmation | None = None
    corroboration: Corroboration | None = None
    dose: DoseCurve | None = None
    note: FindingNote | None = None
    sentence: str = ""

    @property
    def provisional(self) -> bool:
        """Whether the validity of its counterfactuals is not known well enough."""
        return self.among_valid is None or not self.among_valid.stands

    @property
    def images_missing(self) -> int | None:
        """How many more source images (or groups) would settle it; None if that is unknown, or there are enough."""
        missing = (self.images_needed or 0) - (self.groups or self.sources)
        return missing if missing > 0 else None
