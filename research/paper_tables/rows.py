"""One row of the tables as stored in `results/`: all measurements of one arm, with its command."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, JsonValue

from shared.schemas.base import Contract
from shared.schemas.effects import FailurePoints, Rate
from shared.schemas.metrics import PaperMetrics
from shared.schemas.results import Cost, Funnel


class MeanDifference(Contract):
    """Mean over source images of their counterfactuals' acc@1 minus their own, in −1 … 1, with its 95 % interval."""

    sources: int
    mean: float
    low: float
    high: float


class FactorFigures(Contract):
    """Edits of one factor (or of `all`). Rates are over accepted counterfactuals unless said otherwise.

    `as_asked`: share of all proposed edits whose captions differ in exactly one field of the scene, of that factor.
    `shown`, `unchanged` (all other fields of an image) and `each_unchanged` (each field of each image) are the oracles'
    verdicts, over the fields that both oracles read correctly on the source image. `deltas` by model under test.
    """

    factor: str
    as_asked: Rate
    accepted: Annotated[Rate, Field(description="of the proposed edits")]
    kept: Rate
    kept_flipped: Annotated[Rate, Field(description="of the accepted ones that a model under test no longer names")]
    shown: Rate
    unchanged: Rate
    each_unchanged: Rate
    deltas: dict[str, MeanDifference]


class TextChecks(Contract):
    """Precision and recall of the text checks' refusals, judged by tinyworld's grammar.

    `precision`: share of wrong edits among the refused. `recall`: share of refused edits among the wrong. An edit is
    wrong if it changes the class, no field of the scene, or several fields.
    """

    precision: Rate
    recall: Rate


class Distance(Contract):
    """Kernel distance of accepted counterfactuals from the originals, and its standard error."""

    value: float
    error: float
    features: str


class ModelFigures(Contract):
    """A job's results for one model under test."""

    model: str
    metrics: PaperMetrics
    failure_points: list[FailurePoints]


class Faults(Contract):
    """Errors of one model under test on images of one class, or on images changed to one value.

    `originals` counts each source image once; `nulls` and `counterfactuals` count each accepted counterfactual.
    `called`: the wrong predictions on counterfactuals, the most frequent first.
    """

    model: str
    of: Literal["class", "value"]
    name: str
    originals: Rate
    nulls: Rate
    counterfactuals: Rate
    called: dict[str, int]


class ArmRow(Contract):
    """All measurements of one arm: a method with its parameters, as one job on the tables' source images.

    `seconds`: duration of the job from its request to its report, on the machine `machine`; None if the job was
    interrupted. `perplexity_before` and `_after`: of the captions of accepted edits.
    """

    arm: str
    method: str
    command: str
    machine: str
    sources: int
    parameters: dict[str, JsonValue]
    weights: dict[str, str]
    seconds: float | None
    funnel: Funnel
    cost: Cost
    distance: Distance | None
    perplexity_before: float | None
    perplexity_after: float | None
    text_checks: TextChecks | None
    factors: list[FactorFigures]
    models: list[ModelFigures]
    faults: list[Faults]

    @property
    def all_factors(self) -> FactorFigures:
        """The figures of all factors together."""
        return self.factors[0]
