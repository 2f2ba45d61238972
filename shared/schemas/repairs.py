"""Repairs: the public contract of `POST /jobs/{id}/repairs`, and the messages between gateway and trainer.

    order     (gateway → store)  everything the trainer needs: the model, images by digest, parameters
    progress  (trainer → store)  a heartbeat with the progress
    outcome   (trainer → store)  predictions of each arm on every judged image; the gateway computes the figures

`RepairOrder` refuses an order in which the same image is trained on and judged.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from shared.schemas.base import KIND, Contract, Kind
from shared.schemas.effects import Interval, MeanOverlap, Metric, Rate
from shared.schemas.metrics import SegmentationScores

REPAIR = "contrafact.repair"
QUEUE = "repairs"

RepairState = Literal["running", "done", "failed", "cancelled"]
Arm = Literal["before", "repaired", "originals", "null", "augmented"]
TrainedArm = Literal["repaired", "originals", "null", "augmented"]
TRAINED: tuple[TrainedArm, ...] = ("repaired", "originals", "null", "augmented")
CONTROLS: tuple[TrainedArm, ...] = ("originals", "null", "augmented")
ARMS: tuple[Arm, ...] = ("before", "repaired", *CONTROLS)
SetName = Literal["originals", "counterfactuals", "values not trained on"]
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Names = Annotated[list[Annotated[str, Field(min_length=1, max_length=200)]], Field(max_length=50)]
Share = Annotated[float, Field(gt=0, lt=1)]


RecipeName = Literal["dillema-resnet18", "dillema-deeplabv3"]
# As DILLEMA prints them (arXiv 2502.04378, III-A, Retraining Settings).
RECIPES: Mapping[str, Mapping[str, Any]] = {
    "dillema-resnet18": {
        "optimiser": "sgd",
        "schedule": "step",
        "epochs": 90,
        "learning_rate": 0.1,
        "batch_size": 100,
    },
    "dillema-deeplabv3": {
        "optimiser": "adam",
        "schedule": "constant",
        "epochs": 200,
        "learning_rate": 0.002,
        "batch_size": 12,
    },
}
MOST_STEPS = 100_000


class RepairParameters(Contract):
    """Training parameters, the same for every arm. A named recipe gives those that are left out."""

    recipe: Annotated[
        RecipeName | None,
        Field(
            description="optimiser, schedule, epochs, rate and batch of a paper", exclude_if=lambda name: name is None
        ),
    ] = None
    optimiser: Annotated[
        Literal["adamw", "adam", "sgd"],
        Field(
            description="adam: betas 0.9 and 0.999, epsilon 1e-8; sgd: momentum 0.9, weight decay 1e-4; adamw: the "
            "same as adam, with gradients clipped at norm 1",
            exclude_if=lambda name: name == "adamw",
        ),
    ] = "adamw"
    schedule: Annotated[
        Literal["cosine", "step", "constant"],
        Field(
            description="cosine: after a short warm-up, to 0; step: a tenth after each third of the steps",
            exclude_if=lambda name: name == "cosine",
        ),
    ] = "cosine"
    epochs: Annotated[
        int | None,
        Field(
            ge=1,
            le=1_000,
            description="passes over originals and counterfactuals, whose steps every arm takes instead of `steps`",
            exclude_if=lambda count: count is None,
        ),
    ] = None
    from_scratch: Annotated[
        bool,
        Field(description="every arm starts from the same random weights", exclude_if=lambda scratch: not scratch),
    ] = False
    steps: Annotated[int, Field(ge=1, le=MOST_STEPS, description="optimiser steps of every arm")] = 200
    learning_rate: Annotated[float, Field(gt=0, le=1, description="peak learning rate")] = 1e-4
    batch_size: Annotated[int, Field(ge=2, le=1_024)] = 32
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0

    @model_validator(mode="before")
    @classmethod
    def _of_recipe(cls, values: Any) -> Any:
        """The values with those of the recipe for the ones left out; an unknown recipe is refused as a field."""
        recipe = RECIPES.get(str(values.get("recipe")), {}) if isinstance(values, Mapping) else {}
        return {**recipe, **values} if recipe else values

    def for_images(self, images: int) -> Self:
        """With the steps that the epochs take over so many images."""
        if self.epochs is None:
            return self
        return self.model_copy(update={"steps": self.epochs * -(-images // self.batch_size)})


class RepairRequest(RepairParameters):
    """`POST /jobs/{id}/repairs`: which model, on which counterfactuals. Only `model` is required."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"model": "street-classifier-night-bus", "steps": 400}]})

    model: Annotated[str, Field(min_length=1, max_length=200, description="as `GET /models` lists it")]
    held_out: Annotated[
        Share, Field(description="share of each class's source images that is held out for evaluation")
    ] = 0.5
    methods: Annotated[Names, Field(description="methods whose counterfactuals to train on; empty: all")] = Field(
        default_factory=list
    )
    factors: Annotated[Names, Field(description="train on changes of these factors; empty: all")] = Field(
        default_factory=list
    )
    values: Annotated[Names, Field(description="train on changes to these values; empty: all")] = Field(
        default_factory=list
    )
    hold_out_values: Annotated[
        Names | None,
        Field(description="values to evaluate without training on them; default: the rarest of three or more"),
    ] = None

    @property
    def parameters(self) -> RepairParameters:
        """The training parameters alone."""
        return RepairParameters(**{name: getattr(self, name) for name in RepairParameters.model_fields})


