"""The outcome of a test: findings, tables and gallery from a job's results."""

from __future__ import annotations

import html
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from contrafact.outcome import Outcome
from shared.schemas.effects import Cell, CellEffect
from shared.schemas.metrics import OriginalsCheck
from shared.schemas.results import JobResults, ModelResults
from tests.support.counterfactual_views import counterfactual_view

EFFECT = {"sources": 20, "counterfactuals": 40, "delta_probability": None}


def cell(standing: str, value: str) -> CellEffect:
    place = Cell(label="bus", factor="weather", value=value, direction="to")
    document = {**EFFECT, "cell": place, "standing": standing, "delta_accuracy": -0.9, "sentence": f"fails at {value}"}
    return CellEffect.model_validate(document)


@pytest.fixture
def outcome(tmp_path: Path) -> Outcome:
    results = ModelResults(
        model="<model>",
        method="dillema",
        relation="labelled",
        sources=20,
        counterfactuals=40,
        left_out=0,
        cells=[cell("weakness", "night"), cell("nothing found", "fog")],
    )
    views = [
        counterfactual_view(0),
        counterfactual_view(1, flipped=True),
        counterfactual_view(2, accepted=False),
    ]
    fields: dict[str, Any] = {"results": [results]}
    return Outcome(
        job="j",
        directory=tmp_path,
        metrics=JobResults.model_construct(**fields),
        counterfactuals=views,
        failures=[],
        report_page=b"<html>",
        pictures={"image0": b"0", "image1": b"1", "source": b"s", "null": b"n"},
    )


def test_findings_are_cells_that_stand_out(outcome: Outcome) -> None:
    (finding,) = outcome.findings
    assert (finding.model, finding.method, finding.effect.cell.value) == ("<model>", "dillema", "night")
    assert str(finding) == "fails at night"


def test_what_is_to_be_said_of_the_originals_is_said(outcome: Outcome) -> None:
    rate = {"value": 0.7, "count": 7, "n": 10, "low": 0.4, "high": 0.9}
    check = OriginalsCheck.model_validate({"right": rate, "standing": "open", "sentence": "Check its classes."})
    results = [outcome.metrics.results[0].model_copy(update={"originals": check})]
    hinted = replace(outcome, metrics=outcome.metrics.model_copy(update={"results": results}))
    assert "`<model>`: Check its classes." in repr(hinted)


def test_a_drop_without_a_test_is_in_the_verdict(outcome: Outcome) -> None:
    """An outcome of 8 lost images of 8 had no finding, and its text said no more than the job and its directory."""
    assert [verdict.kind for verdict in outcome.verdicts] == ["weakness"]
    drop = cell("too few images", "night").model_copy(update={"sources": 8, "images_needed": 12})
    results = outcome.metrics.results[0].model_copy(update={"cells": [drop]})
    fields: dict[str, Any] = {"results": [results], "funnels": []}
    open_outcome = replace(outcome, metrics=JobResults.model_construct(**fields))
    assert open_outcome.findings == []
    (verdict,) = open_outcome.verdicts
    assert (verdict.model, verdict.method, verdict.kind, verdict.effects) == (
        "<model>",
        "dillema",
        "not settled",
        [drop],
    )
    assert "−90 points on 8 images; about 4 more images of `bus`" in verdict.sentence
    assert repr(open_outcome).splitlines()[1:] == [f"  <model> under dillema: {verdict.sentence}"]


def test_tables_have_a_row_for_each_counterfactual_and_for_each_cell(outcome: Outcome) -> None:
    rows = outcome.to_dataframe()
    assert rows["id"].tolist() == ["cf0", "cf1", "cf2"]
    assert rows["flipped"].tolist() == [False, True, None]
    assert rows["counterfactual"].tolist()[:2] == ["bus", "truck"]
    cells = outcome.to_dataframe("cells")
    assert cells["value"].tolist() == ["night", "fog"]
    assert cells["standing"].tolist() == ["weakness", "nothing found"]


def test_the_gallery_shows_changed_predictions_first(outcome: Outcome) -> None:
    assert [shown.id for shown in outcome.gallery().views] == ["cf1", "cf0"]
    assert [shown.id for shown in outcome.gallery(flipped=True).views] == ["cf1"]
    assert [shown.id for shown in outcome.gallery(1).views] == ["cf1"]


def test_the_gallery_is_one_page_with_its_pictures(outcome: Outcome, tmp_path: Path) -> None:
    page = outcome.gallery().save(tmp_path / "gallery.html").read_text()
    assert page.count("data:image/png;base64") == 6
    assert html.escape("<model>") in page
    assert "<model>" not in page


def test_the_report_is_written(outcome: Outcome, tmp_path: Path) -> None:
    assert outcome.report(tmp_path / "r.html").read_bytes() == b"<html>"
