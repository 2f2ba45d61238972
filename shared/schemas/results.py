"""Results of a job: the models under test, the funnel, the cost and the provenance.

What reviews show about the checks and about failures, in the results of a job.

Rows of a job's results over HTTP: counterfactuals with their predictions, and failure points.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, JsonValue

from shared.schemas.base import TASK_DESCRIPTION, Contract, JsonObject, Kind
from shared.schemas.boxes import Detected
from shared.schemas.designs import DesignResults
from shared.schemas.effects import (
    CellEffect,
    CheckErrors,
    EditCluster,
    Estimate,
    FailurePoints,
    Judges,
    Metric,
    Rate,
    Realism,
    VarianceComponents,
)
from shared.schemas.evaluation import TokenUsage
from shared.schemas.jobs import ImageFailure, JobState
from shared.schemas.metrics import (
    AnswerMetrics,
    ClassConfusion,
    DetectionMetrics,
    OriginalsCheck,
    PaperMetrics,
    SegmentationMetrics,
)
from shared.schemas.plans import Sensitivity
from shared.schemas.questions import AnsweredQuestion
from shared.schemas.service import ServiceInfo

# LANCE's failure modes (figure 12), in its order.
FailureMode = Literal["unlikely_label", "meaningless_edit", "poor_image", "changed_label", "bias"]
FAILURE_MODES: Mapping[FailureMode, str] = {
    "unlikely_label": "unlikely for its class",
    "meaningless_edit": "meaningless change",
    "poor_image": "poor image",
    "changed_label": "the change took the class away",
    "bias": "the generator's bias: it changed more, by a stereotype",
}


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


class JobJudge(Contract):
    """What a vision-language judge was asked about a job's edits, and whether its answers count.

    `refused` and `unreadable` of the `questions` on `edits` have no answer; they count for nothing. `audited`: the date
    of the judge's audit on edits of known answer, `audit` its digest, `natures` what the judge is at each question
    there; empty without an audit of this judge. `counting`: the questions whose answers enter effects, where enough
    edits were reviewed.
    """

    edits: int
    questions: int
    refused: int
    unreadable: int
    prompt_tokens: int
    completion_tokens: int
    audited: str
    audit: str
    natures: dict[str, str]
    counting: list[str]


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


class FailureShare(Contract):
    """The share of accepted counterfactuals with a failure mode, of those that were sampled at random and reviewed."""

    mode: FailureMode
    share: Rate

    @property
    def words(self) -> str:
        """The mode, for people."""
        return FAILURE_MODES[self.mode]


Step = Literal["captions", "keywords", "alternatives", "new captions", "images"]


class StepFigures(Contract):
    """What one step of a method gets right, and what it makes up (`gateway.results.steps`).

    `valid`: of captions the elements of the ground truth that they name, of images the randomly sampled reviews, else
    what the checks of words let pass. `hallucinated`: of captions, of the classes that they name, those that the mask
    lacks. None where nothing says it.
    """

    step: Step
    valid: Rate
    hallucinated: Rate | None


class MethodReviews(Contract):
    """Reviews of the counterfactuals of one method.

    `accepted` and `rejected`: how many of each were reviewed as valid or invalid; `undecided`: unsure, or reviewers
    disagree. `by_lot` of the accepted ones were sampled at random and represent the others; `more` such reviews (of
    rejected ones: `more_rejected`) are needed before estimates can be given; until then they are None.
    `prediction_powered` is P(valid) of accepted ones from the sample and a judge's scores of all of them (`validity`,
    or an audited vision-language judge); None without a judge or with fewer than 20 sampled source images.
    `valid` is P(valid) of accepted ones, `valid_rejected` of rejected ones; `accepted_if_valid` and
    `accepted_if_invalid` are the checks' own error rates. `edit_shown` and `realism` (mean of `graded`, 1 to 5) are
    those of randomly sampled accepted ones. So are `failures`, by mode, the most frequent one first; a counterfactual
    with a failure mode is not valid. Missing if there are none. `steps`: what each step gets right, for this method.
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
    failures: Annotated[list[FailureShare], Field(exclude_if=lambda shares: not shares)] = Field(default_factory=list)
    steps: Annotated[list[StepFigures], Field(exclude_if=lambda steps: not steps)] = Field(default_factory=list)


