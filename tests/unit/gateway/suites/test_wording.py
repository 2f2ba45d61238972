"""The wording of comparisons between releases."""

from __future__ import annotations

import pytest

from gateway.analysis.releases import ORIGINALS
from gateway.suites.suites import comparison_sentence
from shared.schemas.effects import Cell, Interval, Metric, Rate
from shared.schemas.masks import ALL_CLASSES
from shared.schemas.suites import CellComparison


def rate(count: int) -> Rate:
    return Rate(value=count / 50, count=count, n=50, low=0.0, high=1.0)


def comparison(label: str | None, method: str = "dillema", interval: Interval | None = None) -> CellComparison:
    cell = None if label is None else Cell(label=label, factor="weather", value="night", direction="to")
    return CellComparison(
        method=method, cell=cell, images=50, sources=30, accuracy=rate(14), against=rate(42), difference=-0.56,
        interval=interval, selected_interval=None, p_value=None, q_value=None, judgement="undecided", sentence="",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("label", "method", "start"),
    [
        ("bus", "dillema", "`bus` at night (dillema): "),
        ("", "dillema", "all classes at night (dillema): "),
        (ALL_CLASSES, "dillema", "the whole image at night (dillema): "),
        (None, "dillema", "all counterfactuals (dillema): "),
        (None, ORIGINALS, "originals: "),
    ],
)
def test_a_comparison_names_what_was_compared(label: str | None, method: str, start: str) -> None:
    assert comparison_sentence(comparison(label, method), "accuracy").startswith(start)


@pytest.mark.parametrize(("metric", "unit"), [("accuracy", "right"), ("iou", "IoU")])
def test_a_comparison_has_both_scores_their_difference_and_the_sources(metric: Metric, unit: str) -> None:
    sentence = comparison_sentence(comparison("bus"), metric)
    assert sentence.endswith(
        f": 28\N{NO-BREAK SPACE}% {unit} against 84\N{NO-BREAK SPACE}%, −56 points, 30 source images"
    )


def test_a_comparison_has_its_interval_where_there_is_one() -> None:
    interval = Interval(low=-0.7, high=-0.4, level=0.95, kind="bootstrap-t")
    sentence = comparison_sentence(comparison("bus", interval=interval), "accuracy")
    assert sentence.endswith(", −56 points, 95 % interval −70 to −40, 30 source images")
