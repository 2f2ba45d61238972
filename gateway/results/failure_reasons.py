"""Why source images of a job failed, why its edits were refused, and for how many a question was asked again."""

from __future__ import annotations

from collections import Counter

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from gateway.database.tables import Counterfactual, Job, SourceImage
from gateway.methods import JobMethod
from gateway.methods.checks import LABEL_BY_RANK
from shared.problems import BEGINS
from shared.schemas.results import FailureReason

REASONS_SHOWN = 5


def failure_reasons(session: Session, job_id: str) -> list[FailureReason]:
    """The most frequent reasons, the most frequent one first. Reasons that differ in what they quote are one."""
    count = func.count()
    rows = session.execute(
        select(SourceImage.failure, count)
        .where(SourceImage.job_id == job_id, SourceImage.state == "failed")
        .group_by(SourceImage.failure)
        .order_by(count.desc(), SourceImage.failure)
    )
    counts, quoting = Counter[str](), dict[str, str]()
    for reason, number in rows:
        unquoted = reason.split(BEGINS)[0]
        counts[unquoted] += number
        quoting.setdefault(unquoted, reason)
    return [FailureReason(reason=quoting[name], count=number) for name, number in counts.most_common(REASONS_SHOWN)]


def asked_again(session: Session, job_id: str, method: str) -> int:
    """The edits of a method for which a question to the language model was repeated."""
    c = Counterfactual
    repeats = c.lineage["asked_again"].as_integer()
    query = select(func.count()).where(c.job_id == job_id, c.method == method, c.arm == "edit", repeats > 0)
    return session.scalar(query) or 0


def label_unchecked(session: Session, job: Job, method: JobMethod) -> int:
    """The rendered edits of a method whose label can have any rank, because the scorer ranks it last in the source.

    0 if a threshold of its probability checks it too, or nothing does.
    """
    if max(method.thresholds.get("label", {"default": -1.0}).values()) != LABEL_BY_RANK:
        return 0
    c, limit = Counterfactual, Counterfactual.scores["label_rank_limit"].as_float()
    query = (
        select(SourceImage.ground_truth, limit, func.count())
        .join(SourceImage, c.source_image_id == SourceImage.id)
        .where(c.job_id == job.id, c.method == method.name, c.arm == "edit", limit >= len(job.classes))
        .group_by(SourceImage.ground_truth, limit)
    )
    return sum(count for truth, last, count in session.execute(query) if last >= len({*job.classes, truth}))


def refusal_reason(session: Session, job_id: str, method: str) -> str:
    """The most frequent reason for which the edits of a method were refused; empty without any."""
    c = Counterfactual
    query = (
        select(c.reason)
        .where(c.job_id == job_id, c.method == method, c.arm == "edit", c.accepted.is_(False), c.reason != "")
        .group_by(c.reason)
        .order_by(func.count().desc(), c.reason)
        .limit(1)
    )
    return session.scalar(query) or ""
