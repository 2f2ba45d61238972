"""Segmentation metrics against scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import ttest_1samp
from sklearn.metrics import confusion_matrix, jaccard_score, recall_score

from gateway.analysis.segmentation import (
    LEAST_OF_POOLED_CLASS,
    class_pixels,
    normalise,
    pooled_difference,
    pooled_interval,
    pooled_interval_obstacle,
    scores,
)
from shared.media.label_maps import OTHER, VOID, confusion, named_overlaps, overlaps, pack_counts, unpack_counts
from shared.schemas.scores import lost_labels, whole, with_mean

CLASSES = 4
Maps = tuple[NDArray[np.uint8], NDArray[np.uint8]]


@st.composite
def maps(draw: st.DrawFn) -> Maps:
    size = (draw(st.integers(1, 12)), draw(st.integers(1, 12)))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    classes = draw(st.integers(1, CLASSES))
    truth = random.choice(np.array([*range(classes), VOID], np.uint8), size)
    return truth, random.choice(np.array([*range(CLASSES), OTHER], np.uint8), size)


def judged(pair: Maps) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    truth, predicted = (image.ravel().astype(int) for image in pair)
    return truth[truth != VOID], np.minimum(predicted[truth != VOID], CLASSES)


@given(pair=maps())
def test_counts_are_those_of_scikit_learn_without_void(pair: Maps) -> None:
    counts = confusion(*pair, CLASSES)
    truth, predicted = judged(pair)
    if len(truth):
        theirs = confusion_matrix(truth, predicted, labels=range(CLASSES + 1))
        assert (counts == theirs[:CLASSES]).all()
    assert (unpack_counts(pack_counts(counts), CLASSES) == counts).all()
    assert len(pack_counts(counts)) == 3 * np.count_nonzero(counts)


@pytest.mark.slow
@given(pair=maps())
def test_overlaps_and_accuracies_are_those_of_scikit_learn(pair: Maps) -> None:
    truth, predicted = judged(pair)
    if not len(truth):
        return
    counts = confusion(*pair, CLASSES)
    labels = list(range(CLASSES))
    there = [label for label in labels if label in truth or label in predicted]
    iou = jaccard_score(truth, predicted, labels=labels, average=None, zero_division=0)
    assert np.allclose(overlaps(counts)[there], iou[there])
    assert np.isnan(np.delete(overlaps(counts), there)).all()
    measured = scores(counts, 1)
    assert measured.accuracy == pytest.approx((truth == predicted).mean())
    present = sorted(set(truth.tolist()))
    assert measured.mean_iou == pytest.approx(iou[present].mean())
    recalls = recall_score(truth, predicted, labels=present, average=None, zero_division=0)
    assert [measured.class_accuracy[label] for label in present] == pytest.approx(recalls.tolist())
    assert measured.mean_accuracy == pytest.approx(recalls.mean())
    theirs = confusion_matrix(truth, predicted, labels=range(CLASSES + 1), normalize="true")
    assert np.allclose(normalise(counts), theirs[:CLASSES])
    by_class = named_overlaps(counts, ["a", "b", "c", "d"])
    assert list(by_class) == ["abcd"[label] for label in present]
    assert whole(with_mean(by_class)) == pytest.approx(iou[present].mean())


@given(first=maps(), second=maps())
def test_pooled_counts_are_those_of_the_pixels_together(first: Maps, second: Maps) -> None:
    truth, predicted = (np.concatenate([a.ravel(), b.ravel()])[None] for a, b in zip(first, second, strict=True))
    assert (confusion(*first, CLASSES) + confusion(*second, CLASSES) == confusion(truth, predicted, CLASSES)).all()


def test_a_map_of_another_size_is_no_map_of_the_image() -> None:
    with pytest.raises(ValueError, match="cannot be compared"):
        confusion(np.zeros((2, 3), np.uint8), np.zeros((3, 2), np.uint8), 2)


def test_lost_is_what_was_found_and_is_not_any_more() -> None:
    assert lost_labels({"car": 0.5, "road": 0.4, "sky": 0.9}, {"car": 0.49, "road": 0.0, "sky": 0.5}) == ["car"]
    assert lost_labels({"car": 0.5}, {}) == ["car"]


def test_the_pooled_difference_is_that_of_the_scores() -> None:
    random = np.random.default_rng(1)
    counts = random.integers(0, 50, (15, 2, CLASSES, CLASSES + 1))
    groups = np.array([[class_pixels(arm) for arm in pair] for pair in counts])
    after, before = (scores(counts[:, arm].sum(axis=0), 15).mean_iou or 0 for arm in (0, 1))
    difference = pooled_difference(groups)
    assert difference == pytest.approx(after - before)
    interval = pooled_interval(groups)
    assert interval.low < after - before < interval.high
    assert pooled_difference(groups[:0]) is None


def test_a_class_that_is_only_predicted_is_not_averaged_over() -> None:
    """The change makes the model see few pixels of a class that no image has; before, mIoU fell by a third."""
    before, after = np.diag([100, 100, 0, 0]), np.diag([99, 100, 0, 0])
    after[0, 2] = 1
    arms = (np.pad(counts, ((0, 0), (0, 1))) for counts in (after, before))
    groups = np.stack([class_pixels(arm) for arm in arms])[np.newaxis]
    assert pooled_difference(groups) == pytest.approx(-0.005)


def test_the_pooled_interval_is_students_for_a_mean() -> None:
    """With unions of equal size the difference is a mean over groups."""
    shares = np.random.default_rng(2).integers(300, 900, (40, 2))
    groups = np.stack([shares, np.full((40, 2), 1_000), np.full((40, 2), 1_000)], axis=2)[..., None]
    interval = pooled_interval(groups)
    each = (shares[:, 0] - shares[:, 1]) / 1_000
    theirs = ttest_1samp(each, 0.0).confidence_interval(0.95)
    assert interval.low == pytest.approx(theirs.low, abs=0.01)
    assert interval.high == pytest.approx(theirs.high, abs=0.01)
    assert interval.high - interval.low >= theirs.high - theirs.low


def test_where_the_pooled_interval_would_not_cover_there_is_none() -> None:
    groups = np.random.default_rng(3).integers(1, 50, (12, 2, 3, CLASSES))
    assert pooled_interval_obstacle(groups) is None
    assert pooled_interval_obstacle(groups[:11]) == ("few images", 11, 0)
    groups[LEAST_OF_POOLED_CLASS - 1 :, :, :, 3] = 0
    assert pooled_interval_obstacle(groups) == ("rare class", LEAST_OF_POOLED_CLASS - 1, 3)
    groups[:, :, 2, 3] = 0  # a class that no image has, though it may be predicted
    assert pooled_interval_obstacle(groups) is None
    assert pooled_interval_obstacle(np.repeat(groups[:1], 12, axis=0)) == ("all alike", 12, 0)
