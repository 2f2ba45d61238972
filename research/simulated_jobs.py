"""Synthetic prediction tables with a known truth: jobs as the analysis sees them, without images or models.

A job has source images of two classes and equally many counterfactuals of each to every value. The checks accept a
random share of them. Source images are hard or easy: with probability √(correlation), an image of a source takes the
source's shared random error, so that any two of its images correlate by `correlation`. All counterfactuals of a source
share one null arm. Every counterfactual is in two cells, *to* its new value and *from* the old one, and the cells of a
class have the same source images. So cells depend on each other as in a real job.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gateway.analysis.effects import Outcomes, Predictions, Ranks
from shared.schemas.effects import Cell

CLASSES = ("bus", "car")
VALUES = ("night", "rain", "snow")


@dataclass(frozen=True, slots=True)
class Setting:
    """One point of the grid. `drop` is the true effect (0 … 1) of *to night* on buses; all other edits do nothing.

    `sources`: source images per class. `siblings`: counterfactuals of a source image to each value. `rate`: accuracy on
    null arms. `correlation`: between two images of one source. `accepted`: share of accepted counterfactuals (0 … 1).
    """

    sources: int
    siblings: int
    rate: float
    correlation: float
    drop: float
    accepted: float = 0.85


def grid() -> Iterator[Setting]:
    """All settings whose drop leaves a rate of at least 0."""
    for sources in (15, 20, 40, 80):
        for siblings, correlations in ((1, (0.0, 0.6)), (3, (0.0, 0.5, 0.9)), (8, (0.0, 0.5))):
            for correlation in correlations:
                for rate in (0.5, 0.8, 0.95, 0.98, 1.0):
                    for drop in (0.0, 0.15, 0.5, 1.0):
                        if drop <= rate:
                            yield Setting(sources, siblings, rate, correlation, drop)


def truths(setting: Setting) -> dict[Cell, float]:
    """The true effect of every cell, in −1 … 1."""
    effects: dict[Cell, float] = {}
    for label in CLASSES:
        of_value = {value: -setting.drop if (label, value) == ("bus", "night") else 0.0 for value in VALUES}
        effects |= {Cell(label=label, factor="weather", value=v, direction="to"): e for v, e in of_value.items()}
        mean = sum(of_value.values()) / len(VALUES)
        effects[Cell(label=label, factor="weather", value="day", direction="from")] = mean
    return effects


def job(setting: Setting, random: np.random.Generator) -> Outcomes:
    """One random table of a setting."""
    sources, edits_per_source = setting.sources * len(CLASSES), setting.siblings * len(VALUES)
    source = np.repeat(np.arange(sources), edits_per_source)
    value = np.tile(np.repeat(np.arange(len(VALUES)), setting.siblings), sources)
    bus = source < setting.sources
    aimed = setting.rate - np.where(bus & (value == 0), setting.drop, 0.0)
    shared_errors = random.random(sources)
    null = _right(np.full(sources, setting.rate), shared_errors, setting.correlation, random)
    right = _right(aimed, shared_errors[source], setting.correlation, random)
    accepted = random.random(len(source)) < setting.accepted
    source = source[accepted]
    original, counterfactual = _predictions(np.ones(len(source), bool)), _predictions(right[accepted])
    return Outcomes.of(
        Ranks(original, _predictions(null[source]), counterfactual),
        source=source,
        ordinal=np.arange(len(source)),
        null_arm=source,
        cells=_cells(bus[accepted], value[accepted]),
    )


def _right(
    rates: NDArray[np.float64], shared: NDArray[np.float64], correlation: float, random: np.random.Generator
) -> NDArray[np.bool_]:
    """Right with the given probabilities; the correlation sets how often the source image's shared error decides."""
    by_source = random.random(len(rates)) < math.sqrt(correlation)
    return np.asarray(np.where(by_source, shared, random.random(len(rates))) < rates)


def _predictions(right: NDArray[np.bool_]) -> Predictions:
    return Predictions(right.astype(float), np.where(right, 1, 2), np.where(right, 0, 1))


def _cells(bus: NDArray[np.bool_], value: NDArray[np.int64]) -> dict[Cell, NDArray[np.int64]]:
    cells = {}
    for label, mine in zip(CLASSES, (bus, ~bus), strict=True):
        for number, name in enumerate(VALUES):
            rows = np.flatnonzero(mine & (value == number))
            cells[Cell(label=label, factor="weather", value=name, direction="to")] = rows
        cells[Cell(label=label, factor="weather", value="day", direction="from")] = np.flatnonzero(mine)
    return cells