class Example(Contract):
    """An image with its ground truth; `source` is the digest of the source image that it comes from.

    The ground truth is its class `label`, or its source's `mask`: a label map of indices into the order's `classes`,
    255 where it is void; then `label` is empty.
    """

    image: Digest
    source: Digest
    label: str
    mask: Digest | None = None


class JudgedExample(Example):
    """An image that every arm is evaluated on; for a counterfactual, its change if there is exactly one.

    `group`: that of its source image, if it belongs to one.
    """

    set: SetName
    factor: str | None = None
    value: str | None = None
    group: str | None = None


class StoredModel(Contract):
    """The package of an uploaded model: its key in the object store, and its SHA-256."""

    key: str
    digest: Digest


class RepairOrder(Contract):
    """A repair as the trainer gets it. Raises ValueError if training and evaluation share a source, image or mask.

    `classes` are those of the masks, by place; empty for classifiers.
    """

    repair: str
    job: str
    kind: Annotated[Kind, Field(validation_alias=KIND)]
    classes: list[str] = Field(default_factory=list)
    model: str
    upload: StoredModel | None
    licence: str
    parameters: RepairParameters
    originals: Annotated[list[Example], Field(min_length=1)]
    counterfactuals: Annotated[list[Example], Field(min_length=1)]
    null_arms: list[Example]
    judged: Annotated[list[JudgedExample], Field(min_length=1)]
    values_not_trained_on: list[str]

    @model_validator(mode="after")
    def _nothing_leaks(self) -> Self:
        trained = [*self.originals, *self.counterfactuals, *self.null_arms]
        used = {digest for example in trained for digest in _digests(example)}
        if leaked := {digest for example in self.judged for digest in _digests(example)} & used:
            raise ValueError(f"{len(leaked)} images are both trained on and judged, such as {min(leaked)}")
        return self


def _digests(example: Example) -> set[str]:
    return {digest for digest in (example.image, example.source, example.mask) if digest is not None}


class RepairLease(Contract):
    """The message that wakes a trainer, and the copy of it in the store: only the newest token is valid."""

    repair: Annotated[str, Field(pattern=r"^[0-9a-f]{1,64}$")]
    token: Annotated[str, Field(pattern=r"^[0-9a-f]{1,64}$")]


class RepairProgress(Contract):
    """Progress of a repair in optimiser steps of all arms together. `arm`: the one being trained or evaluated."""

    done: Annotated[int, Field(ge=0)] = 0
    total: Annotated[int, Field(ge=0)] = 0
    arm: str = ""


