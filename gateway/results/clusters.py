"""Clusters of a model's edits with their effects: suspected on one half of the groups, tested on the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from gateway.analysis.clusters import Clusters, cluster_counts, first_half, form_clusters
from gateway.analysis.effects import Floats, Integers, Scores, differences
from gateway.analysis.findings import STANDINGS, assess
from gateway.analysis.limits import BEYOND
from gateway.kinds.rows import PhrasePairs
from gateway.results.rows import ModelRows
from shared.schemas.effects import Cell, CellEffect, EditCluster

MOST_EDITS = 20_000  # of a model and method that are clustered
PHRASES = 5  # of each cluster in the results
_FACTOR = "cluster"  # in the cell that names a cluster in its test


def is_large_enough(rows: ModelRows, seed: int) -> bool:
    """Whether some class has enough edits for clusters."""
    label, group = rows.own.phrases.label, rows.scores.cluster
    return bool(len(label)) and bool(cluster_counts(label, first_half(label, group, seed)))


def edit_clusters(rows: ModelRows, vectors: Mapping[str, Floats], seed: int) -> list[EditCluster]:
    """The clusters of a model's accepted edits under one method; those with a confirmed drop first.

    `vectors`: the text embedder's unit vectors of phrases; edits with a phrase that has none are in no cluster. A
    cluster is tested if its mean effect on the first half is beyond 5 points either way; the tested ones are a family.
    """
    chosen, edit_vectors = _vectors(rows.own.phrases.changes, rows.own.phrases.change, vectors, seed)
    if not len(chosen):
        return []
    scores, label = rows.scores, rows.own.phrases.label[chosen]
    clusters = form_clusters(edit_vectors, label, scores.cluster[chosen], seed)
    screened, cells = {}, {}
    for number in range(clusters.number.max(initial=-1) + 1):
        first, second = (chosen[(clusters.number == number) & half] for half in (clusters.first, ~clusters.first))
        screened[number] = _mean(scores, first)
        confirming = differences(scores, second)
        if abs(screened[number]) > BEYOND and len(confirming.correct):
            cells[_cell(rows, label, clusters, number)] = confirming
    effects = {effect.cell: effect for effect in assess(cells, seed)}
    summaries = [
        _row(rows, chosen, clusters, number, screened[number], effects.get(_cell(rows, label, clusters, number)))
        for number in screened
    ]
    order = (*STANDINGS, "not tested")
    return sorted(summaries, key=lambda row: (order.index(row.standing), row.screened, row.label, row.phrases))


def _vectors(
    changes: Sequence[PhrasePairs], change: Integers, vectors: Mapping[str, Floats], seed: int
) -> tuple[Integers, Floats]:
    """The edits whose phrases all have vectors, and theirs: old and new phrase side by side, mean over changes.

    Half of it is 0 where a phrase is empty, in an edit that only adds. Of more than `MOST_EDITS` edits a random sample.
    """
    width = len(next(iter(vectors.values()), ()))
    table, complete = np.zeros((len(changes), 2 * width)), np.zeros(len(changes), bool)
    for row, pairs in enumerate(changes):
        complete[row] = bool(pairs) and all(phrase in vectors for pair in pairs for phrase in pair if phrase)
        if complete[row]:
            sides = [[vectors.get(phrase, np.zeros(width)) for phrase in pair] for pair in pairs]
            table[row] = np.mean(sides, axis=0).reshape(-1)
    chosen = np.flatnonzero(complete[change]) if len(change) else np.zeros(0, np.int64)
    if len(chosen) > MOST_EDITS:
        chosen = np.sort(np.random.default_rng(seed).choice(chosen, MOST_EDITS, replace=False))
    return chosen, table[change[chosen]]


def _cell(rows: ModelRows, label: Integers, clusters: Clusters, number: int) -> Cell:
    name = rows.own.phrases.labels[label[np.argmax(clusters.number == number)]]
    return Cell(label=name, factor=_FACTOR, value=str(number), direction="to")


def _mean(scores: Scores, rows: Integers) -> float:
    """The mean effect over groups; 0 without pairs that count."""
    correct = differences(scores, rows).correct
    return float(correct.mean()) if len(correct) else 0.0


def _row(
    rows: ModelRows, chosen: Integers, clusters: Clusters, number: int, screened: float, effect: CellEffect | None
) -> EditCluster:
    members = np.flatnonzero(clusters.number == number)
    nearest = members[np.argsort(clusters.distance[members], kind="stable")]
    texts = (_text(rows.own.phrases.changes[change]) for change in rows.own.phrases.change[chosen[nearest]])
    return EditCluster(
        label=rows.own.phrases.labels[rows.own.phrases.label[chosen[members[0]]]],
        phrases=list(dict.fromkeys(texts))[:PHRASES],
        edits=len(members),
        sources=len(np.unique(rows.scores.source[chosen[members]])),
        screened=screened,
        confirming_sources=0 if effect is None else effect.sources,
        delta_accuracy=None if effect is None else effect.delta_accuracy,
        interval=None if effect is None else effect.interval,
        q_value=None if effect is None else effect.q_value,
        standing="not tested" if effect is None else effect.standing,
    )


def _text(pairs: PhrasePairs) -> str:
    """ "by day → at night"; "+ in the snow" for a phrase that is only added."""
    return "; ".join(f"{old} → {new}" if old else f"+ {new}" for old, new in pairs)
