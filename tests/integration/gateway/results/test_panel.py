"""Reference models: a weakness that all of them share is suspect, and they have no findings of their own."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import select, update

from gateway.database.sessions import Sessions
from gateway.database.tables import Job, Prediction
from gateway.report.build import build_report
from gateway.report.page import DATA_BEGIN
from gateway.results.measure import with_panel
from shared.media.storage import DirectoryStore
from shared.schemas.metrics import OriginalsCheck
from shared.schemas.results import JobResults
from tests.support.drawn_job import add_drawn_job


def build_with_reference(sessions: Sessions, folder: Path, same_weakness: bool) -> tuple[JobResults, str]:
    """The results and the page without its data of a drawn job that tests `night-bus`, with `sound` as its reference.

    The reference may predict as `night-bus` does.
    """
    store = DirectoryStore(folder)
    add_drawn_job(sessions, store, per_class=14)
    with sessions.begin() as session:
        session.execute(update(Job).values(spec={"reference_models": ["sound"]}))
        if same_weakness:
            for weak in session.scalars(select(Prediction).where(Prediction.model == "night-bus")).all():
                prediction_update = update(Prediction).where(
                    Prediction.model == "sound",
                    Prediction.source_image_id == weak.source_image_id,
                    Prediction.counterfactual_id.is_not_distinct_from(weak.counterfactual_id),
                )
                session.execute(
                    prediction_update.values(predicted=weak.predicted, scores=weak.scores, detail=weak.detail)
                )
    results = build_report(sessions, store, "drawn")
    page, _, _ = store.get("reports/drawn/report.html").decode().partition(DATA_BEGIN)
    return results, page


@pytest.mark.slow
@pytest.mark.parametrize("same_weakness", [False, True])
def test_a_weakness_is_suspect_if_the_reference_models_share_it(
    sessions: Sessions, tmp_path: Path, same_weakness: bool
) -> None:
    results, page = build_with_reference(sessions, tmp_path, same_weakness)
    assert [figures.model for figures in results.results] == ["night-bus"]
    assert [figures.model for figures in results.references] == ["sound"]
    finding = results.results[0].findings[0]
    assert (finding.cell.label, finding.cell.value) == ("bus", "night")
    assert finding.panel is not None
    assert (finding.panel.references, finding.panel.suspect) == (["sound"], same_weakness)
    assert finding.panel.failing == (["sound"] if same_weakness else [])
    assert ("suspect" in finding.details) == same_weakness
    assert ("suspect" in page) == same_weakness
    wrong = results.references[0].model_copy(update={"originals": OriginalsCheck(standing="unsound")})
    (figures,) = with_panel(results.results, [wrong])
    assert figures.findings[0].panel is not None
    assert figures.findings[0].panel.references == [], "one that is never right did not fail, which cleared the images"
