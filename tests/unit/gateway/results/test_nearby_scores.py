"""A detector's findings are repeated at scores 0.1 below and above the one that counts."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from gateway.analysis.components import RenderingCost
from gateway.analysis.detection import BoxedPair, Objects, Predicted
from gateway.analysis.effects import differences
from gateway.analysis.findings import assess
from gateway.kinds import KINDS, detection_figures
from gateway.kinds.detection_rows import BoxScores
from gateway.kinds.task_kind import KindRows, Measurement
from gateway.results.estimands import counted_cells
from gateway.results.measure import with_repeats
from shared.schemas.boxes import BoxSpec
from shared.schemas.effects import Cell
from shared.schemas.metrics import DetectionMetrics
from shared.schemas.results import ModelResults

SOURCES = 24
EVERY = np.arange(SOURCES)
BOX, ONE, NONE = np.array([[2.0, 2.0, 20.0, 20.0]]), np.array([0]), np.zeros(SOURCES, np.int64)
CELLS = {value: Cell(label="car", factor="weather", value=value, direction="to") for value in ("night", "fog")}


def image(score: float) -> BoxedPair:
    """A car of the truth, and its box with this score."""
    return BoxedPair(Objects(BOX, ONE, np.array([324.0]), ONE), Predicted(BOX, ONE, np.array([score])))


def box_scores() -> BoxScores:
    """By night boxes have the score 0.45, which counts at 0.4; in fog the car is lost at every score."""
    images = [image(0.9), image(0.45), image(0.1)]
    pairs = np.array([[0, 0, place, 0] for place in (1, 2) for _ in EVERY])
    twice = np.concatenate([EVERY, EVERY])
    rows = np.arange(2 * SOURCES)
    return BoxScores(
        source=twice,
        ordinal=np.repeat([0, 1], SOURCES),
        original=np.ones(2 * SOURCES),
        image=rows,
        null=np.ones(2 * SOURCES),
        counterfactual=np.zeros(2 * SOURCES),
        whole=rows,
        cells={CELLS["night"]: rows[:SOURCES], CELLS["fog"]: rows[SOURCES:]},
        classes=("car",),
        rules=BoxSpec(),
        images=images,
        pairs=pairs,
        counted=np.ones(2 * SOURCES, bool),
        cluster_of_pair=twice,
        every=NONE,
        every_group=EVERY,
        row_pair=rows,
        row_label=["car"] * (2 * SOURCES),
    )


def model_results(**fields: object) -> ModelResults:
    """The results of a detector on all pairs."""
    return ModelResults.model_validate(
        {
            "model": "m", "method": "dillema", "relation": "labelled", "metric": "recall", "reference": "null",
            "sources": SOURCES, "counterfactuals": 2 * SOURCES, "left_out": 0, "cells": [], **fields,
        }
    )  # fmt: skip


def test_a_finding_says_at_which_scores_it_holds() -> None:
    scores = box_scores()
    effects = assess(counted_cells(scores.cells, partial(differences, scores)), 0, None)
    results = model_results(cells=effects)
    nearby = KINDS["detection"].nearby
    assert nearby is not None
    found = {effect.cell.value: effect for effect in with_repeats(results, nearby(KindRows(scores)), (), 0).findings}
    assert found["night"].holds_at == {"0.4": False, "0.6": True}
    assert found["fog"].holds_at == {"0.4": True, "0.6": True}
    assert "holds at score 0.6, not at score 0.4" in found["night"].details
    labelled = Measurement("dillema", RenderingCost(0, 0), (), 0, labelled=True)
    metrics = KINDS["detection"].figures(KindRows(scores), labelled)["detection"]
    assert isinstance(metrics, DetectionMetrics)
    assert metrics.best_scores == {"car": 0.45}, "all boxes of the originals have 0.9: of 0.05 to 0.9 the middle"


@pytest.mark.parametrize(("score", "names"), [(0.05, ["0", "0.15"]), (0.95, ["0.85", "1"])])
def test_a_score_near_the_end_is_repeated_on_both_sides(score: float, names: list[str]) -> None:
    """A limit below 0.1 had no repetition at lower scores, and nobody said so."""
    nearby = KINDS["detection"].nearby
    assert nearby is not None
    assert [*nearby(KindRows(replace(box_scores(), rules=BoxSpec(score=score))))] == names


def test_at_another_confidence_the_average_precision_is_not_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is over all scores; the slider of the results page asks with every move."""
    kind = KINDS["detection"]
    assert kind.at_confidence is not None
    rows = KindRows(box_scores())
    own = kind.figures(rows, Measurement("dillema", RenderingCost(0, 0), (), 0, labelled=False))["detection"]
    assert isinstance(own, DetectionMetrics)
    monkeypatch.setattr(detection_figures, "average_precision", lambda *_: pytest.fail("computed again"))
    monkeypatch.setattr(detection_figures, "precision_differences", lambda *_: pytest.fail("computed again"))
    _, fields = kind.at_confidence(rows, 0.95, model_results(detection=own))
    at_095 = fields["detection"]
    assert isinstance(at_095, DetectionMetrics)
    assert (own.originals.found, at_095.originals.found) == (2 * SOURCES, 0)
    assert (at_095.delta_ap, at_095.nulls.precision) == (own.delta_ap, own.nulls.precision)
