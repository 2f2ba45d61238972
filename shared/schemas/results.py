"""Results of a job: the funnel, the effects in cells, the findings and the papers' own metrics."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, JsonValue, model_validator

from shared.schemas.base import TASK_DESCRIPTION, Contract
from shared.schemas.designs import DesignResults
from shared.schemas.doses import DoseCurve
from shared.schemas.estimates import (
    Bounds,
    ChangedImages,
    Confirmation,
    Corroboration,
    EditCluster,
    Panel,
    ProbabilityChange,
    Realism,
    VarianceComponents,
)
from shared.schemas.estimates import Estimate as Estimate
from shared.schemas.estimates import FailurePoints as FailurePoints
from shared.schemas.estimates import Interval as Interval
from shared.schemas.estimates import MeanOverlap as MeanOverlap
from shared.schemas.estimates import Rate as Rate
from shared.schemas.service import ServiceInfo

Direction = Literal["to", "from"]
# labelled: against the ground truth. metamorphic: without one, so the prediction on the source image must not change.
Relation = Literal["labelled", "metamorphic"]
Metric = Literal["accuracy", "iou"]
# Who judged which counterfactuals are valid: people, or models (oracles, a vision-language model).
Judges = Literal["people", "models"]
# What the errors of the checks, or the reviewed sample, of a cell are pooled over: its class, its factor, or nothing.
Pool = Literal["class", "factor", "all"]
OtherEstimand = Literal["edits", "null", "both", "second"]
# weakness and improvement are findings; the other two are not.
Standing = Literal["weakness", "improvement", "nothing found", "too few images"]


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

    `valid` is the estimated share of a cell's accepted counterfactuals that is valid, `valid_low` its lower limit (at a
    fifth of the interval's error). `estimate` assumes that every invalid one contributes to the effect (the cautious
    bound); `interval` covers the effect whatever the invalid ones do. `stands`: the interval lies beyond 5 points.
    `source`: whether `valid` is known from the checks' calibration, or from reviews of this job. `pool`: it is that of
    the cell's own class (with 30 or more judged counterfactuals), or of its factor, or of all, over all classes.
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
    the profile's second scorer accepts as well; `second`: pairs that it accepts, whatever the first one says.
    `interval` is None under 12 source images (or groups).
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

    `groups`: how many groups the source images belong to; None if each is its own. Groups are what is tested.

    `delta_accuracy` and `delta_probability` (None where a probability is not known) are in −1 … 1, negative is worse.
    `p_value` tests an effect of at most 5 points, either way; `q_value` is its Benjamini-Hochberg adjustment over the
    family. Both, and the intervals, are None under 12 source images. `selected_interval` is the interval of a rejected
    cell at the level adjusted for selection (FCR). `images_needed` estimates how many source images would settle an
    effect of this size. `detectable`: the smallest drop that a tested cell of so many source images detects with 80 %
    power, given the accuracy on its null arms.
    `breakdown` (of a finding): the share of its images, 0 to 1, that may be invalid before the finding is in doubt.
    `among_valid`: the effect corrected for the checks' errors; None if these are not known. `bounds`: the effect if
    refused edits had been counted; None in results from before there were bounds. `changed` (of a finding): the images
    that it rests on, and what reviewers found. `panel` (of a weakness): the reference models, if the job has any;
    `confirmation`: what a job with another editor shows, if one was asked to confirm it. `corroboration` (of a
    finding): what the job's own images show that have the value; None without ground truth and for segmenters. `dose`:
    its effect at several doses of the edit, and undone, if a job of doses rendered them; of corruptions, by severity.
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
    sentence: str = ""

    @property
    def provisional(self) -> bool:
        """Whether the validity of its counterfactuals is not known well enough."""
        return self.among_valid is None or not self.among_valid.stands


class Accuracy(Contract):
    """acc@k: the truth is among the k most probable classes. Every original, null arm and counterfactual counts once.

    `originals` are those with accepted counterfactuals. `delta` (LANCE eq. 3) is the mean over accepted counterfactuals
    of (correct@k − its original's correct@k), in −1 … 1; `delta_null` the same of their null arms. None without
    counterfactuals. `all_originals` are all of the job's, and `delta_all` is acc@k of counterfactuals minus theirs
    (LANCE, Table 2); None in results from before they were measured.
    """

    k: int
    originals: Rate
    nulls: Rate
    counterfactuals: Rate
    delta: float | None
    delta_null: float | None
    all_originals: Rate | None = None
    delta_all: float | None = None


class AllOrNone(Contract):
    """DILLEMA's shares of correctly predicted source images of which all or none of the first `k` counterfactuals fail.

    Only source images with at least `k` accepted counterfactuals are counted.
    """

    k: int
    all_fail: Rate
    none_fail: Rate


class PaperMetrics(Contract):
    """The two papers' own figures, for one method and model under test.

    Probabilities are of the ground truth (without one: of the class predicted on the original). `flips` compares
    the prediction with the original's and needs no ground truth; `flips_null` is the same for the null arms.
    `probability_changes` are sorted by factor.
    """

    accuracy: list[Accuracy]
    error_rate: Rate
    error_rate_null: Rate
    delta_probability: float | None
    mean_absolute_delta_probability: float | None
    mean_absolute_delta_probability_null: float | None
    flips: Rate
    flips_null: Rate
    all_or_none: AllOrNone | None
    probability_changes: list[ProbabilityChange] = Field(default_factory=list)


ConfusionMatrix = list[list[float]]


class SegmentationScores(Contract):
    """A segmenter on some images, their pixels pooled; void pixels are left out. Lists are in the order of `classes`.

    `iou` and `mean_iou` (over classes that the reference or the prediction has), `accuracy` (share of pixels that are
    right) and `class_accuracy` (by class of the reference; `mean_accuracy` is their mean) are in 0 … 1, None where
    there is nothing to judge. `confusion` has a row for each class of the reference, normalised to 1, a column for each
    class predicted, and one more for classes that the job does not have.
    """

    images: int
    pixels: int
    mean_iou: float | None
    accuracy: float | None
    mean_accuracy: float | None
    iou: list[float | None]
    class_accuracy: list[float | None]
    class_pixels: list[int]
    confusion: ConfusionMatrix


class SegmentationMetrics(Contract):
    """Originals, null arms and counterfactuals each count once. Without masks, the original's map is the reference.

    `difference` is the counterfactuals' confusion less the null arms' (less the originals', under methods without null
    arms). `delta_iou`: per source image the mean over its counterfactuals of image mIoU less the null arm's, sources
    weighted equally, −1 … 1, with its interval (None below two sources). `lost`: counterfactuals on which a class is
    not found (IoU below 0.5) that was found on the original; `lost_null` the same of null arms. `delta_pooled_iou` is
    the mIoU of the pooled pixels (DILLEMA's figure) of the counterfactuals less that of the null arms, with a bootstrap
    interval over groups of source images (None below 12).
    """

    classes: list[str]
    colours: Annotated[list[str], Field(description="colours of the classes in overlays: #804080")]
    originals: SegmentationScores
    nulls: SegmentationScores
    counterfactuals: SegmentationScores
    difference: ConfusionMatrix
    delta_iou: float | None
    interval: Interval | None
    delta_pooled_iou: float | None = None
    pooled_interval: Interval | None = None
    lost: Rate
    lost_null: Rate


class ModelResults(Contract):
    """One model under test under one method. `cells` holds every cell, also those with too few images.

    `counterfactuals` counts the accepted ones whose pairs count, `left_out` those without a usable ground truth.
    `reference` is what effects are measured against. The papers' `metrics` are over all accepted counterfactuals and
    their null arms. `failure_points` has one entry per corruption and is empty under other methods. `metric` is fixed
    before the analysis: for a segmenter, `delta_accuracy` of a cell is the difference in the IoU of its class, or in
    the image's mean IoU for cells of all classes; it has `segmentation` in place of `metrics`. `variance` is None under
    12 source images, for segmenters, and in results from before it was estimated. `clusters` are empty for segmenters,
    under methods whose changes the user chooses, and where no class has enough edits.
    """

    model: str
    method: str
    relation: Relation
    metric: Metric = "accuracy"
    reference: Literal["null", "sham"] = "null"
    sources: int
    counterfactuals: int
    left_out: int
    cells: list[CellEffect]
    metrics: PaperMetrics | None = None
    segmentation: SegmentationMetrics | None = None
    failure_points: list[FailurePoints] = Field(default_factory=list)
    variance: VarianceComponents | None = None
    clusters: list[EditCluster] = Field(default_factory=list)

    @property
    def findings(self) -> list[CellEffect]:
        """Weaknesses first, then improvements, each by strength (`cells` is in this order already)."""
        return [cell for cell in self.cells if cell.standing in ("weakness", "improvement")]


class CheckCount(Contract):
    """How many counterfactuals one check refused."""

    check: str
    count: int


class Funnel(Contract):
    """The proposed counterfactuals of one method by outcome: text checks, rendering, image checks, accepted.

    `shapes_unchecked`, in segmentation jobs: number of rendered images whose shapes were not checked, because the
    profile names no segmenter, or because it knows or detects none of the classes in the source.
    `recaption_unchecked`, with the recaption check: number of rendered images that it cannot judge, because the caption
    of the source does not name the class either.
    `lost_to_arm`: accepted edits that do not count because the arm that they are measured against (the sham arm, or
    else the null arm) fails a check, by that check. `counted` are the others; None in results from before null arms
    were checked.
    """

    method: str
    proposed: int
    refused_by_text: list[CheckCount]
    rendered: int
    refused_by_image: list[CheckCount]
    shapes_unchecked: int | None = None
    recaption_unchecked: int | None = None
    accepted: Rate
    lost_to_arm: list[CheckCount] = Field(default_factory=list)
    counted: Rate | None = None


class Cost(Contract):
    """Cost of the counterfactuals of one method. `evaluations`: network evaluations, null arms included."""

    method: str
    evaluations: int
    evaluations_per_rendered: float | None
    evaluations_per_accepted: float | None


class FailureReason(Contract):
    """Why source images failed, and how many for this reason."""

    reason: str
    count: int


class HowMade(Contract):
    """Provenance: everything that the figures depend on.

    `services` are those that made the results, by name. `replaced_services` made some of them, before the service of
    that name was replaced while the job ran.
    """

    job: str
    task_description: Annotated[str, Field(validation_alias=TASK_DESCRIPTION)]
    profile: str
    seed: int
    parameters: dict[str, JsonValue]
    services: dict[str, ServiceInfo]
    replaced_services: list[ServiceInfo] = Field(default_factory=list)
    uploaded_models: Annotated[dict[str, str], Field(description="digests of the models that were uploaded")] = Field(
        default_factory=dict
    )
    versions: dict[str, str]
    analysis_seed: int


class DetectableDrop(Contract):
    """The smallest drop (0 to 1; None: none) that the images of one class detect with 80 % power."""

    label: str
    sources: int
    drop: float | None
    sentence: str


class ImagesNeeded(Contract):
    """How many source images detect a drop (0 to 1) with 80 % power; None for more than 5,000."""

    drop: float
    sources: int | None


class Sensitivity(Contract):
    """What a job can detect: before it starts from the number of source images of each class, and in its report from
    how many edits were accepted and how often the models were right on null arms.

    `family`: the assumed number of cells tested together. `classes` is empty without ground truth.
    """

    family: int
    classes: list[DetectableDrop]
    needed: list[ImagesNeeded]
    assumption: str


def _by_method(errors: object) -> object:
    """Errors by method and factor. Reports of older versions have them by factor, measured with DILLEMA."""
    if isinstance(errors, dict) and any("valid" in counts for counts in errors.values()):
        return {"dillema": errors}
    return errors


class Calibration(Contract):
    """The source of validity estimates: reviews of this job, or the checks' errors measured on another data set.

    `errors` are by method and factor (or `default`), `classes` by method and class, measured on `n` counterfactuals of
    the data set `data` that `judged_by` judged; empty if the job names no data set. With `source` "reviews", `n` is the
    number of this job's reviewed counterfactuals. `not_used`: why the errors of `data` are not used; empty if they are.
    """

    source: Literal["profile", "reviews"] = "profile"
    data: str = ""
    judged_by: Judges = "people"
    errors: Annotated[dict[str, dict[str, CheckErrors]], BeforeValidator(_by_method)] = Field(default_factory=dict)
    classes: dict[str, dict[str, CheckErrors]] = Field(default_factory=dict)
    n: int = 0
    not_used: str = ""

    @property
    def corrects(self) -> bool:
        """Whether the effects of some method are corrected for invalid counterfactuals."""
        return self.source == "reviews" or bool(self.errors)


class FlippedReviews(Contract):
    """Validity of the accepted counterfactuals on which one model under test flipped: whether failures are real.

    `reviewed` of the `flipped` ones have a review. `valid` is P(valid | flipped); `of_valid` the share of valid ones on
    which it flipped, P(flipped and valid) / P(valid).
    """

    model: str
    reviewed: int
    flipped: int
    valid: Estimate | None
    of_valid: Estimate | None


class MethodReviews(Contract):
    """Reviews of the counterfactuals of one method.

    `accepted` and `rejected`: how many of each were reviewed as valid or invalid; `undecided`: unsure, or reviewers
    disagree. `by_lot` of the accepted ones were sampled at random and represent the others; `more` such reviews (of
    rejected ones: `more_rejected`) are needed before estimates can be given; until then they are None.
    `prediction_powered` is P(valid) of accepted ones from the sample and a judge's scores of all of them (`validity`,
    or the vision-language judge); None without a judge or with fewer than 20 sampled source images.
    `valid` is P(valid) of accepted ones, `valid_rejected` of rejected ones; `accepted_if_valid` and
    `accepted_if_invalid` are the checks' own error rates. `edit_shown` and `realism` (mean of `graded`, 1 to 5) are
    those of randomly sampled accepted ones.
    """

    method: str
    accepted: int
    rejected: int
    undecided: int
    by_lot: int
    more: int
    more_rejected: int
    prediction_powered: Estimate | None = None
    valid: Estimate | None
    valid_rejected: Estimate | None
    accepted_if_valid: Estimate | None
    accepted_if_invalid: Estimate | None
    flipped: list[FlippedReviews]
    edit_shown: Rate | None
    realism: float | None
    graded: int


class JobResults(Contract):
    """All results of a job. `provisional`: the validity of the counterfactuals is not known.

    Of the `sources`, `sources_failed` failed, most of them for the `failure_reasons` (at most five, the commonest
    first), and `sources_cancelled` were not finished when the job was cancelled. The figures are of the others.

    `results` are of the models under test, `references` of the reference models.
    `reviews` has an entry for each reviewed method; `calibration` names the source of the validity estimates.

    `review`: ids of at most 200 counterfactuals in the order in which to review them. The first `review_first` are the
    samples of the findings, in turn; failures follow, each of which adds the most information to those before it.

    `checks_off`: method → its image checks that refuse nothing, because the profile has no threshold for them.
    `not_clustered`: why edits, or some of them, are in no cluster, if that is for another reason than their number.
    `realism` has an entry for each method with accepted counterfactuals; none in reports of older versions.
    `not_corroborated`: why findings lack the comparison with the job's own images, if a service failed.
    """

    sources: int
    sources_failed: int
    sources_cancelled: int = 0
    failure_reasons: list[FailureReason] = Field(default_factory=list)
    provisional: bool
    calibration: Calibration | None = None
    checks_off: dict[str, list[str]] = Field(default_factory=dict)
    reviews: list[MethodReviews] = Field(default_factory=list)
    sensitivity: Sensitivity | None = None
    design: Annotated[DesignResults | None, Field(description="null in reports of older versions")] = None
    results: list[ModelResults]
    references: list[ModelResults] = Field(default_factory=list)
    funnels: list[Funnel]
    costs: list[Cost]
    realism: list[Realism] = Field(default_factory=list)
    review: list[str] = Field(default_factory=list)
    review_first: int = 0
    not_corroborated: str = ""
    not_clustered: str = ""
    made: HowMade
