"""What jobs with an unrelated editor say of a job's weaknesses: confirmed, not confirmed, or too few images."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from gateway.analysis.limits import BEYOND
from gateway.database.tables import Job, Report
from gateway.results.cells import with_cells
from gateway.results.wording import confirmation_sentence
from shared.schemas.effects import CellEffect
from shared.schemas.estimates import Confirmation
from shared.schemas.results import JobResults, ModelResults


def load_confirmations(session: Session, job: Job) -> list[JobResults]:
    """The results of the owner's jobs that test this one's findings again, oldest first."""
    reports = select(Report).join(Job, Report.job_id == Job.id).where(Job.owner_id == job.owner_id)
    confirming = reports.where(Job.spec["confirms"].as_string() == job.id, Job.deleted_at.is_(None))
    return [report.results for report in session.scalars(confirming.order_by(Job.created_at, Job.id))]


def with_confirmations(results: JobResults, confirming: Sequence[JobResults]) -> JobResults:
    """The results; each weakness says what the latest confirming job shows for the same model in the same cell."""
    confirmations = {
        (figures.model, effect.cell): (job.made.job, figures.method, effect)
        for job in confirming
        for figures in job.results
        for effect in figures.cells
    }
    if not confirming:
        return results

    def confirm(figures: ModelResults, effect: CellEffect) -> CellEffect:
        if effect.standing != "weakness":
            return effect
        job, method, effect_again = confirmations.get((figures.model, effect.cell), (confirming[-1].made.job, "", None))
        confirmation = _confirmation(job, method or confirming[-1].funnels[0].method, effect_again)
        sentence = effect.sentence + confirmation_sentence(confirmation)
        return effect.model_copy(update={"confirmation": confirmation, "sentence": sentence})

    return results.model_copy(update={"results": with_cells(results.results, confirm)})


def _confirmation(job: str, method: str, effect: CellEffect | None) -> Confirmation:
    """Confirmed: the 95 % interval of the second editor's effect is below −5 points."""
    if effect is None or effect.interval is None:
        return Confirmation(
            job=job, method=method, verdict="too few images", sources=0 if effect is None else effect.sources
        )
    return Confirmation(
        job=job,
        method=method,
        verdict="confirmed" if effect.interval.high < -BEYOND else "not confirmed",
        sources=effect.sources,
        delta_accuracy=effect.delta_accuracy,
        interval=effect.interval,
    )
