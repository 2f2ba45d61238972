"""Frozen suites: the counterfactuals of a job that count, kept for good, against which releases are tested.

A suite is a job of its own (of the suite's id, hidden from lists) that holds copies of the chosen rows and no
predictions: so its images and masks stay, whatever becomes of the job that made them. A run is a job too: a copy of
those rows, pending for one model under test, which workers take up like any images whose counterfactuals are there.
Copies are made by the database, in one statement a table. Functions that take a session and never commit.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, and_, delete, exists, func, insert, literal, or_, select
from sqlalchemy.orm import Session, aliased

from gateway.database.columns import JsonObject
from gateway.database.counts import count_rows
from gateway.database.events import add_event
from gateway.database.pagination import page_of
from gateway.database.sessions import insert_missing
from gateway.database.table_base import utc_now
from gateway.database.tables import Counterfactual, Job, Report, SourceImage, Suite, Table
from gateway.jobs import jobs
from gateway.jobs.choices import refuse_unknown_truths
from gateway.jobs.progress import progress
from gateway.operations.deletion import mark_deleted
from gateway.queue import leases
from gateway.results.counterfactuals import Filters, conditions
from gateway.results.stream import is_arm_of
from shared.problems import Conflict, InvalidInput, NotFound
from shared.schemas.evaluation import ModelUnderTestInfo
from shared.schemas.suites import RunView, SuiteDetail, SuiteFilters, SuiteRequest, SuitesPage, SuiteView
from shared.seeds import derive_id

RUNS_SHOWN = 100
_PREFIX = 24  # characters of a copy's job in the ids of its rows, before a hyphen and the id of the first row


def create(session: Session, owner: str, request: SuiteRequest) -> str:
    """Freeze the counterfactuals that count and that the filters let through; returns the suite's id.

    Raises NotFound; Conflict while the job runs, or for a name in use; InvalidInput where there is nothing to freeze.
    """
    jobs.find(session, owner, request.job)
    held = select(Job).where(Job.id == request.job).with_for_update().execution_options(populate_existing=True)
    job = session.scalar(held)  # so that nobody deletes or retries it between the copies
    if job is None or job.deleted_at is not None:
        raise NotFound(f"there is no job {request.job!r}; GET /jobs lists yours")
    if job.state == "running":
        raise Conflict("the job is running; freeze a suite when it is done, or cancel it first")
    if job.suite_id is not None:
        raise InvalidInput(f"job {job.id} is a run of a suite; make a suite of the job that rendered the images")
    suite_id = uuid.uuid4().hex
    filters = request.filters.model_dump(by_alias=True, exclude_none=True)
    row = {"id": suite_id, "owner_id": owner, "name": request.name, "made_from": job.id, "filters": filters}
    insert_missing(session, Suite, [row])
    if session.get(Suite, suite_id) is None:
        raise Conflict(f"you have a suite {request.name!r}; choose another name, or delete that one")
    spec = {"task_description": job.task_description, "suite": suite_id, **_of_masks(job)}
    insert_missing(session, Job, [_job_like(job, suite_id, suite_id, spec, state="done", finished_at=utc_now())])
    edits = and_(
        Counterfactual.job_id == job.id,
        Counterfactual.arm == "edit",
        Counterfactual.counted,
        Counterfactual.image_digest.is_not(None),
        *conditions(Filters.model_validate(filters)),
    )
    arm = aliased(Counterfactual)
    compared = exists().where(edits, is_arm_of(arm, Counterfactual))
    copies = _Copies(suite_id, lambda row: row)
    used = select(Counterfactual.source_image_id).where(edits)
    copies.sources(session, SourceImage.id.in_(used), state="done")
    copies.counterfactuals(session, Counterfactual, edits)
    copies.counterfactuals(session, arm, and_(arm.job_id == job.id, compared))
    if session.scalar(select(func.count()).where(SourceImage.job_id == suite_id)) == 0:
        raise InvalidInput(
            "no counterfactual of the job matches the filters and counts (accepted, and its null or sham arm too); "
            "there is nothing to freeze"
        )
    return suite_id


def start_run(session: Session, owner: str, suite: str, model: ModelUnderTestInfo) -> str:
    """Test a release, a model with the weights of now, against a suite; returns the run's id.

    The same release is not tested twice; what failed or was cancelled in its run is taken up again. Raises NotFound,
    and InvalidInput where the model does not know the suite's classes.
    """
    row = _held(session, owner, suite)
    kept = session.get_one(Job, row.id)
    if model.kind != kept.kind:
        raise InvalidInput(f"the model under test {model.name!r} is for {model.kind}, and the suite for {kept.kind}")
    truths = select(SourceImage.ground_truth, SourceImage.mask_classes).where(SourceImage.job_id == row.id)
    labels = {name for label, held in session.execute(truths) for name in [label, *(held or ())] if name is not None}
    refuse_unknown_truths(labels, [model], "Test a model of the same classes")
    run_id = derive_id("suite run", row.id, model.name, model.revision)
    spec = {"task_description": kept.task_description, "suite": row.id, "revision": model.revision, **_of_masks(kept)}
    uploaded = jobs.digests_of([model])
    tested = _job_like(kept, run_id, row.id, spec, models=[model.name], uploaded_models=uploaded)
    insert_missing(session, Job, [tested])
    run = session.get_one(Job, run_id)
    if run.deleted_at is not None:
        raise Conflict("the run of this release is being deleted; try again in some minutes")
    if run.events > 0:
        if run.state != "running":
            leases.retry_job(session, run_id)
        return run_id
    copies = _Copies(run_id, lambda row: func.substr(row, _PREFIX + 2))
    copies.sources(session, SourceImage.job_id == row.id, state="pending", generated=True)
    copies.counterfactuals(session, Counterfactual, Counterfactual.job_id == row.id, lineage={})
    counts = count_rows(session, run_id)
    add_event(session, run_id, "job", {"state": "running", "images": counts["images"]}, counts)
    return run_id


def find(session: Session, owner: str, suite: str) -> Suite:
    """The owner's suite of this id or name. Raises NotFound, also for somebody else's."""
    row = session.scalar(select(Suite).where(or_(Suite.id == suite, Suite.name == suite), Suite.owner_id == owner))
    if row is None:
        raise NotFound(f"there is no suite {suite!r}; GET /suites lists yours")
    return row


def _held(session: Session, owner: str, suite: str) -> Suite:
    """As `find`; until the commit nobody else starts a run of it or deletes it."""
    row = find(session, owner, suite)
    if session.scalar(select(Suite.id).where(Suite.id == row.id).with_for_update()) is None:
        raise NotFound(f"suite {suite!r} was deleted")
    return row


def find_run(session: Session, owner: str, suite: str, run_id: str) -> Job:
    """A run of the owner's suite. Raises NotFound."""
    row = find(session, owner, suite)
    run = session.get(Job, run_id)
    if run is None or run.suite_id != row.id or run.id == row.id or run.deleted_at is not None:
        raise NotFound(f"suite {row.name!r} has no run {run_id!r}; GET /suites/{{suite}} lists its runs")
    return run


