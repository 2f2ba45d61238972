"""The samples of the findings for review: ten images of each, however many findings there are."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.analysis.reviews import LEAST_OWN
from gateway.database.columns import StoredChange
from gateway.kinds.rows import CounterfactualRow, PredictionRow
from gateway.report.review_order import MAX_LISTED, ReviewList
from gateway.results.stream import SourceRow, SourceRows
from shared.schemas.results import JobResults
from tests.support.figures import effect, results

LOST = 14  # images of each finding


def lost_images(values: list[str], position: int) -> SourceRows:
    """A bus that the model recognises in the null arm and under none of the values."""
    source = f"source-{position}"
    rows = [_row(source, position, 0, "")] + [
        _row(source, position, ordinal, value) for ordinal, value in enumerate(values, start=1)
    ]
    predictions = [
        PredictionRow(
            position,
            source,
            image,
            "m",
            "car" if changed else "bus",
            0.9,
            None,
            {"bus": float(not changed)},
            {"truth_probability": None},
        )
        for image, changed in [(None, False), *((row.id, bool(row.changes)) for row in rows)]
    ]
    return SourceRows(SourceRow(position, source, "done", "bus"), rows, predictions)


def _row(source: str, position: int, ordinal: int, value: str) -> CounterfactualRow:
    change = StoredChange(factor="weather", from_phrase="", to_phrase=value, from_value="", to_value=value)
    return CounterfactualRow(
        position, f"{value or 'null'}-{position:02}", source, "dillema", ordinal, "edit" if value else "null",
        0 if value else None, [change] if value else [], rendered=True, accepted=True, check="", evaluations=None,
        null_check="" if value else None,
    )  # fmt: skip


@pytest.mark.parametrize("findings", [1, 25, 60])
def test_each_finding_offers_ten_images_however_many_there_are(findings: int) -> None:
    """At 60 findings each had three: the list ended after 200 images."""
    values = [f"value-{number}" for number in range(findings)]
    weaknesses = [effect(value, -80).model_copy(update={"standing": "weakness"}) for value in values]
    fields: dict[str, Any] = {"results": [results("dillema", *weaknesses)]}  # all that the list reads
    job = JobResults.model_construct(**fields)
    review_list = ReviewList(job)
    for _ in review_list.collect(lost_images(values, position) for position in range(LOST)):
        pass
    listed = review_list.apply(job)
    first = listed.review[: listed.review_first]
    assert [sum(name.startswith(f"{value}-") for name in first) for value in values] == [LEAST_OWN] * findings
    assert {name.rsplit("-", 1)[0] for name in first[:findings]} == set(values), "one of each finding in turn"
    assert len(set(listed.review)) == len(listed.review) <= max(MAX_LISTED, LEAST_OWN * findings)
    samples = [cell.changed.sample for cell in listed.results[0].findings if cell.changed]
    assert set(first) == {name for sample in samples for name in sample}
