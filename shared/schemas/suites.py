"""The public contract of frozen suites: their content, the releases tested against them, and the results."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import AfterValidator, ConfigDict, Field

from shared.schemas.base import TASK_DESCRIPTION, Contract, Kind
from shared.schemas.effects import Cell, Interval, MeanOverlap, Metric, Rate
from shared.schemas.jobs import JobState, Progress
from shared.schemas.results import CounterfactualView, Relation

MAX_DROP = 5.0
# drop: larger than the margin. held: a drop larger than the margin is ruled out. undecided: neither, or never right.
Judgement = Literal["drop", "held", "undecided", "too few images"]


def _no_id(name: str) -> str:
    if len(name) == 32 and not name.strip("0123456789abcdef"):
        raise ValueError("it looks like an id; take another name")
    return name


SuiteName = Annotated[
    str,
    Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$", description="unique among your suites; works as an id in URLs"),
    AfterValidator(_no_id),
]


class SuiteFilters(Contract):
    """Which accepted counterfactuals; several filters must all hold, as in the results of a job."""

    method: Annotated[str, Field(max_length=200)] | None = None
    factor: Annotated[str, Field(max_length=200)] | None = None
    value: Annotated[str, Field(max_length=200, description="the value that the edit changed to")] | None = None
    from_value: Annotated[str | None, Field(alias="from", max_length=200)] = None
    label: Annotated[str | None, Field(alias="class", max_length=200)] = None
    flipped: bool | None = None
    model: Annotated[str, Field(max_length=200)] | None = None


class SuiteRequest(Contract):
    """`POST /suites`: freeze the counterfactuals of an ended job that count, with originals and arms."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"job": "1f" * 16, "name": "night", "filters": {"value": "night"}}]}
    )

    job: Annotated[str, Field(max_length=64)]
    name: SuiteName
    filters: SuiteFilters = SuiteFilters()


class SuiteView(Contract):
    """A suite as `GET /suites` lists it. `made_from` is the job, which may have been deleted."""

    id: str
    name: str
    made_from: str
    filters: SuiteFilters
    created_at: datetime


class RunRequest(Contract):
    """`POST /suites/{suite}/runs`: the model under test, as `GET /models` lists it."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"model": "street-classifier"}]})

    model: Annotated[str, Field(min_length=1, max_length=200)]


class RunView(Contract):
    """One release tested against a suite. `id` is also the id of its predict-only job; `revision` names the weights."""

    id: str
    model: str
    revision: str
    state: JobState
    failure: str
    progress: Progress
    created_at: datetime
    finished_at: datetime | None


class SuiteDetail(SuiteView):
    """A suite with its size, and its runs, newest first."""

    task_description: Annotated[str, Field(validation_alias=TASK_DESCRIPTION)]
    kind: Kind
    classes: list[str]
    methods: list[str]
    sources: int
    counterfactuals: int
    null_arms: int
    runs: list[RunView]


class SuitesPage(Contract):
    """`GET /suites`, by name. `next` is the cursor of the following page, or null."""

    suites: list[SuiteView]
    next: str | None


class SuiteCounterfactuals(Contract):
    """`GET /suites/{suite}/counterfactuals`: a page of a suite's copies, by source position, method and ordinal.

    They have no predictions; those are results of runs. `next` is the cursor of the following page, or null.
    """

    counterfactuals: list[CounterfactualView]
    next: str | None


class CellComparison(Contract):
    """Accuracy of a release on some images of a suite, compared with its baseline.

    `cell` is None for all counterfactuals of the method, `method` is empty for the originals. In a suite without ground
    truth, a prediction is correct if it equals the one on the original, and `cell.label` is empty (all classes). For
    segmenters `accuracy` is the mean IoU of the cell's class, or of the whole image.
    `difference` is accuracy − the baseline's accuracy, in −1 … 1, source images weighted equally. `interval` is its
    95 % interval; `selected_interval` is that of a cell that Benjamini-Hochberg rejects, at the level adjusted for
    selection.
    """

    method: str
    cell: Cell | None
    sources: int
    images: int
    accuracy: Rate | MeanOverlap
    against: Rate | MeanOverlap
    difference: float
    interval: Interval | None
    selected_interval: Interval | None
    p_value: float | None
    q_value: float | None
    judgement: Judgement
    sentence: str


class RunResults(Contract):
    """A run's accuracy in every cell, compared with a baseline run or, without one, with its own null arms.

    `metric`: of segmenters it is IoU. `breaches` are the sentences of the cells that drop by more than `max_drop`
    points, worst first. `left_out` counts counterfactuals without a usable ground truth or prediction. `untestable`:
    why no breach means nothing, since the release, or its baseline, is not shown to be right on the originals.
    `doubtful`: that the images are outside the profile's domain, or that the release gave no answer to many, so that no
    breach is no pass without reserve.
    """

    suite: str
    run: str
    model: str
    revision: str
    baseline: str | None
    baseline_model: str | None
    baseline_revision: str | None
    metric: Metric = "accuracy"
    relation: Relation
    max_drop: float
    left_out: int
    cells: list[CellComparison]
    breaches: list[str]
    untestable: str = ""
    doubtful: str = ""

    @property
    def tested(self) -> list[CellComparison]:
        """The cells with enough source images in which the release or its reference is right at least once."""
        return [
            cell
            for cell in self.cells
            if cell.judgement != "too few images" and (cell.accuracy.value or cell.against.value)
        ]

    @property
    def shows_nothing(self) -> bool:
        """Whether nothing could be tested, so that no breach is no pass."""
        return not self.breaches and (bool(self.untestable) or not self.tested)
