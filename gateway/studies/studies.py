"""Creates, shows, lists and deletes studies. The functions take a session and never commit."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Sequence

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from gateway.database.tables import Job, Review, Study, StudyAnswer, StudyRater
from gateway.jobs import jobs
from gateway.studies.ratings import load_ratings
from gateway.studies.sampling import sample_items
from shared.problems import Conflict, InvalidInput, NotFound
from shared.schemas.studies import StudiesListing, StudyRequest, StudyView

MAX_STUDIES = 100  # of one job


def create(session: Session, owner: str, job_id: str, request: StudyRequest) -> str:
    """Sample the items of a study and return its id. Raises NotFound, Conflict while the job runs, InvalidInput."""
    job = jobs.find(session, owner, job_id)
    if job.state == "running":
        raise Conflict("the job is running; make a study when it is done, or cancel it first")
    if len(_ids(session, job_id)) >= MAX_STUDIES:
        raise InvalidInput(f"the job has {MAX_STUDIES} studies; delete one first")
    study_id = uuid.uuid4().hex
    items = sample_items(session, job, study_id, request)
    session.add(Study(id=study_id, job_id=job_id, request=request))
    session.flush()
    session.add_all(items)
    return study_id


def find(session: Session, owner: str, study_id: str) -> Study:
    """The owner's study. Raises NotFound."""
    studies = select(Study).join(Job, Study.job_id == Job.id).where(Study.id == study_id)
    study = session.scalar(studies.where(Job.owner_id == owner, Job.deleted_at.is_(None)))
    if study is None:
        raise NotFound(f"there is no study {study_id!r}; GET /jobs/JOB/studies lists those of a job")
    return study


def show(session: Session, owner: str, study_id: str) -> StudyView:
    """A study with its progress. Raises NotFound."""
    study = find(session, owner, study_id)
    ratings = load_ratings(session, study)
    kinds = Counter(item.kind for item in ratings.items.values())
    raters = session.scalars(select(StudyRater).where(StudyRater.study_id == study_id)).all()
    answered = _answered(session, raters)
    invited = [rater for rater in raters if rater.token_hash is not None]
    return StudyView(
        id=study.id,
        job=study.job_id,
        request=study.request,
        items=kinds.pop("edit"),
        control_items=dict(kinds),
        checks=sorted(item.id for item in ratings.items.values() if item.kind != "edit"),
        invited=len(invited),
        finished=sum(answered.get(rater.id, 0) >= len(rater.items) for rater in invited),
        answered=sum(answered.values()),
        complete=len(ratings.complete),
        created_at=study.created_at,
    )


def listing(session: Session, owner: str, job_id: str) -> StudiesListing:
    """The studies of a job, newest first. Raises NotFound."""
    jobs.find(session, owner, job_id)
    return StudiesListing(studies=[show(session, owner, study_id) for study_id in _ids(session, job_id)])


def remove(session: Session, owner: str, study_id: str) -> None:
    """Delete a study with its answers, and the reviews that its consensus gave. Raises NotFound."""
    study = find(session, owner, study_id)
    reviews = Review.job_id == study.job_id, Review.reviewer == study.reviewer
    session.execute(delete(Study).where(Study.id == study_id))  # first: it waits for a rater who is finishing
    session.execute(delete(Review).where(*reviews))


def _ids(session: Session, job_id: str) -> Sequence[str]:
    newest = Study.created_at.desc(), Study.id
    return session.scalars(select(Study.id).where(Study.job_id == job_id).order_by(*newest)).all()


def _answered(session: Session, raters: Sequence[StudyRater]) -> dict[str, int]:
    """How many items each rater has rated."""
    a = StudyAnswer
    counts = select(a.rater_id, func.count()).where(a.rater_id.in_([rater.id for rater in raters])).group_by(a.rater_id)
    return {row[0]: row[1] for row in session.execute(counts)}
