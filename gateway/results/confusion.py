"""The confusion matrices of a classifier under one method, and its figures at a threshold of confidence."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from gateway.analysis.confusion import NO_CLASS, Confusion, at_confidence, confusion, shares
from gateway.analysis.effects import Integers, Outcomes, differences
from gateway.analysis.findings import describe
from gateway.results.estimands import counted_cells
from gateway.results.job_rows import JobRows
from gateway.results.rounds import cells_of_rounds
from gateway.results.rows import ModelRows
from shared.schemas.designs import RoundPlan
from shared.schemas.metrics import ClassConfusion, ConfusionPairs
from shared.schemas.results import ModelResults
from shared.seeds import derive_seed

MOST_CLASSES = 40  # rows, and columns, of a matrix that is still legible


def class_confusion(rows: ModelRows, outcomes: Outcomes, *, has_none: bool = False) -> ClassConfusion | None:
    """The matrices of a model and method; None without pairs that count.

    `has_none`: the outcomes are those of `rows` at a threshold of confidence; the matrices have a column for "none".
    """
    names = rows.phrases.labels
    pairs = _counted(outcomes)
    counts = np.bincount(rows.phrases.label[pairs], minlength=len(names))
    chosen = [place for place in np.argsort(-counts, kind="stable").tolist()[:MOST_CLASSES] if counts[place]]
    chosen.sort(key=lambda place: names[place])
    if not chosen:
        return None
    k, classes = len(chosen), [names[place] for place in chosen]
    place_of_label = np.full(len(names), -1)
    place_of_label[chosen] = np.arange(k)
    of_rows = pairs[place_of_label[rows.phrases.label[pairs]] >= 0]
    columns = [*classes, *_most_predicted(outcomes, of_rows, rows.classes, classes)]
    m = len(columns)
    predicted_as = np.array([columns.index(name) if name in columns else m for name in rows.classes], np.int64)
    arms = confusion(outcomes, place_of_label[rows.phrases.label], predicted_as, k, m)
    last = m + 2 if has_none else m + 1
    originals, nulls, counterfactuals = (shares(counts[:, :last]) for counts in arms[:3])
    return ClassConfusion(
        classes=classes,
        columns=[*columns, "other", *(["none"] if has_none else [])],
        more=int((counts > 0).sum()) - k,
        images=arms.counterfactuals.sum(axis=1).tolist(),
        originals=originals,
        nulls=nulls,
        counterfactuals=counterfactuals,
        difference=(np.asarray(counterfactuals) - np.asarray(nulls)).tolist(),
        pairs=_behind(arms, last),
    )


def _behind(arms: Confusion, last: int) -> ConfusionPairs:
    own, originals, nulls = (counts[:, :last].tolist() for counts in arms[2:])
    return ConfusionPairs(originals=originals, nulls=nulls, counterfactuals=own)


def _most_predicted(outcomes: Outcomes, pairs: Integers, predicted: Sequence[str], classes: Sequence[str]) -> list[str]:
    """Predicted classes that are not among `classes`, by name: the most frequent in the three arms of these pairs.

    With `classes` they are at most `MOST_CLASSES`.
    """
    arms = (outcomes.ranks.original, outcomes.ranks.null, outcomes.ranks.counterfactual)
    numbers = np.concatenate([arm.predicted[pairs] for arm in arms])
    counts = np.bincount(numbers[numbers != NO_CLASS], minlength=len(predicted))
    others = [name for number, name in enumerate(predicted) if counts[number] and name not in classes]
    others.sort(key=lambda name: (-counts[predicted.index(name)], name))
    return sorted(others[: MOST_CLASSES - len(classes)])


def _counted(outcomes: Outcomes) -> Integers:
    every = np.arange(len(outcomes.source))
    return every if outcomes.counting is None else every[outcomes.counting.pairs]


def at_threshold(figures: ModelResults, rows: JobRows, rounds: Sequence[RoundPlan], threshold: float) -> ModelResults:
    """A classifier's figures if its predictions below this confidence count as none, by effect; others as they are.

    They have 95 % intervals and no tests: a threshold that is moved until an effect shows would make its p-value wrong.
    """
    pair = rows.models[figures.model, figures.method]
    if not isinstance(pair.scores, Outcomes):
        return figures
    outcomes = at_confidence(pair.scores, threshold)
    cells = cells_of_rounds(counted_cells(outcomes.cells, partial(differences, outcomes)), rounds)
    seed = derive_seed(rows.job.seed, "confidence", figures.method, figures.model)
    return figures.model_copy(
        update={
            "cells": describe(cells, seed),
            "confusion": class_confusion(pair, outcomes, has_none=True),
            "metrics": None,
            "variance": None,
        }
    )