class Heartbeat(RepairProgress):
    """Written by a trainer every few seconds; `beat` increases each time."""

    beat: int


class Judgement(Contract):
    """Results of one arm on the judged images, in their order: scores by label (`shared.schemas.scores`).

    For segmenters `confusion`: pixels by mask class and predicted class (`shared.media.label_maps.pack_counts`).
    """

    scores: list[dict[str, float]]
    confusion: list[list[int]] = Field(default_factory=list)


class RepairOutcome(Contract):
    """Result of a trainer: a judgement per arm, or the problem that ended the work."""

    problem: str = ""
    judgements: dict[Arm, Judgement] = Field(default_factory=dict)
    versions: dict[str, str] = Field(default_factory=dict)


class Paired(Contract):
    """One arm's accuracy (or IoU) minus another's on the same images, source images weighted equally, in −1 … 1.

    `interval` (95 %) is None below 12 source images (or groups of them, which then weigh equally).
    """

    difference: float
    interval: Interval | None
    sources: int


class ArmFigures(Contract):
    """Accuracy of an arm on a set; `against_before` is None for the original model.

    For a segmenter `accuracy` is the mean IoU of images, each over the classes of its mask, and `segmentation` has
    mIoU, IoU by class and confusion of the set's pixels, pooled over its images. `by_class`: a classifier's accuracy.
    """

    arm: Arm
    accuracy: Rate | MeanOverlap
    against_before: Paired | None
    segmentation: SegmentationScores | None = None
    by_class: Annotated[dict[str, Rate], Field(exclude_if=lambda rates: not rates)] = Field(default_factory=dict)


class SetFigures(Contract):
    """All arms on one set of held-out images. `best_control` is the control with the highest accuracy there."""

    set: SetName
    sources: int
    images: int
    arms: list[ArmFigures]
    best_control: TrainedArm
    against_best_control: Paired


class CellFigures(Contract):
    """Counterfactuals of held-out sources of a class, changed to one value, before and after the repair.

    For a segmenter the IoU of the class on images whose mask holds it, or the mean (`all classes`).
    """

    label: str
    factor: str
    value: str
    trained_on: bool
    before: Rate | MeanOverlap
    repaired: Rate | MeanOverlap
    best_control: Rate | MeanOverlap
    difference: Paired


class WonBack(Contract):
    """What the repair regains of the accuracy lost on counterfactuals of held-out sources.

    Of a classifier, `regained` counts the counterfactuals that are right after the repair, among those that were lost
    before (wrong, and right on the original); `newly_lost` counts those that are wrong after it, among those that were
    right. `share`, `low` and `high` repeat `regained`.

    Of a segmenter, `share` is Σ(repaired − before) / Σ(original − before), which may exceed 1, with Fieller's 95 %
    interval over source images, None if it is unbounded. So it is in results of older versions, for classifiers too,
    with a bootstrap interval that is too short.
    """

    share: float
    low: float | None
    high: float | None
    loss: Paired
    regained: Rate | None = None
    newly_lost: Rate | None = None


class RepairResult(Contract):
    """Result of a repair, evaluated on source images that no arm was trained on.

    `metric`: for segmenters accuracies are IoU; `classes` are those of their masks, in the order of figures by class.
    """

    metric: Metric = "accuracy"
    classes: list[str] = Field(default_factory=list)

    sources_trained_on: int
    sources_held_out: int
    counterfactuals_trained_on: int
    values_not_trained_on: list[str]
    sets: list[SetFigures]
    cells: list[CellFigures]
    won_back: WonBack | None
    sentences: list[str]
    versions: dict[str, str]


class RepairView(Contract):
    """A repair; `result` is set once it is `done`."""

    id: str
    job: str
    model: str
    state: RepairState
    failure: str
    request: RepairRequest
    progress: RepairProgress
    result: RepairResult | None
    created_at: datetime
    finished_at: datetime | None


class RepairsPage(Contract):
    """`GET /repairs`, newest first. `next` is the cursor of the following page, or null."""

    repairs: list[RepairView]
    next: str | None
