"""Clusters of edits by their phrases, formed without outcomes on half of the groups (LANCE, section 4.2)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.cluster.vq import ClusterError, kmeans2
from scipy.spatial.distance import cdist

from gateway.analysis.effects import Floats, Integers

MOST_CLUSTERS = 10  # of a class
EDITS_PER_CLUSTER = 12  # on average, in the half that forms them; a class with fewer than two such clusters has none
_ITERATIONS = 50

Mask = NDArray[np.bool_]


class Clusters(NamedTuple):
    """The cluster of each of n edits (−1: none), and its squared distance from the cluster's centre.

    `first`: the edits of the half of the groups that formed the clusters.
    """

    number: Integers
    distance: Floats
    first: Mask


def first_half(label: Integers, group: Integers, seed: int) -> Mask:
    """Whether each of n edits is in a random half of the groups; each label's groups are split evenly."""
    _, first, index = np.unique(group, return_index=True, return_inverse=True)
    order = np.lexsort((np.random.default_rng(seed).random(len(first)), label[first]))
    half = np.zeros(len(first), bool)
    half[order[::2]] = True
    return half[index]


def cluster_counts(label: Integers, first: Mask) -> dict[int, int]:
    """How many clusters each label gets; labels with too few edits in the first half are left out."""
    labels, edits = np.unique(label[first], return_counts=True)
    counts = {int(name): min(MOST_CLUSTERS, int(n) // EDITS_PER_CLUSTER) for name, n in zip(labels, edits, strict=True)}
    return {name: count for name, count in counts.items() if count > 1}


def form_clusters(vectors: Floats, label: Integers, group: Integers, seed: int) -> Clusters:
    """K-means of the first half's edits (n × width), for each label by itself; then each edit's nearest centre.

    The edits of the other half have no part in the centres, so effects on them confirm what the first half shows.
    Clusters are numbered over all labels.
    """
    first = first_half(label, group, seed)
    number, distance = np.full(len(label), -1, np.int64), np.zeros(len(label))
    start = 0
    for name, count in cluster_counts(label, first).items():
        rows = np.flatnonzero(label == name)
        centres = _centres(vectors[rows[first[rows]]], count, seed)
        squares = cdist(vectors[rows], centres, "sqeuclidean")
        number[rows], distance[rows] = start + squares.argmin(axis=1), squares.min(axis=1)
        start += len(centres)
    return Clusters(number, distance, first)


def _centres(vectors: Floats, count: int, seed: int) -> Floats:
    """The centres of at most `count` clusters, none of them empty."""
    count = min(count, len(np.unique(vectors, axis=0)))
    while count > 1:
        try:
            rng = np.random.default_rng(seed)
            centres, _ = kmeans2(vectors, count, _ITERATIONS, minit="++", missing="raise", rng=rng)
            return np.asarray(centres)
        except ClusterError:  # one of them became empty
            count -= 1
    return np.asarray(vectors.mean(axis=0, keepdims=True))