# labelled: against the ground truth. metamorphic: without one, so the prediction on the source image must not change.
Relation = Literal["labelled", "metamorphic"]
Arm = Literal["original", "null_arm", "counterfactual"]  # tables take "null" for a missing value
ARMS: tuple[Arm, ...] = ("original", "null_arm", "counterfactual")


class ModelResults(Contract):
    """One model under test under one method. `cells` holds every cell, also those with too few images.

    `counterfactuals` counts the accepted ones whose pairs count, `left_out` those without a usable ground truth, or
    without an answer of a model that is asked a question: `unanswered` counts these by arm. `usage`: the tokens of all
    its questions in the job, as far as its server counts them.
    `reference` is what effects are measured against. The papers' `metrics` are over all accepted counterfactuals and
    their null arms. `failure_points` has one entry per corruption and is empty under other methods. `metric` is fixed
    before the analysis: for a segmenter, `delta_accuracy` of a cell is the difference in the IoU of its class, or in
    the image's mean IoU for cells of all classes, and for a detector that in recall; they have `segmentation` and
    `detection`, and models that answer questions `answers`, in place of `metrics` and `confusion`, which is None in
    results from before it was measured, too. `variance` is None under 12 source images, in results from before it was
    estimated, and but for classifiers, as `clusters` are empty but for them, under methods whose changes the user
    chooses, and where no class has enough edits. `originals`: None where nothing can be judged, and in results from
    before it was checked.
    """

    model: str
    method: str
    relation: Relation
    metric: Metric = "accuracy"
    reference: Literal["null", "sham"] = "null"
    sources: int
    counterfactuals: int
    left_out: int
    unanswered: Annotated[dict[Arm, int], Field(exclude_if=lambda unanswered: not unanswered)] = Field(
        default_factory=dict
    )
    cells: list[CellEffect]
    originals: OriginalsCheck | None = None
    usage: Annotated[TokenUsage, Field(exclude_if=lambda usage: not usage.questions)] = TokenUsage()
    metrics: PaperMetrics | None = None
    segmentation: SegmentationMetrics | None = None
    detection: DetectionMetrics | None = None
    answers: Annotated[AnswerMetrics | None, Field(exclude_if=lambda answers: answers is None)] = None
    confusion: ClassConfusion | None = None
    failure_points: list[FailurePoints] = Field(default_factory=list)
    variance: VarianceComponents | None = None
    clusters: list[EditCluster] = Field(default_factory=list)

    @property
    def findings(self) -> list[CellEffect]:
        """Weaknesses first, then improvements, each by strength (`cells` is in this order already).

        None of a model that is not right on its originals: what it loses there is nothing. Findings about the same
        pairs are one: the strongest.
        """
        if self.originals is not None and self.originals.standing == "unsound":
            return []
        return [cell for cell in self.cells if cell.standing in ("weakness", "improvement") and cell.part_of is None]


class CheckCount(Contract):
    """How many counterfactuals one check refused."""

    check: str
    count: int


class CheckedObjects(Contract):
    """The objects of the boxes in rendered images, null and sham arms included: each image counts its own.

    `checked`: a segmenter sees them in the source. `lost`: of these, it does not see them in the image, so they count
    nowhere in its pairs. `unchecked`: it does not see them in the source, or does not know their class, so they count
    unchecked.
    """

    checked: int
    lost: int
    unchecked: int


