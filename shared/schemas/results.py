"""Results of a job: the models under test, the funnel, the cost and the provenance."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, JsonValue

from shared.schemas.base import TASK_DESCRIPTION, Contract
from shared.schemas.designs import DesignResults
from shared.schemas.effects import CellEffect, Metric
from shared.schemas.estimates import EditCluster, FailurePoints, Rate, Realism, VarianceComponents
from shared.schemas.metrics import ClassConfusion, OriginalsCheck, PaperMetrics, SegmentationMetrics
from shared.schemas.review_results import Calibration, MethodReviews
from shared.schemas.sensitivity import Sensitivity
from shared.schemas.service import ServiceInfo

# labelled: against the ground truth. metamorphic: without one, so the prediction on the source image must not change.
Relation = Literal["labelled", "metamorphic"]


class ModelResults(Contract):
    """One model under test under one method. `cells` holds every cell, also those with too few images.

    `counterfactuals` counts the accepted ones whose pairs count, `left_out` those without a usable ground truth.
    `reference` is what effects are measured against. The papers' `metrics` are over all accepted counterfactuals and
    their null arms. `failure_points` has one entry per corruption and is empty under other methods. `metric` is fixed
    before the analysis: for a segmenter, `delta_accuracy` of a cell is the difference in the IoU of its class, or in
    the image's mean IoU for cells of all classes; it has `segmentation` in place of `metrics` and `confusion`, which is
    None in results from before it was measured, too. `variance` is None under
    12 source images, for segmenters, and in results from before it was estimated. `clusters` are empty for segmenters,
    under methods whose changes the user chooses, and where no class has enough edits. `originals`: None where nothing
    can be judged, and in results from before it was checked.
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
    originals: OriginalsCheck | None = None
    metrics: PaperMetrics | None = None
    segmentation: SegmentationMetrics | None = None
    confusion: ClassConfusion | None = None
    failure_points: list[FailurePoints] = Field(default_factory=list)
    variance: VarianceComponents | None = None
    clusters: list[EditCluster] = Field(default_factory=list)

    @property
    def findings(self) -> list[CellEffect]:
        """Weaknesses first, then improvements, each by strength (`cells` is in this order already).

        None of a model that is not right on its originals: what it loses there is nothing.
        """
        if self.originals is not None and self.originals.standing == "unsound":
            return []
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
    `refusal`: if no edit was accepted, the most frequent reason.
    `asked_again`: edits for which the language model was asked again, since its reply did not parse; missing if none.
    `label_unchecked`: rendered edits whose label can have any rank, since the scorer ranks it last in the source;
    missing if none.
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
    """All results of a job. `provisional`: the validity of the counterfactuals is not known.

    `sources_failed` of the `sources` failed; `failure_reasons` lists the five most frequent reasons.
    `sources_cancelled` were unfinished when the job was cancelled. The figures are over the remaining sources.

    `results` are of the models under test, `references` of the reference models.
    `reviews` has an entry for each reviewed method; `calibration` names the source of the validity estimates.

    `review`: ids of counterfactuals in the order in which to review them; at most 200, or all samples of the findings.
    The first `review_first` are these samples, in turn. Then come failures, each the one that adds most to what the
    earlier ones show.

    `checks_off`: method → the image checks that refuse nothing, because the profile has no threshold that an image can
    miss; "caption (weather)" refuses nothing for that factor only.
    `not_clustered`: why some or all edits are in no cluster, unless the reason is that there are too few.
    `realism` has an entry for each method with accepted counterfactuals; it is empty in reports of older versions.
    `outside_domain`: says that images are not of the kind that the profile's models know; empty if they are.
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
    outside_domain: str = ""
    made: HowMade
