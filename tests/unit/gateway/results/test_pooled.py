"""Pooled pixels of pairs: images weigh the same in both arms, and refused arms do not count."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from gateway.kinds.rows import CounterfactualRow, PredictionRow, SourceNumbers
from gateway.kinds.segmentation import PixelDetail, PixelScores, segmentation_metrics
from gateway.results.pairing import triples
from gateway.results.rows import ScoreColumns
from gateway.results.stream import SourceRow, SourceRows
from shared.media.label_maps import named_overlaps, pack_counts
from shared.schemas.metrics import SegmentationMetrics
from shared.schemas.scores import with_mean

CLASSES = ("road", "car")
Counts = NDArray[np.int64]


class Edit(NamedTuple):
    """An accepted edit that shares the null arm of its source image; `lost_to` is the check that the arm fails."""

    counts: Counts
    lost_to: str = ""


class Street(NamedTuple):
    """A source image: the counts of its null arm, which are those of the original too, and its edits."""

    null: Counts
    edits: Sequence[Edit]


def predicted(image: str | None, position: int, counts: Counts) -> PredictionRow:
    return PredictionRow(
        position, str(position), image, "model", "", 1.0, None, with_mean(named_overlaps(counts, CLASSES)),
        {"confusion": [*pack_counts(counts)]},
    )  # fmt: skip


def arm(position: int, ordinal: int, kind: str, lost_to: str = "") -> CounterfactualRow:
    return CounterfactualRow(
        position, f"{position}-{ordinal}", str(position), "dillema", ordinal, kind, None if kind == "null" else 0,
        [], rendered=True, accepted=True, check="", evaluations=None, null_check=lost_to, lost_to=lost_to,
    )  # fmt: skip


def measured(streets: Sequence[Street]) -> SegmentationMetrics:
    columns = ScoreColumns(PixelDetail(CLASSES))
    for position, street in enumerate(streets):
        rows = [arm(position, 0, "null")]
        rows += [arm(position, number, "edit", edit.lost_to) for number, edit in enumerate(street.edits, 1)]
        predictions = [predicted(None, position, street.null), predicted(rows[0].id, position, street.null)]
        predictions += [
            predicted(row.id, position, edit.counts) for row, edit in zip(rows[1:], street.edits, strict=True)
        ]
        source = SourceRows(SourceRow(position, str(position), "done", None), rows, predictions)
        columns.add(SourceNumbers(position, position), source, list(triples(rows)), source.predictions_of("model"))
    return figures(columns)


def figures(columns: ScoreColumns) -> SegmentationMetrics:
    scores = columns.rows().scores
    assert isinstance(scores, PixelScores)
    return segmentation_metrics(scores, ["#000000", "#ffffff"], 0)


def image(random: np.random.Generator, quality: float) -> Counts:
    """Confusion counts of 1,000 pixels of each class; about a share `quality` of them is right."""
    right = (1_000 * (quality + random.normal(0, 0.05, len(CLASSES)))).clip(0, 1_000).astype(int)
    return np.array([[right[0], 1_000 - right[0], 0], [0, right[1], 1_000 - right[1]]])


@pytest.mark.slow
@given(
    streets=st.lists(st.tuples(st.integers(0, 1_000), st.integers(0, 4), st.integers(0, 3)), min_size=1, max_size=15)
)
def test_without_an_effect_the_pooled_difference_is_zero_whatever_was_accepted(
    streets: list[tuple[int, int, int]],
) -> None:
    """Each image: its right pixels of 1,000, its accepted edits, and those of them whose arm was refused."""
    rows = []
    for right, accepted, refused in streets:
        counts = np.array([[right, 1_000 - right, 0], [0, 1_000, 0]])
        missed = np.array([[0, 0, 1_000], [0, 0, 1_000]])
        rows.append(Street(counts, [*[Edit(counts)] * accepted, *[Edit(missed, "label")] * refused]))
    pixels = measured(rows)
    assert pixels.counterfactuals.images == sum(accepted for _, accepted, _ in streets)
    assert pixels.nulls.images == pixels.originals.images == sum(accepted > 0 for _, accepted, _ in streets)
    assert pixels.originals.pixels == pixels.nulls.pixels == pixels.counterfactuals.pixels
    assert pixels.originals.mean_iou == pixels.nulls.mean_iou  # the null arms are the originals here
    if pixels.counterfactuals.images:
        assert pixels.delta_pooled_iou == pytest.approx(0.0, abs=1e-12)
        assert np.abs(pixels.difference).max() < 1e-12
    else:
        assert pixels.delta_pooled_iou is None


@pytest.mark.slow
def test_noise_without_an_effect_is_within_the_interval_though_easy_images_have_more_edits() -> None:
    covered = 0
    for seed in range(40):
        random = np.random.default_rng(seed)
        streets = []
        for quality in random.uniform(0.3, 0.9, 20):
            edits = [Edit(image(random, quality)) for _ in range(4 if quality > 0.6 else 1)]
            streets.append(Street(image(random, quality), edits))
        interval = measured(streets).pooled_interval
        assert interval is not None
        covered += interval.low <= 0 <= interval.high
    assert covered >= 34


def test_few_images_have_a_reason_instead_of_an_interval() -> None:
    random = np.random.default_rng(0)
    pixels = measured([Street(image(random, 0.5), [Edit(image(random, 0.4))]) for _ in range(3)])
    assert pixels.pooled_interval is None
    assert pixels.no_pooled_interval
    assert pixels.delta_pooled_iou is not None
    assert pixels.delta_pooled_iou < 0


def test_each_original_counts_once_whatever_was_accepted() -> None:
    """Beside the originals of the pairs: the first counts three times, the others not at all."""
    good, bad = np.array([[90, 10, 0], [10, 90, 0]]), np.array([[50, 50, 0], [50, 50, 0]])
    refused = [Edit(bad, lost_to="label")]
    pixels = measured([Street(good, [Edit(good)] * 3), Street(bad, refused), Street(bad, [])])
    assert pixels.all_originals is not None
    assert (pixels.all_originals.images, pixels.all_originals.pixels) == (3, 600)
    pooled = good + bad + bad  # 190 right of 300 of each class, 110 false ones of the other
    assert pixels.all_originals.mean_iou == pytest.approx(pooled[0, 0] / (300 + pooled[1, 0]))
    assert (pixels.originals.images, pixels.originals.pixels) == (1, 600)
    assert pixels.originals.mean_iou == pytest.approx(90 / 110)


def test_where_there_are_sham_arms_the_pooled_difference_is_against_them() -> None:
    null, drifted = np.array([[900, 100, 0], [0, 900, 100]]), np.array([[600, 400, 0], [0, 700, 300]])
    columns = ScoreColumns(PixelDetail(CLASSES))
    edit = arm(0, 1, "edit")._replace(sham_ordinal=2)
    rows = [arm(0, 0, "null"), edit, arm(0, 2, "sham")]
    predictions = [
        predicted(name, 0, counts) for name, counts in ((None, null), ("0-0", null), ("0-1", drifted), ("0-2", drifted))
    ]
    source = SourceRows(SourceRow(0, "0", "done", None), rows, predictions)
    columns.add(SourceNumbers(0, 0), source, list(triples(rows)), source.predictions_of("model"))
    pixels = figures(columns)
    assert pixels.delta_pooled_iou == 0.0
    assert pixels.nulls.mean_iou == pixels.originals.mean_iou
    assert (pixels.counterfactuals.mean_iou or 0) < (pixels.nulls.mean_iou or 0)