def listing(session: Session, owner: str, cursor: str | None, limit: int) -> SuitesPage:
    """A page of the owner's suites by name."""
    mine = select(Suite).where(Suite.owner_id == owner)
    rows, following = page_of(session, mine, {Suite.name: str}, cursor, limit)
    return SuitesPage(suites=[_view(row) for row in rows], next=following)


def show(session: Session, owner: str, suite: str) -> SuiteDetail:
    """A suite with its size and its newest runs."""
    row = find(session, owner, suite)
    kept = session.get_one(Job, row.id)
    runs = session.scalars(
        select(Job)
        .where(Job.suite_id == row.id, Job.id != row.id, Job.deleted_at.is_(None))
        .order_by(Job.created_at.desc(), Job.id)
        .limit(RUNS_SHOWN)
    ).all()
    count = select(func.count()).where(Counterfactual.job_id == row.id)
    edits, null_arms = (session.scalar(count.where(Counterfactual.arm == arm)) or 0 for arm in ("edit", "null"))
    return SuiteDetail(
        **_view(row).model_dump(by_alias=True),
        task_description=kept.task_description,
        kind=kept.kind,
        classes=kept.classes,
        methods=[method.name for method in kept.methods],
        sources=session.scalar(select(func.count()).where(SourceImage.job_id == row.id)) or 0,
        counterfactuals=edits,
        null_arms=null_arms,
        runs=[run_view(session, run) for run in runs],
    )


