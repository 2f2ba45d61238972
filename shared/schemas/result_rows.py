"""Rows of a job's results over HTTP: counterfactuals with their predictions, and failure points."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from shared.schemas.base import Contract, JsonObject
from shared.schemas.jobs import ImageFailure, JobState
from shared.schemas.results import JobResults


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


class ClassOverlap(Contract):
    """A segmenter's intersection over union (0 to 1) with the reference, for one class."""

    name: str
    iou: float


class SegmentationView(Contract):
    """A segmenter's prediction. `map` is the digest of a grey PNG: indices into the job's `classes`, 254 for any other
    class. Overlaps are with the mask, or without masks with the map of the original; `mean_iou` is over the classes
    that the reference holds, None without a reference.
    """

    map: str
    mean_iou: float | None
    classes: list[ClassOverlap]


class PredictionView(Contract):
    """A model's prediction on one image; `ground_truth_probability` is given even if it is not among the `top` five.

    For a segmenter `predicted` is the most frequent class, `probability` and `top` are shares of the pixels.
    """

    predicted: str
    probability: float
    ground_truth_probability: float | None
    rank: Annotated[int | None, Field(description="rank of the ground truth; 1 is first")]
    top: list[ClassProbability]
    segmentation: SegmentationView | None = None


class ModelOpinion(Contract):
    """One model under test on original, null arm, sham arm, counterfactual. `flipped`: the predicted class changed.

    A segmenter has flipped if it misses a class (IoU below 0.5) that it detected on the original.
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
    mask_classes: Annotated[list[str], Field(description="the classes that the mask holds")] = Field(
        default_factory=list
    )


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
    predictions: list[ModelOpinion]


class CounterfactualDetail(CounterfactualView):
    """A counterfactual with its lineage: the prompts, replies and parameters that produced it."""

    lineage: JsonObject


class ResultsPage(Contract):
    """`GET /jobs/{id}/results`: the metrics (null until the job is done) and a page of counterfactuals.

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
