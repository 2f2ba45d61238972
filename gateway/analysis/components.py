"""Variance components of an effect: between source images, between edits of a source, between seeds of an edit.

Nested analysis of variance for unbalanced data: sums of squares are set equal to their expectations (Henderson's
method 1; Searle, Casella & McCulloch 1992, section 5.3). Intervals are percentiles of resampled source images. What
the next rendering buys follows from the variance of a mean in three-stage sampling (Cochran 1977, chapter 10).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from gateway.analysis.effects import Floats, Integers, Outcomes
from gateway.analysis.limits import LEAST_SOURCES
from shared.schemas.effects import Estimate, NextStep, Purchase, VarianceComponents

RESAMPLES = 400


@dataclass(frozen=True, slots=True)
class Nested:
    """n differences (−1 … 1) of one model and method.

    `cell` numbers their cells, whose means are taken out; `source` the independent source images (or groups); `edit`
    the edits: seeds of one edit share a number, and an edit belongs to one source.
    """

    difference: Floats
    cell: Integers
    source: Integers
    edit: Integers


def nested_differences(outcomes: Outcomes) -> Nested | None:
    """The differences of the counted pairs, by the cell that they change *to*; None without any."""
    pairs = np.arange(len(outcomes.source)) if outcomes.counting is None else np.flatnonzero(outcomes.counting.pairs)
    if not len(pairs):
        return None
    cell = np.zeros(len(outcomes.source), np.int64)
    for number, (name, rows) in enumerate(outcomes.cells.items(), start=1):
        if name.direction == "to":
            cell[rows] = number
    difference = outcomes.counterfactual - outcomes.reference("pairs")
    edit = np.arange(len(cell)) if outcomes.edit is None else outcomes.edit
    cells = np.unique(cell[pairs], return_inverse=True)[1]
    return Nested(difference[pairs], cells, outcomes.cluster[pairs], edit[pairs])


class RenderingCost(NamedTuple):
    """Network evaluations: of one more source image without its edits, and of one more rendering with its own arms."""

    source: float
    rendering: float


class _Sums(NamedTuple):
    """Per source image: rows, edits, sum, sums of squares between and within edits, and two sums of edit sizes."""

    columns: Floats  # sources × 7

    @classmethod
    def of(cls, values: Floats, source: Integers, edit: Integers) -> _Sums:
        _, row_source = np.unique(source, return_inverse=True)
        _, first, row_edit, sizes = np.unique(edit, return_index=True, return_inverse=True, return_counts=True)
        edit_source, sources = row_source[first], int(row_source.max()) + 1
        edit_means = np.bincount(row_edit, values) / sizes
        rows = np.bincount(row_source, minlength=sources).astype(float)
        sums = np.bincount(row_source, values, sources)
        means = sums / rows
        between = np.bincount(edit_source, sizes * (edit_means - means[edit_source]) ** 2, sources)
        within = np.bincount(row_source, (values - edit_means[row_edit]) ** 2, sources)
        squares = np.bincount(edit_source, sizes.astype(float) ** 2, sources)
        edits = np.bincount(edit_source, minlength=sources).astype(float)
        return cls(np.stack([rows, edits, sums, between, within, squares / rows, squares], axis=1))

    def components(self, weights: Floats) -> Floats:
        """Components (source, edit, seed) of each row of `weights`, how often each source is drawn; NaN: no data."""
        rows, edits, sums, between, within, ratio, squares = (weights @ self.columns).T
        sources = weights.sum(axis=1)
        single_edit = self.columns[:, 0]
        means = self.columns[:, 2] / single_edit
        across = weights @ (single_edit * means**2) - sums**2 / rows
        with np.errstate(divide="ignore", invalid="ignore"):
            seed = within / np.where(rows > edits, rows - edits, np.nan)
            noise = np.nan_to_num(seed)
            edit = (between - (edits - sources) * noise) / np.where(edits > sources, rows - ratio, np.nan)
            spread = np.nan_to_num(np.maximum(edit, 0)) * (ratio - squares / rows)
            source = (across - (sources - 1) * noise - spread) / (rows - (weights @ single_edit**2) / rows)
        return np.stack([np.maximum(part, 0) for part in (source, edit, seed)], axis=1)


def variance_components(nested: Nested, cost: RenderingCost, seed: int) -> VarianceComponents | None:
    """The components with their intervals, and what to buy next; None under 12 sources.

    Without several seeds of any edit, `seed` is None and `edit` contains it; without several edits of any source,
    `edit` is None and `source` contains it.
    """
    values = nested.difference - (np.bincount(nested.cell, nested.difference) / np.bincount(nested.cell))[nested.cell]
    sums = _Sums.of(values, nested.source, nested.edit)
    sources = len(sums.columns)
    if sources < LEAST_SOURCES:
        return None
    resampled = np.random.default_rng(seed).multinomial(sources, np.full(sources, 1 / sources), RESAMPLES).astype(float)
    (point,) = sums.components(np.ones((1, sources)))
    ends = np.nanquantile(np.where(np.isnan(point), 0.0, sums.components(resampled)), [0.025, 0.975], axis=0)
    source, edit, own_seed = (
        None
        if np.isnan(value)
        else Estimate(value=float(value), low=float(min(low, value)), high=float(max(high, value)))
        for value, low, high in zip(point, *ends, strict=True)
    )
    rows, edits = sums.columns[:, 0].sum(), sums.columns[:, 1].sum()
    return VarianceComponents(
        sources=sources,
        edits_per_source=float(edits / sources),
        seeds_per_edit=float(rows / edits),
        source=source,
        edit=edit,
        seed=own_seed,
        evaluations_per_source=cost.source,
        evaluations_per_rendering=cost.rendering,
        next=_next_steps(np.nan_to_num(point), sources, edits / sources, rows / edits, cost),
    )


def _next_steps(point: Floats, sources: int, edits: float, seeds: float, cost: RenderingCost) -> list[NextStep]:
    """More sources, edits or seeds by the variance that a network evaluation removes, relative to the best of them.

    The variance of a mean is source / n + edit / (n m) + seed / (n m k), with n sources of m edits of k seeds.
    """
    source, edit, seed = (float(part) for part in point)
    variance = source + edit / edits + seed / (edits * seeds)
    gains: dict[Purchase, float] = {
        "sources": variance / (sources**2 * (cost.source + edits * seeds * cost.rendering)),
        "edits": (edit + seed / seeds) / (sources**2 * edits**2 * seeds * cost.rendering),
        "seeds": seed / (sources**2 * edits**2 * seeds**2 * cost.rendering),
    }
    best = max(gains.values())
    order = sorted(gains, key=lambda purchase: -gains[purchase])
    return [NextStep(buy=purchase, gain=gains[purchase] / best if best else 0.0) for purchase in order]