def run_view(session: Session, run: Job) -> RunView:
    """A run as it is shown."""
    return RunView(
        id=run.id,
        model=run.models[0],
        revision=str(run.spec["revision"]),
        state=run.state,
        failure=run.failure,
        progress=progress(session, run),
        created_at=run.created_at,
        finished_at=run.finished_at,
    )


def members(session: Session, owner: str, suite: str) -> list[str]:
    """The ids of the jobs of a suite: its own and those of its runs. Raises NotFound."""
    return _members(session, find(session, owner, suite))


def _members(session: Session, suite: Suite) -> list[str]:
    return list(session.scalars(select(Job.id).where(Job.suite_id == suite.id)))


def remove(session: Session, owner: str, suite: str) -> list[str]:
    """Delete a suite with its runs, running or not; returns object keys of reports, to delete after the commit."""
    row = _held(session, owner, suite)
    ended = _members(session, row)
    for job_id in ended:
        leases.cancel_job(session, job_id)
    keys = session.scalars(select(Report.object_key).where(Report.job_id.in_(ended))).all()
    for job_id in ended:
        mark_deleted(session, job_id)
    session.execute(delete(Suite).where(Suite.id == row.id))
    return list(keys)


def _view(suite: Suite) -> SuiteView:
    return SuiteView(
        id=suite.id,
        name=suite.name,
        made_from=suite.made_from,
        filters=SuiteFilters.model_validate(suite.filters),
        created_at=suite.created_at,
    )


def _job_like(job: Job, job_id: str, suite_id: str, spec: JsonObject, **columns: object) -> dict[str, object]:
    """The row of a job that keeps or tests images of another."""
    names = ("owner_id", "task_description", "kind", "classes", "methods", "profile", "seed")
    copied = {name: getattr(job, name) for name in names}
    return {**copied, "id": job_id, "suite_id": suite_id, "models": [], "spec": spec, **columns}


def _of_masks(job: Job) -> JsonObject:
    """The part of a job's spec that is about masks, for the colours of pictures."""
    return {name: job.spec[name] for name in ("masks", "label_map") if name in job.spec}


@dataclass(frozen=True, slots=True)
class _Copies:
    """Copies rows into the job `job_id`. `first` says which id a row had in the job that rendered the images."""

    job_id: str
    first: Callable[[Any], Any]

    def sources(self, session: Session, which: ColumnElement[bool], **columns: Any) -> None:
        fresh = {"failure": "", "attempts": 0, "lost_leases": 0, "not_before": None, "updated_at": utc_now()}
        own = {"job_id": self.job_id, "lease_token": None, "lease_expires_at": None}
        self._copy(session, SourceImage, SourceImage, which, {**fresh, **own, **columns}, ("id",))

    def counterfactuals(self, session: Session, row: Any, which: ColumnElement[bool], **columns: Any) -> None:
        own = {"job_id": self.job_id, **columns}
        self._copy(session, Counterfactual, row, which, own, ("id", "source_image_id"))

    def _copy(
        self,
        session: Session,
        table: type[Table],
        row: Any,
        which: ColumnElement[bool],
        changed: dict[str, object],
        names: tuple[str, ...],
    ) -> None:
        """`changed` are columns with a value of their own, `names` those that hold ids of copied rows."""
        columns = list(table.__table__.columns)
        prefix = literal(f"{self.job_id[:_PREFIX]}-")
        wanted: list[Any] = []
        for column in columns:
            if column.name in names:
                wanted.append(prefix.concat(self.first(getattr(row, column.name))))
            elif column.name in changed:
                wanted.append(literal(changed[column.name], column.type))
            else:
                wanted.append(getattr(row, column.name))
        session.execute(insert(table).from_select([column.name for column in columns], select(*wanted).where(which)))