class Funnel(Contract):
    """The proposed counterfactuals of one method by outcome: text checks, rendering, image checks, accepted.

    `shapes_unchecked`, in segmentation jobs: number of rendered images whose shapes were not checked, because the
    profile names no segmenter, or because it knows or detects none of the classes in the source.
    `recaption_unchecked`, with the recaption check: number of rendered images that it cannot judge, because the caption
    of the source does not name the class either.
    `lost_to_arm`: accepted edits that do not count because the arm that they are measured against (the sham arm, or
    else the null arm) fails a check, by that check. `counted` are the others; None in results from before null arms
    were checked.
    `refusal`: if no edit was accepted, the most frequent reason.
    `asked_again`: edits for which the language model was asked again, since its reply did not parse; missing if none.
    `label_unchecked`: rendered edits whose label can have any rank, since the scorer ranks it last in the source;
    missing if none.
    `moved_back`: rendered edits whose editor had zoomed or shifted the picture; missing if none.
    `objects`: in detection jobs, whether the objects are still there; missing without boxes in rendered images.
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
    refusal: str = ""
    asked_again: Annotated[int, Field(exclude_if=lambda count: not count)] = 0
    label_unchecked: Annotated[int, Field(exclude_if=lambda count: not count)] = 0
    moved_back: Annotated[int, Field(exclude_if=lambda count: not count)] = 0
    objects: Annotated[CheckedObjects | None, Field(exclude_if=lambda objects: objects is None)] = None


class PeopleEdits(Contract):
    """The edits that change one protected characteristic of people, over all methods.

    `refused`: because the job does not allow them. `accepted`: of all that were proposed. `valid`: of the accepted ones
    that people reviewed.
    """

    characteristic: str
    refused: int
    accepted: Rate
    valid: Rate | None = None


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


class JobResults(Contract):
    """All results of a job. `provisional`: the validity of the counterfactuals is not known, and not
    all findings (if any) stand on reviews of their own images.

    `sources_failed` of the `sources` failed; `failure_reasons` lists the five most frequent reasons.
    `sources_cancelled` were unfinished when the job was cancelled. The figures are over the remaining sources.

    `results` are of the models under test, `references` of the reference models.
    `reviews` has an entry for each reviewed method; `calibration` names the source of the validity estimates.

    `review`: ids of counterfactuals in the order in which to review them; at most 200, or all samples of the findings.
    The first `review_first` are these samples, in turn. Then come failures, each the one that adds most to what the
    earlier ones show.

    `judge`: what a vision-language judge was asked; missing if nothing.

    `checks_off`: method → the image checks that refuse nothing, because the profile has no threshold that an image can
    miss; "caption (weather)" refuses nothing for that factor only.
    `not_clustered`: why some or all edits are in no cluster, unless the reason is that there are too few.
    `realism` has an entry for each method with accepted counterfactuals; it is empty in reports of older versions.
    `outside_domain`: says that images are not of the kind that the profile's models know; empty if they are.
    `people`: edits of protected characteristics of people, by characteristic; missing if none was proposed.
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
    judge: Annotated[JobJudge | None, Field(exclude_if=lambda judge: judge is None)] = None
    sensitivity: Sensitivity | None = None
    design: Annotated[DesignResults | None, Field(description="null in reports of older versions")] = None
    results: list[ModelResults]
    references: list[ModelResults] = Field(default_factory=list)
    funnels: list[Funnel]
    people: Annotated[list[PeopleEdits], Field(exclude_if=lambda people: not people)] = Field(default_factory=list)
    costs: list[Cost]
    realism: list[Realism] = Field(default_factory=list)
    review: list[str] = Field(default_factory=list)
    review_first: int = 0
    not_corroborated: str = ""
    not_clustered: str = ""
    outside_domain: str = ""
    made: HowMade


class ChangeView(Contract):
    """One phrase replaced by another; values are canonical names ("after dark" → night)."""

    factor: str
    from_phrase: str
    to_phrase: str
    from_value: str
    to_value: str


class VerdictView(Contract):
    """`accepted`, or rejected with the name of the check and its reason."""

    accepted: bool
    check: str
    reason: str


class ClassProbability(Contract):
    """A class and its probability (0 to 1)."""

    name: str
    probability: float


