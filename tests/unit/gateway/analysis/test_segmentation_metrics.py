"""Segmentation metrics against scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.metrics import confusion_matrix, jaccard_score, recall_score

from gateway.analysis.segmentation import (
    POOLED_RESAMPLES,
    hits_and_union,
    image_overlap,
    lost_classes,
    named_overlaps,
    normalise,
    overlaps,
    pooled_interval,
    scores,
    weights_of,
)
from shared.label_maps import OTHER, VOID, confusion, pack_counts, unpack_counts

CLASSES = 4
Maps = tuple[NDArray[np.uint8], NDArray[np.uint8]]


@st.composite
def maps(draw: st.DrawFn) -> Maps:
    size = (draw(st.integers(1, 12)), draw(st.integers(1, 12)))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    classes = draw(st.integers(1, CLASSES))
    truth = random.choice(np.array([*range(classes), VOID], np.uint8), size)
    return truth, random.choice(np.array([*range(CLASSES), OTHER], np.uint8), size)


def judged(drawn: Maps) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    truth, predicted = (image.ravel().astype(int) for image in drawn)
    return truth[truth != VOID], np.minimum(predicted[truth != VOID], CLASSES)


@given(drawn=maps())
def test_counts_are_those_of_scikit_learn_without_void(drawn: Maps) -> None:
    counts = confusion(*drawn, CLASSES)
    truth, predicted = judged(drawn)
    if len(truth):
        theirs = confusion_matrix(truth, predicted, labels=range(CLASSES + 1))
        assert (counts == theirs[:CLASSES]).all()
    assert (unpack_counts(pack_counts(counts), CLASSES) == counts).all()
    assert len(pack_counts(counts)) == 3 * np.count_nonzero(counts)


@given(drawn=maps())
def test_overlaps_and_accuracies_are_those_of_scikit_learn(drawn: Maps) -> None:
    truth, predicted = judged(drawn)
    if not len(truth):
        return
    counts = confusion(*drawn, CLASSES)
    labels = list(range(CLASSES))
    there = [label for label in labels if label in truth or label in predicted]
    iou = jaccard_score(truth, predicted, labels=labels, average=None, zero_division=0)
    assert np.allclose(overlaps(counts)[there], iou[there])
    assert np.isnan(np.delete(overlaps(counts), there)).all()
    measured = scores(counts, 1)
    assert measured.mean_iou == pytest.approx(iou[there].mean() if there else None)
    assert measured.accuracy == pytest.approx((truth == predicted).mean())
    present = sorted(set(truth.tolist()))
    recalls = recall_score(truth, predicted, labels=present, average=None, zero_division=0)
    assert [measured.class_accuracy[label] for label in present] == pytest.approx(recalls.tolist())
    assert measured.mean_accuracy == pytest.approx(recalls.mean())
    theirs = confusion_matrix(truth, predicted, labels=range(CLASSES + 1), normalize="true")
    assert np.allclose(normalise(counts), theirs[:CLASSES])
    by_class = named_overlaps(counts, ["a", "b", "c", "d"])
    assert list(by_class) == ["abcd"[label] for label in present]
    assert image_overlap(by_class) == pytest.approx(iou[present].mean())


@given(first=maps(), second=maps())
def test_pooled_counts_are_those_of_the_pixels_together(first: Maps, second: Maps) -> None:
    truth, predicted = (np.concatenate([a.ravel(), b.ravel()])[None] for a, b in zip(first, second, strict=True))
    assert (confusion(*first, CLASSES) + confusion(*second, CLASSES) == confusion(truth, predicted, CLASSES)).all()


def test_a_map_of_another_size_is_no_map_of_the_image() -> None:
    with pytest.raises(ValueError, match="cannot be compared"):
        confusion(np.zeros((2, 3), np.uint8), np.zeros((3, 2), np.uint8), 2)


def test_lost_is_what_was_found_and_is_not_any_more() -> None:
    assert lost_classes({"car": 0.5, "road": 0.4, "sky": 0.9}, {"car": 0.49, "road": 0.0, "sky": 0.5}) == ["car"]
    assert lost_classes({"car": 0.5}, {}) == ["car"]


def test_the_pooled_interval_covers_a_known_difference() -> None:
    """Sixty groups of images, whose difficulty varies; the segmenter loses a tenth of its pixels under the change."""
    random = np.random.default_rng(3)
    covered = 0
    for trial in range(60):
        resampled = np.zeros((2, POOLED_RESAMPLES, 2, 1), np.int64)
        for group in range(60):
            easy = random.beta(4, 2)
            counts = (1_000 * easy * 0.9, 1_000 * easy)  # of the counterfactual, of the null arm
            for arm, hits in enumerate(counts):
                image = np.array([[round(hits), 1_000 - round(hits)]])
                resampled[arm] += weights_of(1_000 * trial + group)[:, None, None] * hits_and_union(image)
        interval = pooled_interval(resampled[0], resampled[1], 60)
        assert interval is not None
        covered += interval.low <= -0.1 * 4 / 6 <= interval.high
    assert covered >= 60 * 0.95 - 2 * np.sqrt(60 * 0.95 * 0.05)


def test_too_few_groups_have_no_pooled_interval() -> None:
    nothing = np.zeros((POOLED_RESAMPLES, 2, CLASSES), np.int64)
    assert pooled_interval(nothing, nothing, 11) is None
