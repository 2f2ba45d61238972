"""Verdicts of jobs with an unrelated editor on a job's findings: confirmed, not confirmed, or not tested, and why.

The results of jobs that render another job's findings again: with an unrelated editor, or at other doses.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

from sqlalchemy import select
from sqlalchemy.orm import Session

from gateway.analysis.limits import BEYOND
from gateway.database.tables import Job, Report
from gateway.methods import confirming, confirming_method
from gateway.results.cells import with_cells
from gateway.results.wording import add_details, confirmation_sentence
from shared.schemas.designs import Factor
from shared.schemas.effects import Cell, CellEffect, Confirmation
from shared.schemas.jobs import FollowUp
from shared.schemas.results import JobResults, ModelResults
from shared.schemas.reviews import ConfirmingMethod


def why_not_tested(method: str, cell: Cell, confirm_with: str) -> str:
    """Why a job with `confirm_with` does not test a finding of `method` again; "" if it does."""
    unrelated = confirming_method(method)
    if unrelated is None:
        return f"no other editor makes the changes of `{method}`"
    if unrelated != confirm_with:
        return f"the editor of `{confirm_with}` is related to that of `{method}`; confirm with `{unrelated}`"
    if cell.factor not in get_args(Factor):
        return f"`{confirm_with}` has nothing to render it with: it makes no changes of {cell.factor}"
    if cell.direction == "from":
        return f"`{confirm_with}` renders changes to a value, and this is one from {cell.value}"
    longest = confirming(unrelated).longest
    if longest is not None and len(cell.value) > longest:
        return f"`{confirm_with}` takes values of at most {longest} characters"
    return ""


def editor_to_confirm(method: str, effect: CellEffect) -> ConfirmingMethod | None:
    """The unrelated editor to test a finding of `method` with; None if it was tested again, or cannot be."""
    if effect.confirmation is not None and effect.confirmation.verdict != "not tested again":
        return None
    editor = confirming_method(method)
    return editor if editor is not None and not why_not_tested(method, effect.cell, editor) else None


def with_confirmations(results: JobResults, confirming: Sequence[JobResults]) -> JobResults:
    """The results; each finding says what the latest job that tests it shows for the same model in the same cell."""
    if not confirming:
        return results
    effects = {
        (job.made.job, figures.model, effect.cell): effect
        for job in confirming
        for figures in job.results
        for effect in figures.cells
    }

    def confirm(figures: ModelResults, effect: CellEffect) -> CellEffect:
        if effect.standing not in ("weakness", "improvement"):
            return effect
        testing = [job for job in confirming if not _why_left_out(job, figures.method, effect.cell)]
        shown = [job for job in testing if (job.made.job, figures.model, effect.cell) in effects]
        job = (shown or testing or confirming)[-1]
        if testing:
            confirmation = _confirmation(job, effect, effects.get((job.made.job, figures.model, effect.cell)))
        else:
            confirmation = _not_tested(job, _why_left_out(job, figures.method, effect.cell))
        details = add_details(effect.details, confirmation_sentence(confirmation))
        return effect.model_copy(update={"confirmation": confirmation, "details": details})

    return results.model_copy(update={"results": with_cells(results.results, confirm)})


def _why_left_out(job: JobResults, method: str, cell: Cell) -> str:
    """Why a confirming job does not test a finding of `method`; "" if it does."""
    confirm_with = _method(job)
    if reason := why_not_tested(method, cell, confirm_with):
        return reason
    parameters = job.made.parameters.get(confirm_with)
    if not isinstance(parameters, dict):
        return ""
    changes, factors = parameters.get(confirming(confirm_with).field), parameters.get("factors")
    if isinstance(changes, list):
        values = [(change.get("factor"), change.get("value")) for change in changes if isinstance(change, dict)]
        renders = (cell.factor, cell.value) in values
    else:  # jobs of `dillema` in a free design, by earlier versions
        renders = not isinstance(factors, list) or cell.factor in factors
    return "" if renders else "the job does not render this change; start another one"


def _method(job: JobResults) -> str:
    return job.funnels[0].method


def _not_tested(job: JobResults, reason: str) -> Confirmation:
    return Confirmation(job=job.made.job, method=_method(job), verdict="not tested again", sources=0, reason=reason)


def _confirmation(job: JobResults, finding: CellEffect, effect: CellEffect | None) -> Confirmation:
    """Confirmed: the 95 % interval of the second editor's `effect` is beyond 5 points on the side of the finding."""
    name, method = job.made.job, _method(job)
    if effect is None or effect.interval is None:
        sources = 0 if effect is None else effect.sources
        return Confirmation(job=name, method=method, verdict="too few images", sources=sources)
    worse = finding.standing == "weakness"
    confirmed = effect.interval.high < -BEYOND if worse else effect.interval.low > BEYOND
    return Confirmation(
        job=name,
        method=method,
        verdict="confirmed" if confirmed else "not confirmed",
        sources=effect.sources,
        delta_accuracy=effect.delta_accuracy,
        interval=effect.interval,
    )


def load_follow_ups(session: Session, job: Job, purpose: FollowUp) -> list[JobResults]:
    """The results of the owner's jobs of this purpose on this job, oldest first."""
    reports = select(Report).join(Job, Report.job_id == Job.id).where(Job.owner_id == job.owner_id)
    of_job = reports.where(Job.parent_id == job.id, Job.purpose == purpose, Job.deleted_at.is_(None))
    return [report.results for report in session.scalars(of_job.order_by(Job.created_at, Job.id))]
