"""Effects in cells: what is estimated, the checks' errors that correct it, and whether it is a finding.

The public contract of doses: a finding's edits at several strengths, and undone.

Estimates with their intervals, and figures that accompany an effect: bounds, panels, confirmations, components.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from shared.schemas.base import Contract
from shared.schemas.finding_notes import FindingNote
from shared.schemas.own_images import ShownMark


class Rate(Contract):
    """`count` of `n` (`value` is their ratio, None for n = 0) with its Wilson 95 % interval.

    `sources`: number of source images that the n come from, if several may share one; the interval accounts for that.
    """

    count: int
    n: int
    value: float | None
    low: float
    high: float
    sources: int | None = None


class MeanOverlap(Contract):
    """A mean IoU or recall in 0 … 1 of `n` images with its 95 % interval; `value` is None for n = 0.

    The `sources` source images that they come from weigh equally.
    """

    value: float | None
    low: float
    high: float
    n: int
    sources: int


class Interval(Contract):
    """A two-sided confidence interval of a mean in −1 … 1; `level` is its coverage (0.95; higher after selection).

    A difference of two effects lies in −2 … 2.
    """

    low: float
    high: float
    level: float
    kind: Literal["exact", "bootstrap-t", "betting", "bootstrap", "newcombe", "jackknife"]


class ProbabilityChange(Contract):
    """Mean |Δp(ground truth)| of the accepted edits that change this factor alone (LANCE, figure 3), in 0 … 1.

    Means over the `n` counterfactuals of a source image, then over the `sources` source images. `low` and `high` are
    the 95 % interval over source images (or groups), 0 and 1 with fewer than two. `null`: the same of their null arms.
    """

    factor: str
    n: int
    sources: int
    value: float
    low: float
    high: float
    null: float


class Estimate(Contract):
    """An estimate with its central 95 % interval, such as a share in 0 … 1."""

    value: float
    low: float
    high: float


class ChangedImages(Contract):
    """The images that make a finding: right on the reference arm and lost on the edit (gained, for an improvement).

    `n` are the counted ones of its cell; `reviewed` of them people judged valid or invalid, `valid` of these are valid.
    `sample` has the ids of a random sample of at least 10 (or all), which reviewers see first.
    """

    n: int
    reviewed: int
    valid: int
    sample: list[str]


class Bounds(Contract):
    """The smallest and the largest effect of a cell if refused pairs that may be valid had been counted (−1 … 1).

    `refused`: its rendered edits that the checks refuse. At most a `share` of them may be valid, from the checks'
    errors or from reviews; 1 without either (`source` "none"). `lost`: its accepted edits whose arm is refused. At most
    a `lost_share` of them may be valid; 1 without errors and reviews. Stored results without `lost` have these among
    `refused`. `interval` adds the sampling error: it covers the effect at 95 %, whichever are valid. It is None under
    12 source images (or groups), and in an adaptive design.
    """

    low: float
    high: float
    refused: int
    share: float
    source: Literal["none", "checks", "reviews"]
    lost: int = 0
    lost_share: float = 1.0
    interval: Interval | None = None


class Panel(Contract):
    """How the job's reference models do in the cell of a weakness: those tested in it, and those that fail (Δ < −5).

    `suspect`: all models fail, those under test and the references, so that the images may be broken, not the model.
    """

    references: list[str]
    failing: list[str]
    suspect: bool


class Confirmation(Contract):
    """What a job with an unrelated editor shows for a finding: its effect for the same model in the same cell.

    `confirmed`: its 95 % interval is beyond 5 points in the direction of the finding. Under 12 source images there are
    "too few images", and no interval. `not tested again`: `reason` says why; `job` is then the latest one.
    """

    job: str
    method: str
    verdict: Literal["confirmed", "not confirmed", "too few images", "not tested again"]
    sources: int
    delta_accuracy: float | None = None
    interval: Interval | None = None
    reason: str = ""


ChosenBy = Literal["scorer", "scorer and eye", "eye"]


class OwnImage(Contract):
    """A source image that shows the value of a finding, by the scorer (`probability`, 0 to 1), to be confirmed by eye.

    `correct`: whether the model under test is right on it. `id` is the source image's, `image` its digest. `marked`:
    what most of those who marked it saw; None if nobody did.
    """

    id: str
    image: str
    file_name: str
    probability: float
    correct: bool
    marked: ShownMark | None = None


class OwnImageMarks(Contract):
    """What people saw in the own images of a finding's class, by majority.

    `confirmed` of them show the value, `refused` do not, `undecided` have no majority. The scorer had not chosen
    `missed` of the confirmed ones. `precision`: the share of the scorer's choice that shows the value, of the decided.
    """

    confirmed: int
    refused: int
    undecided: int
    missed: int
    precision: Rate


class Corroboration(Contract):
    """A finding's value in the job's own images of its class: how often the model is right with it and without it.

    The scorer says by zero-shot classification which images show the value and which show one of `others` instead: the
    values that the cell's edits replaced (those that replaced it, for a change *from* the value). `difference` is
    `showing` minus `rest` (the other way round for a change *from* the value), so that a negative one agrees with a
    weakness; it and its 95 % `interval` are None if either sample is empty. The samples may differ in more than the
    value. Unless `chosen_by` is `eye`, the interval is that of the chosen images, not of the value: it does not include
    the errors of the scorer. `images` are those that show it, at most 48, the most probable first. `sampled_of`: how
    many images the class has, if those compared are a random sample of them.

    `chosen_by`: who chose the images that show it. `eye`: people confirmed each. `scorer and eye`: the scorer, except
    for the few that people marked. `marks` (None without any) counts what they saw. `to_mark`: digests of the images to
    mark, in random order: a random 48 of the scorer's choice, and 8 that it nearly chose.
    """

    others: list[str]
    showing: Rate
    rest: Rate
    difference: float | None = None
    interval: Interval | None = None
    images: list[OwnImage]
    sampled_of: int | None = None
    chosen_by: ChosenBy = "scorer"
    marks: OwnImageMarks | None = None
    to_mark: list[str] = Field(default_factory=list)


Purchase = Literal["sources", "edits", "seeds"]


class NextStep(Contract):
    """More sources, edits or seeds; `gain`: the variance that a network evaluation removes, relative to the best."""

    buy: Purchase
    gain: float


class VarianceComponents(Contract):
    """Where the variance of differences in correctness (or IoU) within cells comes from, and what to buy next.

    `source`: between `sources` source images (or groups); `edit`: between the `edits_per_source` edits of a source;
    `seed`: between the `seeds_per_edit` seeds of an edit. None where no source has several edits, or no edit several
    seeds; then the component above contains it. Costs are network evaluations, measured: of one more source image
    without its edits, and of one more rendering. `next` has the best use of the next evaluation first.
    """

    sources: int
    edits_per_source: float
    seeds_per_edit: float
    source: Estimate | None
    edit: Estimate | None
    seed: Estimate | None
    evaluations_per_source: float
    evaluations_per_rendering: float
    next: list[NextStep]


class Realism(Contract):
    """How near the accepted counterfactuals of one method are to the originals, from a sample of `sources` of them.

    One counterfactual of each source image, at most 500, randomly sampled. `kid`: the kernel inception distance
    (Bińkowski et al. 2018) between originals and counterfactuals in the scorer's space, unbiased (so it may be below
    0), with a 95 % bootstrap interval over groups of source images; `kid_null` the same for null arms. None for fewer
    than three groups. `fid`: the Fréchet inception distance (Heusel et al. 2017) in the scorer's space, from 2,048
    source images with an accepted counterfactual; missing with fewer. `fid_null` the same of as many null arms. Neither
    compares with FID on Inception's features. `perplexity` of the captions and of the edited ones
    (`perplexity_edited`), per token, under the profile's language model. `not_measured`: why `images` or `captions`
    were not measured, if a service failed.
    """

    method: str
    sources: int
    kid: Estimate | None = None
    kid_null: Estimate | None = None
    fid: Annotated[float | None, Field(exclude_if=lambda value: value is None)] = None
    fid_null: Annotated[float | None, Field(exclude_if=lambda value: value is None)] = None
    perplexity: float | None = None
    perplexity_edited: float | None = None
    not_measured: dict[Literal["images", "captions"], str] = Field(default_factory=dict)


class FailurePoints(Contract):
    """The severity at which images first fail under one corruption, for images predicted correctly without it.

    `first`: number of images by lowest failing severity (1 to 5); `never`: those that never fail. `median`: the
    severity by which half of the images have failed, None if fewer do.
    """

    corruption: str
    sources: int
    first: list[int]
    never: int
    median: int | None


class EditCluster(Contract):
    """Accepted edits of one class with similar phrases (LANCE, section 4.2), and their effect.

    Clusters are formed without outcomes, from the edits of a random half of the groups (`sources` counts both halves).
    `screened`: the mean effect on that half, −1 … 1. If it is beyond 5 points either way, the cluster is tested on the
    `confirming_sources` of the other half: `delta_accuracy`, its 95 % `interval` and `q_value` (Benjamini-Hochberg over
    the tested clusters of one model and method) are theirs. `phrases`: at most five, nearest to the centre first.
    """

    label: str
    phrases: list[str]
    edits: int
    sources: int
    screened: float
    confirming_sources: int
    delta_accuracy: float | None
    interval: Interval | None
    q_value: float | None
    standing: Literal["weakness", "suspected weakness", "improvement", "nothing found", "too few images", "not tested"]


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


Direction = Literal["to", "from"]
Metric = Literal["accuracy", "iou", "recall", "right answers"]
# Who judged which counterfactuals are valid: people, or models (oracles, a vision-language model).
Judges = Literal["people", "models"]
# What the errors of the checks, or the reviewed sample, of a cell are pooled over: its own changed images stand for
# themselves, or it is pooled over its class, over its factor, or over everything.
Pool = Literal["cell", "class", "factor", "all"]
OtherEstimand = Literal["edits", "null", "both", "second"]
# weakness and improvement are findings; the others are not.
Standing = Literal["weakness", "suspected weakness", "improvement", "nothing found", "too few images"]
BEYOND = 0.05  # a finding's effect is larger than 5 points
SMALL_LOSS = 0.1  # a verdict is green where no tested change can cost more than 10 points
LEAST_SOURCES = 12  # source images (or groups) of a tested cell; a cell with fewer has "too few images"


class Cell(Contract):
    """Class × factor value × direction: the unit of a finding. `label` is a class of the model under test.

    Of segmenters and detectors also "all classes": the mean IoU, or recall, of an image.
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
    `p_value` tests a loss (of a cell that gained, a gain) of at most 5 points, one-sided; `q_value` is its
    Benjamini-Hochberg adjustment over the cells. `q_any_loss` is that of the test of no loss, over the cells that are
    no weaknesses: a cell with at most 5 % is a suspected weakness. All, and the intervals, are None under 12 source
    images. `loss_limit`: the one-sided 95 % limit of the loss in a tested cell, 0 … 1 (None in results of older
    versions). `selected_interval` is the one-sided interval of a finding at the level adjusted for selection (FCR).
    `images_needed` estimates how many source images would settle an effect of this size, beside the other tested cells.
    `detectable`: the smallest drop that a tested cell with this many source images detects with 80 % power, given the
    accuracy on its null arms. `breakdown` (of a finding): the share of its images, 0 to 1, that may be invalid before
    the finding is in doubt. `reviews_needed`: of how many of its changed images people must find all valid before it
    stands. `among_valid`: the effect corrected for the checks' errors, or from these reviews; None if neither is known.
    `bounds`: the effect if refused pairs had been counted; None in results from before there were bounds. `changed` (of
    a finding): the images that it rests on, and what reviewers found. `panel` (of a weakness): the reference models, if
    the job has any; `confirmation`: what a job with another editor shows, if one was asked to confirm it.
    `corroboration` (of a finding): what the job's own images show that have the value; None without ground truth and
    for segmenters. `part_of`: the cell of a stronger finding that rests on the same pairs, as *from* day and *to* night
    do. `holds_at` (of a detector's finding): whether its interval excludes zero at these other scores, too. `sentence`
    says the finding in short, `details` what else is known of it. `dose`: its effect at several doses of the edit, and
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
    loss_limit: float | None = None
    selected_interval: Interval | None = None
    p_value: float | None = None
    q_value: float | None = None
    q_any_loss: float | None = None
    standing: Standing
    images_needed: int | None = None
    detectable: float | None = None
    breakdown: float | None = None
    reviews_needed: int | None = None
    among_valid: ValidEffect | None = None
    others: list[OtherEffect] = Field(default_factory=list)
    bounds: Bounds | None = None
    changed: ChangedImages | None = None
    panel: Panel | None = None
    confirmation: Confirmation | None = None
    corroboration: Corroboration | None = None
    dose: DoseCurve | None = None
    note: FindingNote | None = None
    part_of: Cell | None = None
    holds_at: Annotated[dict[str, bool], Field(exclude_if=lambda limits: not limits)] = Field(default_factory=dict)
    sentence: str = ""
    details: str = ""

    @property
    def provisional(self) -> bool:
        """Whether the validity of its counterfactuals is not known well enough."""
        return self.among_valid is None or not self.among_valid.stands

    @property
    def images_missing(self) -> int | None:
        """How many more source images (or groups) would settle it; None if that is unknown, or there are enough."""
        missing = (self.images_needed or 0) - (self.groups or self.sources)
        return missing if missing > 0 else None