class PredictionView(Contract):
    """A model's prediction on one image; `ground_truth_probability` is given even if it is not among the `top` five.

    For a segmenter `predicted` is the most frequent class, `probability` and `top` are shares of the pixels. For a
    detector `predicted` is the class of the most confident box, or "nothing".
    """

    predicted: str
    probability: float
    ground_truth_probability: float | None
    rank: Annotated[int | None, Field(description="rank of the ground truth; 1 is first")]
    top: list[ClassProbability]
    scores: Annotated[
        dict[str, float],
        Field(description="by class of the reference, 0 to 1: right or wrong, IoU; under `all classes` their mean"),
    ]
    map: Annotated[
        str | None,
        Field(description="digest of a grey PNG: indices into the job's `classes`, 254 for any other class"),
    ] = None
    detected: Annotated[
        Detected | None, Field(description="what a detector makes of each object, and its boxes beside them")
    ] = None
    answers: Annotated[
        list[AnsweredQuestion] | None,
        Field(description="the questions about the image", exclude_if=lambda answers: answers is None),
    ] = None


class ModelOpinion(Contract):
    """One model under test on original, null arm, sham arm, counterfactual. `flipped`: the predicted class changed.

    A segmenter has flipped if it misses a class (IoU below 0.5) that it detected on the original, a detector if it does
    not find an object that it found there, a model that answers questions if a right answer becomes a wrong one.
    """

    model: str
    original: PredictionView | None
    null_arm: PredictionView | None
    sham_arm: PredictionView | None = None
    counterfactual: PredictionView | None
    flipped: bool | None


class SourceImageView(Contract):
    """The source image of a counterfactual. `image` is a digest for `GET /images/{digest}`."""

    id: str
    position: int
    name: str
    ground_truth: str | None
    image: str
    mask: Annotated[
        str | None, Field(description="digest of the mask: places in the job's `classes`, 255 for void")
    ] = None
    mask_classes: Annotated[list[str], Field(description="the classes that the mask, or the boxes, hold")] = Field(
        default_factory=list
    )
    width: Annotated[int, Field(description="pixels; 0 in reports from before it was noted")] = 0
    height: int = 0


class CounterfactualView(Contract):
    """A counterfactual: its changes, images by digest, verdict with scores, and the models' predictions."""

    id: str
    source: SourceImageView
    method: str
    ordinal: int
    seed: int
    changes: list[ChangeView]
    caption: str
    new_caption: str
    image: Annotated[str | None, Field(description="null where a text check refused the edit before rendering")]
    null_image: Annotated[
        str | None, Field(description="the null arm's image: made as the counterfactual is, without the change")
    ]
    null_check: Annotated[
        str | None, Field(description='the check that the null arm fails ("": none; null: not checked)')
    ] = None
    sham_image: Annotated[
        str | None, Field(description="the sham arm's image: the caption paraphrased, all else as the counterfactual")
    ] = None
    sham_caption: str = ""
    sham_check: Annotated[
        str | None, Field(description='the check that the sham arm fails ("": none; null: there is no sham arm)')
    ] = None
    counted: Annotated[
        bool, Field(description="whether the pair counts: it and the arm that it is measured against are accepted")
    ] = True
    control_image: str | None
    verdict: VerdictView
    scores: dict[str, float]
    kind: Kind
    predictions: list[ModelOpinion]


class CounterfactualDetail(CounterfactualView):
    """A counterfactual with its lineage: the prompts, replies and parameters that produced it."""

    lineage: JsonObject


class ResultsPage(Contract):
    """`GET /jobs/{id}/results`: the metrics (null until the job is done, or if not asked for) and a page of rows.

    Counterfactuals come in the order of (source position, method, ordinal); `next` is the cursor of the following page.
    """

    job: str
    state: JobState
    metrics: JobResults | None
    counterfactuals: list[CounterfactualView]
    failures: Annotated[list[ImageFailure], Field(description="the first 20 failed images")]
    next: str | None


class FailurePointView(Contract):
    """The lowest severity (1 to 5; null: none) at which a model's prediction differs from `unchanged`.

    `unchanged` is its prediction on the uncorrupted image; if that is wrong, the model failed without corruption.
    """

    model: str
    corruption: str
    unchanged: str
    severity: int | None


class ImageFailurePoints(Contract):
    """The failure points of one source image, by model and corruption."""

    position: int
    name: str
    ground_truth: str | None
    points: list[FailurePointView]


class FailurePointsPage(Contract):
    """`GET /jobs/{id}/failure-points`, by position: images for which method `corruptions` is finished."""

    images: list[ImageFailurePoints]
    next: str | None
