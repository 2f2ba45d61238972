"""Ids of findings, and the results with the status and note of each."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import select
from sqlalchemy.orm import Session

from gateway.database.tables import NotedFinding
from gateway.results.cells import with_cells
from shared.schemas.effects import Cell, CellEffect
from shared.schemas.finding_notes import FindingNote
from shared.schemas.findings import FindingView
from shared.schemas.results import JobResults, ModelResults
from shared.seeds import derive_digest


def finding_id(model: str, method: str, cell: Cell) -> str:
    """The id of a finding within its job: 16 hexadecimal digits, the same in every report."""
    return derive_digest("finding", model, method, cell.label, cell.factor, cell.value, cell.direction)[:8].hex()


def load_notes(session: Session, job_id: str) -> dict[str, FindingNote]:
    """The notes of a job by the finding's id, also of cells that are no findings at present."""
    rows = session.scalars(select(NotedFinding).where(NotedFinding.job_id == job_id))
    return {row.finding: note_of(row) for row in rows}


def note_of(row: NotedFinding) -> FindingNote:
    """The note in a row."""
    return FindingNote(status=row.status, note=row.note, author=row.author, noted_at=row.noted_at)


def with_notes(results: JobResults, notes: Mapping[str, FindingNote]) -> JobResults:
    """The results with these notes on their findings, in place of those that a stored report has."""

    def set_note(figures: ModelResults, effect: CellEffect) -> CellEffect:
        is_finding = effect.standing in ("weakness", "improvement")
        note = notes.get(finding_id(figures.model, figures.method, effect.cell)) if is_finding else None
        return effect if note == effect.note else effect.model_copy(update={"note": note})

    return results.model_copy(update={"results": with_cells(results.results, set_note)})


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
