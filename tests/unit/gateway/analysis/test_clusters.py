"""Clusters of edits: halves of the groups, centres of one half, and no part of the other half in them."""

from __future__ import annotations

import numpy as np

from gateway.analysis.clusters import MOST_CLUSTERS, cluster_counts, first_half, form_clusters


def edits(groups: int = 40) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Two labels; each group of a label has an edit of each of two kinds: vectors, label, group, kind."""
    random = np.random.default_rng(0)
    group = np.repeat(np.arange(2 * groups), 2)
    label, kind = group % 2, np.tile([0, 1], 2 * groups)
    vectors = np.eye(3)[kind] + random.normal(0, 0.05, (len(kind), 3))
    return vectors, label, group, kind


def test_halves_have_whole_groups_and_half_of_each_label() -> None:
    _, label, group, _ = edits()
    first = first_half(label, group, 1)
    for name in np.unique(group):
        assert len(np.unique(first[group == name])) == 1
    assert [int(first[label == name].sum()) for name in (0, 1)] == [40, 40]
    assert not np.array_equal(first, first_half(label, group, 2))
    assert np.array_equal(first, first_half(label, group, 1))


def test_clusters_are_the_kinds_of_each_label() -> None:
    vectors, label, group, kind = edits(24)
    clusters = form_clusters(vectors, label, group, 1)
    assert len(np.unique(clusters.number)) == 4
    for number in np.unique(clusters.number):
        members = clusters.number == number
        assert len(np.unique(label[members])) == 1
        assert len(np.unique(kind[members])) == 1


def test_the_other_half_has_no_part_in_the_centres() -> None:
    vectors, label, group, _ = edits()
    before = form_clusters(vectors, label, group, 1)
    moved = vectors.copy()
    second = np.flatnonzero(~before.first)
    moved[second[1:]] += 5
    after = form_clusters(moved, label, group, 1)
    same = [*np.flatnonzero(before.first), second[0]]
    assert np.array_equal(before.number[same], after.number[same])
    assert np.array_equal(before.distance[same], after.distance[same])


def test_few_edits_have_no_clusters_and_equal_ones_a_single_one() -> None:
    vectors, label, group, _ = edits(10)
    assert np.all(form_clusters(vectors, label, group, 1).number == -1)
    assert cluster_counts(np.zeros(1_000, np.int64), np.ones(1_000, bool)) == {0: MOST_CLUSTERS}
    equal = form_clusters(np.ones((100, 3)), np.zeros(100, np.int64), np.arange(100), 1)
    assert np.all(equal.number == 0)
