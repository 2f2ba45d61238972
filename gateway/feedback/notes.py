"""Status and note of findings: listed, stored, and put into results."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from gateway.database.tables import Answer, Report
from gateway.feedback.answers import is_answer, store_answer
from gateway.jobs import jobs
from shared.problems import NotFound
from shared.schemas.effects import Cell, CellEffect
from shared.schemas.finding_notes import FindingNote, FindingNoteRequest
from shared.schemas.findings import FindingsListing, FindingView
from shared.schemas.results import JobResults, ModelResults
from shared.seeds import derive_digest


def listing(session: Session, owner: str, job_id: str) -> FindingsListing:
    """The findings of the job's report with their current notes. Raises NotFound."""
    jobs.find(session, owner, job_id)
    report = session.get(Report, job_id)
    if report is None:
        return FindingsListing(findings=[])
    return FindingsListing(findings=findings_of(with_notes(report.results, load_notes(session, job_id))))


def record(
    session: Session, owner: str, author: str, job_id: str, finding: str, request: FindingNoteRequest
) -> FindingView:
    """Store a finding's status and note in place of earlier ones; remove them if both are empty. Raises NotFound."""
    _find(session, owner, job_id, finding)
    session.execute(delete(Answer).where(is_answer(job_id, "note"), Answer.item == finding))
    if request.status is not None or request.note:
        store_answer(session, job_id, "note", finding, author, request.model_dump())
    return _find(session, owner, job_id, finding)


def _find(session: Session, owner: str, job_id: str, finding: str) -> FindingView:
    views = {view.id: view for view in listing(session, owner, job_id).findings}
    if finding not in views:
        raise NotFound(f"job {job_id} has no finding {finding[:64]!r}; GET /jobs/{job_id}/findings lists them")
    return views[finding]


def finding_id(model: str, method: str, cell: Cell) -> str:
    """The id of a finding within its job: 16 hexadecimal digits, the same in every report."""
    return derive_digest("finding", model, method, cell.label, cell.factor, cell.value, cell.direction)[:8].hex()


def load_notes(session: Session, job_id: str) -> dict[str, FindingNote]:
    """The notes of a job by the finding's id, also of cells that are no findings at present."""
    rows = session.scalars(select(Answer).where(is_answer(job_id, "note")).order_by(Answer.answered_at))
    return {
        row.item: FindingNote.model_validate({**row.content, "author": row.author, "noted_at": row.answered_at})
        for row in rows
    }


def with_notes(results: JobResults, notes: Mapping[str, FindingNote]) -> JobResults:
    """The results with these notes on their findings, in place of those that a stored report has."""

    def set_note(figures: ModelResults, effect: CellEffect) -> CellEffect:
        is_finding = effect.standing in ("weakness", "improvement")
        note = notes.get(finding_id(figures.model, figures.method, effect.cell)) if is_finding else None
        return effect if note == effect.note else effect.model_copy(update={"note": note})

    models = [
        figures.model_copy(update={"cells": [set_note(figures, effect) for effect in figures.cells]})
        for figures in results.results
    ]
    return results.model_copy(update={"results": models})


def findings_of(results: JobResults) -> list[FindingView]:
    """The findings with their ids, in the order of the results."""
    return [
        FindingView(
            id=finding_id(figures.model, figures.method, effect.cell),
            model=figures.model,
            method=figures.method,
            effect=effect,
        )
        for figures in results.results
        for effect in figures.findings
    ]
