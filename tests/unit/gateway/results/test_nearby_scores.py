"""A detector's findings are repeated at scores 0.1 below and above the one that counts."""

from __future__ import annotations

from functools import partial

import numpy as np

from gateway.analysis.components import RenderingCost
from gateway.analysis.detection import BoxedPair, Objects, Predicted
from gateway.analysis.effects import differences
from gateway.analysis.findings import assess
from gateway.kinds import KINDS
from gateway.kinds.detection import BoxScores
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


def test_a_finding_says_at_which_scores_it_holds() -> None:
    """By night boxes have the score 0.45, which counts at 0.4; in fog the car is lost at every score."""
    images = [image(0.9), image(0.45), image(0.1)]
    pairs = np.array([[0, 0, place, 0] for place in (1, 2) for _ in EVERY])
    twice = np.concatenate([EVERY, EVERY])
    rows = np.arange(2 * SOURCES)
    scores = BoxScores(
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
    effects = assess(counted_cells(scores.cells, partial(differences, scores)), 0, None)
    results = ModelResults(
        model="m", method="dillema", relation="labelled", metric="recall", reference="null", sources=SOURCES,
        counterfactuals=2 * SOURCES, left_out=0, cells=effects,
    )  # fmt: skip
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
