"""The two files of the yardstick: the answer key, and the findings that a method reports."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from research.yardstick.plants import Kind
from shared.schemas.base import Contract
from shared.schemas.effects import Cell, Rate

Effect = Annotated[float, Field(ge=-1, le=1)]


class TrueEffect(Contract):
    """The true effect of a change: accuracy after minus accuracy before, on `n` scenes, with its 95 % interval."""

    cell: Cell
    effect: Effect
    low: Effect
    high: Effect
    n: int


class Planting(Contract):
    """One planted weakness in words of cells; `places` are the backgrounds that it covers."""

    kind: Kind
    cell: Cell
    called: str
    places: list[str]


class KnownModel(Contract):
    """One model under test with its known truth. `accuracy` is on its own distribution.

    `cells` are testable. `outside` are cells of values that no caption can state; a method should report them as not
    tested.
    """

    name: str
    weights: Annotated[str, Field(description="digest of the folder's files")]
    planted: list[Planting]
    accuracy: Rate
    cells: list[TrueEffect]
    outside: list[TrueEffect]


class AnswerKey(Contract):
    """The truth about all models, measured on renderer counterfactuals of the models' own distribution."""

    command: str
    seed: int
    scenes_per_class: int
    fields: list[str]
    interval: str
    models: list[KnownModel]


class FoundCell(Contract):
    """A method's answer on one cell of one model. `effect` None, or a missing cell, means *not tested*.

    `finding`: the method reports it after its own control of false discoveries at 5 %. `provisional`: the method has
    reservations. `images`: source images.
    """

    model: str
    cell: Cell
    effect: Effect | None = None
    low: Effect | None = None
    high: Effect | None = None
    finding: bool = False
    provisional: bool = False
    images: Annotated[int | None, Field(ge=0)] = None

    @model_validator(mode="after")
    def _coherent(self) -> Self:
        if (self.low is None) != (self.high is None):
            raise ValueError("give both ends of the interval (`low` and `high`), or neither")
        if self.low is not None and self.high is not None and self.low > self.high:
            raise ValueError(f"`low` {self.low} is above `high` {self.high}")
        if self.effect is None and (self.finding or self.low is not None):
            raise ValueError("a finding, or an interval, needs an `effect`")
        return self


class Spent(Contract):
    """The cost of the answer, as far as it is known."""

    seconds: float | None = None
    source_images: int | None = None
    counterfactuals: Annotated[int | None, Field(description="accepted ones")] = None
    network_evaluations: int | None = None


class Answer(Contract):
    """A method's answer about all tested models; the cells of each model are in order of importance.

    `models` and `factors` define the question: their cells without an entry count as not tested.
    """

    contrafact_yardstick: Literal[1] = 1
    method: Annotated[str, Field(min_length=1, max_length=200)]
    command: str = ""
    models: Annotated[list[str], Field(min_length=1)]
    factors: Annotated[list[str], Field(min_length=1, description="subject, object, background, adjective, ...")]
    spent: Spent = Spent()
    cells: list[FoundCell]

    @model_validator(mode="after")
    def _as_asked(self) -> Self:
        named = set()
        for entry in self.cells:
            cell = entry.cell
            if entry.model not in self.models or cell.factor not in self.factors:
                raise ValueError(f"a cell of {entry.model}, {cell.factor}: name it in `models` and `factors` first")
            if (entry.model, cell) in named:
                raise ValueError(f"{entry.model}: {cell.label} {cell.direction} {cell.value} stands there twice")
            named.add((entry.model, cell))
        return self


class AtDose(Contract):
    """Weaknesses of about one dose: numbers of detected, missed and untested ones."""

    dose: int
    found: int
    missed: int
    untested: int
    recall: Rate


class Agreement(Contract):
    """Estimates against truth over `n` cells, in points; None if there are too few cells."""

    n: int
    bias: float | None
    rmse: float | None
    rank_correlation: float | None


class Score(Contract):
    """One method's score.

    `invented`: findings without an effect, or with the wrong sign. `undecided`: findings in cells whose truth is too
    close to 5 points. `coverage`: share of reported intervals that contain the truth. `first_findings`: share of the
    models with a 60-point plant whose first finding is that plant's cell. `outside_untested`: share of the values that
    no caption can state that the method correctly reports as not tested. `weaknesses`: without improvements, whose
    errors can cancel those of weaknesses in the bias of `cells_with_effect`.
    """

    method: str
    models: int
    doses: list[AtDose]
    improvements: Annotated[Rate, Field(description="found among the cells whose change truly helps")]
    found: int
    invented: int
    undecided: int
    precision: Rate
    false_discovery_rate: float
    false_discoveries_over_null_cells: Rate
    first_findings: Rate
    all_cells: Agreement
    cells_with_effect: Agreement
    weaknesses: Agreement
    coverage: Rate
    provisional: Rate
    outside_untested: Rate
    unknown_cells: Annotated[int, Field(description="cells that the key does not know; they count nowhere")]
    spent: Spent
