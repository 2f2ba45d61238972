"""What a job's vision-language judge was asked, and whether its answers count: only those that an audit found sound."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from gateway.database.tables import Counterfactual
from shared.profiles.judge_audit import PROMPT, CountingQuestions, JudgeAudit
from shared.schemas.results import JobJudge
from shared.schemas.service import ServiceInfo

_COUNTS = ("questions", "refused", "unreadable", "prompt_tokens", "completion_tokens")


def counting_in_job(
    audit: JudgeAudit | None, services: Sequence[ServiceInfo]
) -> tuple[CountingQuestions, JudgeAudit | None]:
    """The questions whose answers in a job count, and the audit that says so.

    The audit must be of every judge that the services of the job asked, in today's words.
    """
    weights = [of_service for info in services for of_service in info.weights if of_service.role == "judge"]
    judges = {(judge.id, judge.revision) for judge in weights}
    if audit is None or judges != {(audit.model, f"{audit.revision} {audit.prompt}")} or audit.prompt != PROMPT:
        return CountingQuestions(), None
    return audit.counting, audit


def judge_of_job(session: Session, job_id: str, audit: JudgeAudit | None) -> JobJudge | None:
    """What the judge was asked about a job's edits; None if nothing. `audit`: that of this judge."""
    c = Counterfactual
    questions = c.lineage["judge"]["questions"].as_integer()
    sums = [func.sum(c.lineage["judge"][name].as_integer()) for name in _COUNTS]
    edits, *counts = session.execute(select(func.count(), *sums).where(c.job_id == job_id, questions > 0)).one()
    if not edits:
        return None
    numbers = {name: int(count or 0) for name, count in zip(_COUNTS, counts, strict=True)}
    found = {} if audit is None else {name: figures.nature for name, figures in audit.questions.items()}
    return JobJudge(
        edits=edits,
        **numbers,
        audited=audit.date if audit else "",
        audit=audit.digest if audit else "",
        natures=found,
        counting=list(audit.counting.names) if audit else [],
    )
