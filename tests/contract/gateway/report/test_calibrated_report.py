"""Reports of jobs whose checks have measured errors: which enter the figures, and what the page says of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import insert, select

from gateway.database.sessions import Sessions, open_engine, open_sessions
from gateway.database.tables import Counterfactual, Job, Prediction
from gateway.methods import read_method
from gateway.report.build import build_report
from shared.media.storage import DirectoryStore
from shared.profiles.profile import CheckCalibration
from shared.schemas.base import JsonObject
from shared.schemas.effects import CheckErrors
from tests.support.drawn_job import add_drawn_job
from tests.support.service_infos import evaluator_with_scorer
from tests.support.snapshots import migrated_bytes


def add_calibrated_job(tmp_path: Path) -> tuple[Sessions, DirectoryStore]:
    """A drawn job whose spec says that its images are like tinyworld."""
    (tmp_path / "contrafact.db").write_bytes(migrated_bytes())
    engine = open_engine(f"sqlite:///{tmp_path}/contrafact.db")
    sessions, store = open_sessions(engine), DirectoryStore(tmp_path / "objects")
    add_drawn_job(sessions, store)
    with sessions.begin() as session:
        session.get_one(Job, "drawn").spec = {"calibration": "tinyworld"}
    return sessions, store


def calibrations(*methods: str, scorer: str = "") -> dict[str, CheckCalibration]:
    errors = {"default": CheckErrors(valid=200, valid_accepted=180, invalid=200, invalid_accepted=6)}
    return {"tinyworld": CheckCalibration(judged_by="people", scorer=scorer, methods=dict.fromkeys(methods, errors))}


def test_known_errors_of_the_checks_enter_the_figures_and_the_page(tmp_path: Path) -> None:
    sessions, store = add_calibrated_job(tmp_path)
    with sessions.begin() as session:
        session.get_one(Job, "drawn").spec = {}
    unnamed = build_report(sessions, store, "drawn", [], calibrations("dillema"))
    assert unnamed.calibration is None  # the job does not say that its images are like tinyworld
    with sessions.begin() as session:
        session.get_one(Job, "drawn").spec = {"calibration": "tinyworld"}
    results = build_report(sessions, store, "drawn", [], calibrations("dillema"))
    assert results.calibration is not None
    assert (results.calibration.n, results.calibration.judged_by) == (400, "people")
    assert not results.provisional
    (finding,) = results.results[0].findings
    assert finding.among_valid is not None
    assert finding.among_valid.stands
    assert "which leaves" in finding.details
    page = store.get("reports/drawn/report.html").decode()
    assert "measured on <b>tinyworld</b>" in page
    assert "uncalibrated" not in page
    assert "among valid" in page


def test_errors_of_another_method_do_not_enter(tmp_path: Path) -> None:
    sessions, store = add_calibrated_job(tmp_path)
    results = build_report(sessions, store, "drawn", [], calibrations("lance"))
    assert results.provisional
    (finding,) = results.results[0].findings
    assert (finding.provisional, finding.among_valid) == (True, None)


@pytest.mark.slow
def test_a_factor_that_was_not_measured_stays_provisional(tmp_path: Path) -> None:
    sessions, store = add_calibrated_job(tmp_path)
    errors = CheckErrors(valid=200, valid_accepted=180, invalid=200, invalid_accepted=6)
    measured = {"tinyworld": CheckCalibration(judged_by="people", methods={"dillema": {"background": errors}})}
    results = build_report(sessions, store, "drawn", [], measured)
    assert results.provisional, "weather was not measured"
    (finding,) = results.results[0].findings
    assert (finding.cell.factor, finding.provisional, finding.among_valid) == ("weather", True, None)
    cells = [effect for effect in results.results[0].cells if effect.cell.factor == "background"]
    assert any(effect.among_valid is not None for effect in cells)
    both = measured["tinyworld"].model_copy(update={"methods": {"dillema": {"background": errors, "weather": errors}}})
    assert not build_report(sessions, store, "drawn", [], {"tinyworld": both}).provisional


@pytest.mark.slow
def test_errors_at_other_thresholds_than_the_jobs_are_not_used(tmp_path: Path) -> None:
    sessions, store = add_calibrated_job(tmp_path)
    (measured,) = calibrations("dillema").values()
    moved = measured.model_copy(update={"thresholds": {"dillema": {"label": {"default": 0.5}}}})
    results = build_report(sessions, store, "drawn", [], {"tinyworld": moved})
    assert results.provisional
    assert results.calibration is not None
    assert "thresholds" in results.calibration.not_used
    with sessions.begin() as session:
        parameters: JsonObject = {"counterfactuals_per_image": 4, "thresholds": {"label": {"default": 0.5}}}
        session.get_one(Job, "drawn").methods = [read_method("dillema", parameters)]
    assert not build_report(sessions, store, "drawn", [], {"tinyworld": moved}).provisional


def add_method(sessions: Sessions, method: str) -> None:
    """Give the drawn job a second method, with the same images and predictions as its first."""
    with sessions.begin() as session:
        job = session.get_one(Job, "drawn")
        job.methods = [*job.methods, read_method(method, {})]
        rows = session.scalars(select(Counterfactual)).all()
        predictions = session.scalars(select(Prediction).where(Prediction.counterfactual_id.is_not(None))).all()
        session.execute(insert(Counterfactual), [_columns(row) | _named(row.id, method) for row in rows])
        copies = [
            _columns(row) | {"id": f"{row.id}-{method}", "counterfactual_id": f"{row.counterfactual_id}-{method}"}
            for row in predictions
        ]
        session.execute(insert(Prediction), copies)


def _columns(row: Counterfactual | Prediction) -> dict[str, object]:
    return {column.name: getattr(row, column.name) for column in row.__table__.columns}


def _named(row_id: str, method: str) -> dict[str, object]:
    return {"id": f"{row_id}-{method}", "method": method}


@pytest.mark.slow
def test_each_method_is_corrected_for_its_own_errors_only(tmp_path: Path) -> None:
    sessions, store = add_calibrated_job(tmp_path)
    add_method(sessions, "lance")
    results = build_report(sessions, store, "drawn", [], calibrations("dillema"))
    assert results.provisional, "the errors of the checks on LANCE's images are not known"
    findings = {result.method: result.findings for result in results.results if result.findings}
    (of_dillema,), (of_lance,) = findings["dillema"], findings["lance"]
    assert of_dillema.delta_accuracy == of_lance.delta_accuracy
    assert of_dillema.among_valid is not None
    assert (of_dillema.provisional, of_lance.provisional, of_lance.among_valid) == (False, True, None)
    both = calibrations("dillema", "lance")
    assert not build_report(sessions, store, "drawn", [], both).provisional


@pytest.mark.slow
@pytest.mark.parametrize(("measured_with", "scorer"), [("a" * 40, "b" * 40), ("a" * 40, "")])
def test_errors_of_another_scorer_are_not_used_and_the_report_says_why(
    tmp_path: Path, measured_with: str, scorer: str
) -> None:
    sessions, store = add_calibrated_job(tmp_path)
    services = [evaluator_with_scorer(scorer)] if scorer else []
    results = build_report(sessions, store, "drawn", services, calibrations("dillema", scorer=measured_with))
    assert results.provisional
    assert results.calibration is not None
    assert (results.calibration.errors, results.calibration.corrects) == ({}, False)
    assert measured_with[:12] in results.calibration.not_used
    assert all(effect.among_valid is None for result in results.results for effect in result.cells)
    page = store.get("reports/drawn/report.html").decode()
    assert results.calibration.not_used in page
    assert "Among valid" not in page


@pytest.mark.slow
def test_errors_of_the_jobs_own_scorer_are_used(tmp_path: Path) -> None:
    sessions, store = add_calibrated_job(tmp_path)
    results = build_report(
        sessions, store, "drawn", [evaluator_with_scorer("a" * 40)], calibrations("dillema", scorer="a" * 40)
    )
    assert results.calibration is not None
    assert (results.provisional, results.calibration.not_used) == (False, "")
