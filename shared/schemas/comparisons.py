"""`GET /jobs/{job}/comparison`: the effects of two models, two methods or two jobs on the same source images."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from shared.schemas.base import Contract
from shared.schemas.effects import Cell, Interval, Metric
from shared.schemas.results import CounterfactualView, Relation, SourceImageView

Text = Annotated[str, Field(max_length=200)]
# edit: both sides are scored on the same counterfactuals. source image: each on its own ones of the same source image.
Pairing = Literal["edit", "source image"]
# Of this side compared with the other. worse, better: the interval, adjusted for selection, lies beyond 5 points.
Judgement = Literal["worse", "better", "no difference found", "too few images"]


class ComparisonChoice(Contract):
    """What to compare, and the cell whose images are listed.

    `model` and `method` are needed where the job has several. The other side has the same job, model and method, except
    for what `other_job`, `other_model` and `other_method` name. If another job lacks the model or method, its only one
    is the default. Without a cell, `disagreements` covers all counterfactuals.
    """

    model: Annotated[Text | None, Field(description="a model under test of the job")] = None
    method: Annotated[Text | None, Field(description="a method of the job")] = None
    other_job: Annotated[str | None, Field(max_length=64, description="default: the same job")] = None
    other_model: Annotated[Text | None, Field(description="default: the same model")] = None
    other_method: Annotated[Text | None, Field(description="default: the same method")] = None
    label: Annotated[
        Text | None, Field(alias="class", description="the cell's class; none in jobs without ground truth")
    ] = None
    factor: Annotated[Text | None, Field(description="the cell's factor")] = None
    value: Annotated[Text | None, Field(description="the value that the cell's edits change to")] = None
    from_value: Annotated[Text | None, Field(alias="from", description="the value that they change from")] = None

    @property
    def cell(self) -> Cell | None:
        """The cell; None unless a factor and a value are named."""
        value = self.value or self.from_value
        if not self.factor or value is None:
            return None
        return Cell(label=self.label or "", factor=self.factor, value=value, direction="to" if self.value else "from")


class ComparedSide(Contract):
    """One side: a model under one method in a job or suite run. `revision` names the weights of a run's model.

    `sources` and `counterfactuals` are those that the comparison uses, over all cells.
    """

    job: str
    model: str
    method: str
    revision: str = ""
    sources: int
    counterfactuals: int


class CellDifference(Contract):
    """The difference of both sides' effects in a cell, on the source images that count on both sides.

    `cell` is None for all counterfactuals. `effect` and `other_effect` (−1 … 1) are score − score on the reference arm;
    groups weigh equally. `difference` is effect − other effect, −2 … 2: negative if this side loses more. `interval`
    covers it at 95 %. `p_value` tests a difference of at most 5 points, either way; `q_value` is its
    Benjamini-Hochberg adjustment over all cells of the comparison. `selected_interval` is the interval of a rejected
    cell at the level adjusted for selection. All four are None under 12 source images (or groups).
    """

    cell: Cell | None
    sources: int
    groups: int | None = None
    effect: float
    other_effect: float
    difference: float
    interval: Interval | None
    selected_interval: Interval | None
    p_value: float | None
    q_value: float | None
    judgement: Judgement
    sentence: str = ""


class Disagreement(Contract):
    """A counterfactual, or with `pairing` "source image" a source image, on which the effects of both sides differ.

    `effect` and `other_effect` are the effects of one counterfactual of each side, or over all of the cell, the largest
    effect first.
    """

    source: SourceImageView
    effect: float
    other_effect: float
    counterfactuals: list[CounterfactualView]
    other_counterfactuals: list[CounterfactualView]


class JobComparison(Contract):
    """Two sides compared on the source images that both have.

    `cells`: all counterfactuals and every cell that both sides have; differences first, then by size.
    `one_sided` counts the cells that one side lacks. `only_this` and `only_other` count source images of one job alone;
    `relabelled` those whose ground truth differs between the jobs. Neither is compared. `reserve`: what the originals
    say against a side's model, which may lose little because it is never right; "" if nothing. `disagreements` is a
    page of `disagreeing`, the largest difference first; `next` is the cursor of the following page.
    """

    this: ComparedSide
    other: ComparedSide
    metric: Metric
    relation: Relation
    pairing: Pairing
    sources: int
    only_this: int
    only_other: int
    relabelled: int
    one_sided: int
    cells: list[CellDifference]
    disagreeing: int
    disagreements: list[Disagreement]
    next: str | None
    reserve: str = ""
