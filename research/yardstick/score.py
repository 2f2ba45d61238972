"""Score an answer against the key: pure arithmetic, the same for Contrafact and for any other method.

There are four kinds of truth. A cell is a *weakness* (*improvement*) if the key's interval lies beyond 5 points, *null*
if it lies within them, otherwise *unsettled*: a finding there counts neither as true nor as false.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

import numpy as np
from scipy.stats import spearmanr

from research.statistics.rates import wilson
from research.yardstick.formats import Agreement, Answer, AnswerKey, AtDose, FoundCell, KnownModel, Score, TrueEffect
from shared.schemas.effects import Cell, Rate

DOSES = (15, 30, 60)
BEYOND = 0.05  # the least effect of a finding (docs/explanation/metrics.md)
LEAST_FOR_CORRELATION = 3
Truth = Literal["weakness", "improvement", "null", "unsettled"]


class _ScoredCell(NamedTuple):
    """One cell of one model: the truth, and the answer about it (None: not mentioned)."""

    model: str
    true: TrueEffect
    answer: FoundCell | None

    @property
    def tested(self) -> bool:
        return self.answer is not None and self.answer.low is not None

    @property
    def detected(self) -> bool:
        """A finding with the right sign."""
        return self.answer is not None and self.answer.finding and (self.answer.effect or 0) * self.true.effect > 0

    @property
    def claimed(self) -> bool:
        return self.answer is not None and self.answer.finding


def truth_of(true: TrueEffect) -> Truth:
    """The kind of a cell's truth."""
    if true.high < -BEYOND:
        return "weakness"
    if true.low > BEYOND:
        return "improvement"
    return "null" if true.low > -BEYOND and true.high < BEYOND else "unsettled"


def dose_of(true: TrueEffect) -> int:
    """The nominal dose nearest to the measured effect."""
    return min(DOSES, key=lambda dose: abs(100 * abs(true.effect) - dose))


def score(key: AnswerKey, answer: Answer) -> Score:
    """Score an answer against the key, on the cells of its models and factors.

    Raises ValueError for an answer about a model that the key does not know.
    """
    models_of_key = {model.name: model for model in key.models}
    if strangers := sorted(set(answer.models) - set(models_of_key)):
        raise ValueError(f"the answer key has no model {', '.join(strangers)}; it has {', '.join(models_of_key)}")
    models = [models_of_key[name] for name in answer.models]
    judged = _scored_cells(models, answer)
    by_truth: dict[Truth, list[_ScoredCell]] = defaultdict(list)
    for cell in judged:
        by_truth[truth_of(cell.true)].append(cell)
    real, null = by_truth["weakness"] + by_truth["improvement"], by_truth["null"]
    detected = sum(cell.detected for cell in real)
    invented = sum(cell.claimed for cell in null) + sum(cell.claimed and not cell.detected for cell in real)
    tested_values = {(entry.model, entry.cell.value) for entry in answer.cells if entry.effect is not None}
    return Score(
        method=answer.method,
        models=len(models),
        doses=[_at_dose(dose, [cell for cell in by_truth["weakness"] if dose_of(cell.true) == dose]) for dose in DOSES],
        improvements=_rate(cell.detected for cell in by_truth["improvement"]),
        found=detected,
        invented=invented,
        undecided=sum(cell.claimed for cell in by_truth["unsettled"]),
        precision=wilson(detected, detected + invented),
        false_discovery_rate=_false_discovery_rate(judged, answer.models),
        false_discoveries_over_null_cells=_rate(cell.claimed for cell in null if cell.tested),
        first_findings=_first_findings(answer, models),
        all_cells=_agreement([cell for cell in judged if cell.tested]),
        cells_with_effect=_agreement([cell for cell in real if cell.tested]),
        weaknesses=_agreement([cell for cell in by_truth["weakness"] if cell.tested]),
        coverage=_rate(_covers(cell) for cell in judged if cell.tested),
        provisional=_rate(entry.provisional for entry in answer.cells if entry.finding),
        outside_untested=_rate(
            (model.name, true.cell.value) not in tested_values for model in models for true in model.outside
        ),
        unknown_cells=len(
            {(entry.model, entry.cell) for entry in answer.cells}
            - {(model.name, true.cell) for model in models for true in model.cells}
        ),
        spent=answer.spent,
    )


def _scored_cells(models: Sequence[KnownModel], answer: Answer) -> list[_ScoredCell]:
    answers = {(entry.model, entry.cell): entry for entry in answer.cells}
    return [
        _ScoredCell(model.name, true, answers.get((model.name, true.cell)))
        for model in models
        for true in model.cells
        if true.cell.factor in answer.factors
    ]


def _at_dose(dose: int, cells: Sequence[_ScoredCell]) -> AtDose:
    detected = sum(cell.detected for cell in cells)
    untested = sum(not cell.tested and not cell.detected for cell in cells)
    return AtDose(
        dose=dose,
        found=detected,
        missed=len(cells) - detected - untested,
        untested=untested,
        recall=wilson(detected, len(cells)),
    )


def _false_discovery_rate(judged: Iterable[_ScoredCell], models: Sequence[str]) -> float:
    """Mean over models of their false share of findings (0 without findings); Contrafact promises at most 5 %."""
    claims = dict.fromkeys(models, 0)
    false = dict.fromkeys(models, 0)
    for cell in judged:
        kind = truth_of(cell.true)
        if cell.claimed and kind != "unsettled":
            claims[cell.model] += 1
            false[cell.model] += kind == "null" or not cell.detected
    return float(np.mean([false[name] / max(1, claims[name]) for name in models])) if models else 0.0


def _first_findings(answer: Answer, models: Sequence[KnownModel]) -> Rate:
    """Share of the models with a planted cell of about 60 points whose first finding is such a cell."""
    first: dict[str, FoundCell] = {}
    for entry in answer.cells:
        if entry.finding:
            first.setdefault(entry.model, entry)
    large_plants = {model.name: _large_plants(model, answer.factors) for model in models}
    return _rate(
        name in first and first[name].cell in cells and (first[name].effect or 0) < 0
        for name, cells in large_plants.items()
        if cells
    )


def _large_plants(model: KnownModel, factors: Sequence[str]) -> set[Cell]:
    planted = {planting.cell for planting in model.planted if planting.cell.factor in factors}
    weak = {true.cell for true in model.cells if truth_of(true) == "weakness" and dose_of(true) == DOSES[-1]}
    return planted & weak


def _agreement(cells: Sequence[_ScoredCell]) -> Agreement:
    """Agreement in points. A positive bias means that effects are underestimated in harm."""
    pairs = [(cell.answer.effect, cell.true.effect) for cell in cells if cell.answer and cell.answer.effect is not None]
    if not pairs:
        return Agreement(n=0, bias=None, rmse=None, rank_correlation=None)
    estimated, true = 100 * np.array(pairs, np.float64).T
    vary = len(pairs) >= LEAST_FOR_CORRELATION and np.ptp(estimated) > 0 and np.ptp(true) > 0
    return Agreement(
        n=len(pairs),
        bias=float(np.mean(estimated - true)),
        rmse=float(np.sqrt(np.mean((estimated - true) ** 2))),
        rank_correlation=float(spearmanr(estimated, true).statistic) if vary else None,
    )


def _covers(cell: _ScoredCell) -> bool:
    assert cell.answer is not None
    low, high = cell.answer.low, cell.answer.high
    return low is not None and high is not None and low <= cell.true.effect <= high


def _rate(hits: Iterable[bool]) -> Rate:
    values = list(hits)
    return wilson(sum(values), len(values))
