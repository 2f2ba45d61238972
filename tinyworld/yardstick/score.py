"""The score of an answer against the key: pure arithmetic, the same for Contrafact and for any rival.

Truth comes in four kinds. A cell is a *weakness* (*improvement*) when the key's interval lies beyond 5 points, *null*
when it lies within them, otherwise *unsettled*: then a finding there counts neither for nor against.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

import numpy as np
from scipy.stats import spearmanr

from gateway.analysis.certainty import wilson
from shared.schemas.results import Cell, Rate
from tinyworld.yardstick.formats import Agreement, Answer, AnswerKey, AtDose, FoundCell, KnownModel, Score, TrueEffect

DOSES = (15, 30, 60)
BEYOND = 0.05  # what a finding must lie beyond (docs/explanation/metrics.md)
LEAST_FOR_CORRELATION = 3
Truth = Literal["weakness", "improvement", "null", "unsettled"]


class _Judged(NamedTuple):
    """One cell of one model: what is true, and what was said (None: no line about it)."""

    model: str
    true: TrueEffect
    said: FoundCell | None

    @property
    def tested(self) -> bool:
        return self.said is not None and self.said.low is not None

    @property
    def found(self) -> bool:
        """A finding with the right sign."""
        return self.said is not None and self.said.finding and (self.said.effect or 0) * self.true.effect > 0

    @property
    def claimed(self) -> bool:
        return self.said is not None and self.said.finding


def truth_of(true: TrueEffect) -> Truth:
    """What kind of cell it is."""
    if true.high < -BEYOND:
        return "weakness"
    if true.low > BEYOND:
        return "improvement"
    return "null" if true.low > -BEYOND and true.high < BEYOND else "unsettled"


def dose_of(true: TrueEffect) -> int:
    """The nominal dose nearest to the measured effect."""
    return min(DOSES, key=lambda dose: abs(100 * abs(true.effect) - dose))


def score(key: AnswerKey, answer: Answer) -> Score:
    """Hold an answer against the key: the cells of the models and factors that it was asked for.

    Raises ValueError for an answer about a model that the key does not know.
    """
    known = {model.name: model for model in key.models}
    if strangers := sorted(set(answer.models) - set(known)):
        raise ValueError(f"the answer key has no model {', '.join(strangers)}; it has {', '.join(known)}")
    models = [known[name] for name in answer.models]
    said = {(found.model, found.cell): found for found in answer.cells}
    judged = [
        _Judged(model.name, true, said.get((model.name, true.cell)))
        for model in models
        for true in model.cells
        if true.cell.factor in answer.factors
    ]
    by_truth: dict[Truth, list[_Judged]] = defaultdict(list)
    for one in judged:
        by_truth[truth_of(one.true)].append(one)
    real, null = by_truth["weakness"] + by_truth["improvement"], by_truth["null"]
    found = sum(one.found for one in real)
    invented = sum(one.claimed for one in null) + sum(one.claimed and not one.found for one in real)
    tested_values = {(found.model, found.cell.value) for found in answer.cells if found.effect is not None}
    return Score(
        method=answer.method,
        models=len(models),
        doses=[_at_dose(dose, [one for one in by_truth["weakness"] if dose_of(one.true) == dose]) for dose in DOSES],
        improvements=_rate(one.found for one in by_truth["improvement"]),
        found=found,
        invented=invented,
        undecided=sum(one.claimed for one in by_truth["unsettled"]),
        precision=wilson(found, found + invented),
        false_discovery_rate=_false_discovery_rate(judged, answer.models),
        false_discoveries_over_null_cells=_rate(one.claimed for one in null if one.tested),
        first_findings=_first_findings(answer, models),
        all_cells=_agreement([one for one in judged if one.tested]),
        cells_with_effect=_agreement([one for one in real if one.tested]),
        coverage=_rate(_covers(one) for one in judged if one.tested),
        provisional=_rate(found.provisional for found in answer.cells if found.finding),
        outside_untested=_rate(
            (model.name, true.cell.value) not in tested_values for model in models for true in model.outside
        ),
        unknown_cells=len(set(said) - {(model.name, true.cell) for model in models for true in model.cells}),
        spent=answer.spent,
    )


def _at_dose(dose: int, cells: Sequence[_Judged]) -> AtDose:
    found = sum(one.found for one in cells)
    untested = sum(not one.tested and not one.found for one in cells)
    return AtDose(
        dose=dose,
        found=found,
        missed=len(cells) - found - untested,
        untested=untested,
        recall=wilson(found, len(cells)),
    )


def _false_discovery_rate(judged: Iterable[_Judged], models: Sequence[str]) -> float:
    """Mean over models of the share of their findings that are invented (0 without findings): what 5 % promises."""
    claims = dict.fromkeys(models, 0)
    false = dict.fromkeys(models, 0)
    for one in judged:
        kind = truth_of(one.true)
        if one.claimed and kind != "unsettled":
            claims[one.model] += 1
            false[one.model] += kind == "null" or not one.found
    return float(np.mean([false[name] / max(1, claims[name]) for name in models])) if models else 0.0


def _first_findings(answer: Answer, models: Sequence[KnownModel]) -> Rate:
    """Of the models with a planted cell of about 60 points, those whose first finding is such a cell."""
    first: dict[str, FoundCell] = {}
    for found in answer.cells:
        if found.finding:
            first.setdefault(found.model, found)
    wanted = {model.name: _large_plants(model, answer.factors) for model in models}
    return _rate(
        name in first and first[name].cell in cells and (first[name].effect or 0) < 0
        for name, cells in wanted.items()
        if cells
    )


def _large_plants(model: KnownModel, factors: Sequence[str]) -> set[Cell]:
    planted = {planting.cell for planting in model.planted if planting.cell.factor in factors}
    weak = {true.cell for true in model.cells if truth_of(true) == "weakness" and dose_of(true) == DOSES[-1]}
    return planted & weak


def _agreement(cells: Sequence[_Judged]) -> Agreement:
    """In points; positive bias: effects are seen as less harmful than they are."""
    pairs = [(one.said.effect, one.true.effect) for one in cells if one.said and one.said.effect is not None]
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


def _covers(one: _Judged) -> bool:
    assert one.said is not None
    low, high = one.said.low, one.said.high
    return low is not None and high is not None and low <= one.true.effect <= high


def _rate(hits: Iterable[bool]) -> Rate:
    values = list(hits)
    return wilson(sum(values), len(values))
