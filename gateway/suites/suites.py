"""Frozen suites: the counterfactuals of a job that count, kept for good, against which releases are tested.

A suite is a hidden job with the suite's id. It holds copies of the selected rows without predictions, so its images and
masks stay when the job that rendered them is deleted. A run is a job too: a copy of the suite's rows, pending for one
model under test. Workers predict them like any images that have their counterfactuals already. `copies` makes the
copies. The functions take a session and never commit.

Copies of a job's rows, for suites and their runs. The database makes them, in one statement per table.

Comparisons of releases as sentences.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple, TypedDict

from sqlalchemy import ColumnElement, Select, and_, delete, exists, func, insert, literal, or_, select
from sqlalchemy.orm import Session, aliased

from gateway.analysis.releases import ORIGINALS
from gateway.database.columns import ID_PREFIX, JobColumns, SourceImageState
from gateway.database.counts import count_rows
from gateway.database.events import add_event
from gateway.database.pagination import page_of
from gateway.database.sessions import ColumnValues, insert_missing
from gateway.database.table_base import utc_now
from gateway.database.tables import Counterfactual, Job, Report, SourceImage, Suite, Table
from gateway.jobs import jobs
from gateway.jobs.jobs import progress
from gateway.jobs.model_choice import refuse_unknown_truths
from gateway.operations.deletion import mark_deleted
from gateway.queue import job_states
from gateway.results.counterfactuals import ORDER, matching
from gateway.results.filters import Filters, conditions
from gateway.results.pairing import is_arm_of
from gateway.results.views import counterfactual_views
from shared.problems import Conflict, InvalidInput, NotFound
from shared.schemas.base import JsonObject
from shared.schemas.effects import Metric
from shared.schemas.evaluation import ModelUnderTestInfo
from shared.schemas.jobs import Purpose
from shared.schemas.suites import (
    CellComparison,
    RunView,
    SuiteCounterfactuals,
    SuiteDetail,
    SuiteRequest,
    SuitesPage,
    SuiteView,
)
from shared.seeds import derive_id
from shared.words.wording import SCORE_WORDS, change_in_words, class_in_words, percent, points

REVISION_CHARACTERS = 12
MAX_RUNS = 100


class SuiteRuns(NamedTuple):
    """A suite's name and its newest runs, the newest first."""

    name: str
    runs: Sequence[Job]


def create(session: Session, owner: str, request: SuiteRequest) -> str:
    """Freeze the counterfactuals that count and that the filters let through; returns the suite's id.

    Raises NotFound; Conflict while the job runs, or for a name in use; InvalidInput when there is nothing to freeze.
    """
    job = _job_to_freeze(session, owner, request.job)
    suite_id = uuid.uuid4().hex
    row = {"id": suite_id, "owner_id": owner, "name": request.name, "made_from": job.id, "filters": request.filters}
    insert_missing(session, Suite, [row])
    if session.get(Suite, suite_id) is None:
        raise Conflict(f"you have a suite {request.name!r}; choose another name, or delete that one")
    report = session.get(Report, job.id)
    made: JsonObject = {} if report is None else {"made": report.results.made.model_dump(mode="json", by_alias=True)}
    suite_job = {**copy_job(job, suite_id, "suite", job.id, made), "state": "done", "finished_at": utc_now()}
    insert_missing(session, Job, [suite_job])
    edits = and_(
        Counterfactual.job_id == job.id,
        Counterfactual.arm == "edit",
        Counterfactual.counted,
        Counterfactual.image_digest.is_not(None),
        *conditions(Filters.model_construct(**dict(request.filters))),
    )
    arm = aliased(Counterfactual)
    compared = exists().where(edits, is_arm_of(arm, Counterfactual))
    copies = RowCopies(suite_id, lambda row: row)
    used = select(Counterfactual.source_image_id).where(edits)
    copies.sources(session, SourceImage.id.in_(used), {"state": "done"})
    copies.counterfactuals(session, Counterfactual, edits)
    copies.counterfactuals(session, arm, and_(arm.job_id == job.id, compared))
    if session.scalar(select(func.count()).where(SourceImage.job_id == suite_id)) == 0:
        raise InvalidInput(
            "no counterfactual of the job matches the filters and counts (accepted, and its null or sham arm too); "
            "there is nothing to freeze"
        )
    return suite_id


def _job_to_freeze(session: Session, owner: str, job_id: str) -> Job:
    """The owner's ended job, locked. Raises NotFound, Conflict and InvalidInput."""
    jobs.find(session, owner, job_id)
    locked = select(Job).where(Job.id == job_id).with_for_update().execution_options(populate_existing=True)
    job = session.scalar(locked)  # the lock prevents a deletion or retry between the copies
    if job is None or job.deleted_at is not None:
        raise NotFound(f"there is no job {job_id!r}; GET /jobs lists yours")
    if job.state == "running":
        raise Conflict("the job is running; freeze a suite when it is done, or cancel it first")
    if job.suite_id is not None:
        raise InvalidInput(f"job {job.id} is a run of a suite; make a suite of the job that rendered the images")
    return job


def start_run(session: Session, owner: str, suite: str, model: ModelUnderTestInfo) -> str:
    """Test a release, a model with its current weights, against a suite; returns the run's id.

    A release is not tested twice: its failed and cancelled images are retried. Raises NotFound, and InvalidInput if the
    model does not know the suite's classes.
    """
    row = _lock(session, owner, suite)
    suite_job = session.get_one(Job, row.id)
    if model.kind != suite_job.kind:
        raise InvalidInput(
            f"the model under test {model.name!r} is for {model.kind}, and the suite for {suite_job.kind}"
        )
    truths = select(SourceImage.ground_truth, SourceImage.mask_classes).where(SourceImage.job_id == row.id)
    labels = {name for label, mask in session.execute(truths) for name in [label, *(mask or ())] if name is not None}
    refuse_unknown_truths(labels, [model], "Test a model of the same classes")
    run_id = derive_id("suite run", row.id, model.name, model.revision)
    run_job = copy_job(suite_job, run_id, "run", row.id, {"revision": model.revision})
    run_job |= {"models": [model.name], "uploaded_models": jobs.digests_of([model])}
    insert_missing(session, Job, [run_job])
    run = session.get_one(Job, run_id)
    if run.deleted_at is not None:
        raise Conflict("the run of this release is being deleted; try again in some minutes")
    if run.events > 0:
        if run.state != "running":
            job_states.retry_job(session, run_id)
        return run_id
    copies = RowCopies(run_id, lambda row: func.substr(row, ID_PREFIX + 2))
    copies.sources(session, SourceImage.job_id == row.id, {"state": "pending", "generated": True})
    copies.counterfactuals(session, Counterfactual, Counterfactual.job_id == row.id, {"lineage": {}})
    counts = count_rows(session, run_id)
    add_event(session, run_id, "job", {"state": "running", "images": counts["images"]}, counts)
    return run_id


def find(session: Session, owner: str, suite: str) -> Suite:
    """The owner's suite of this id or name. Raises NotFound, also for another owner's."""
    row = session.scalar(select(Suite).where(or_(Suite.id == suite, Suite.name == suite), Suite.owner_id == owner))
    if row is None:
        raise NotFound(f"there is no suite {suite!r}; GET /suites lists yours")
    return row


def _lock(session: Session, owner: str, suite: str) -> Suite:
    """As `find`, with a lock: no other transaction starts a run of the suite or deletes it before the commit."""
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
    suite_job = session.get_one(Job, row.id)
    runs = session.scalars(_runs(row).limit(MAX_RUNS)).all()
    count = select(func.count()).where(Counterfactual.job_id == row.id)
    edits, null_arms = (session.scalar(count.where(Counterfactual.arm == arm)) or 0 for arm in ("edit", "null"))
    return SuiteDetail(
        **_view(row).model_dump(by_alias=True),
        task_description=suite_job.task_description,
        kind=suite_job.kind,
        classes=suite_job.classes,
        methods=[method.name for method in suite_job.methods],
        sources=session.scalar(select(func.count()).where(SourceImage.job_id == row.id)) or 0,
        counterfactuals=edits,
        null_arms=null_arms,
        runs=[run_view(session, run) for run in runs],
    )


def newest_runs(session: Session, owner: str, suites: int, runs: int) -> list[SuiteRuns]:
    """The owner's newest suites with their newest runs, at most so many of each."""
    newest = select(Suite).where(Suite.owner_id == owner).order_by(Suite.created_at.desc(), Suite.id).limit(suites)
    rows = session.scalars(newest).all()
    return [SuiteRuns(row.name, session.scalars(_runs(row).limit(runs)).all()) for row in rows]


def _runs(suite: Suite) -> Select[Job]:
    runs = select(Job).where(Job.parent_id == suite.id, Job.purpose == "run", Job.deleted_at.is_(None))
    return runs.order_by(Job.created_at.desc(), Job.id)


def counterfactuals(session: Session, owner: str, suite: str, cursor: str | None, limit: int) -> SuiteCounterfactuals:
    """A page of the suite's own copies. Raises NotFound, and InvalidInput for a cursor of another list."""
    copies = matching(find(session, owner, suite).id, Filters())
    rows, following = page_of(session, copies, ORDER, cursor, limit)
    return SuiteCounterfactuals(counterfactuals=counterfactual_views(session, rows), next=following)


def run_view(session: Session, run: Job) -> RunView:
    """A run as replies have it."""
    return RunView(
        id=run.id,
        model=run.models[0],
        revision=run.stored_spec.revision,
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
    runs = and_(Job.parent_id == suite.id, Job.purpose == "run")
    return list(session.scalars(select(Job.id).where(or_(Job.id == suite.id, runs))))


def remove(session: Session, owner: str, suite: str) -> list[str]:
    """Delete a suite with its runs, running or not; returns object keys of reports, to delete after the commit."""
    row = _lock(session, owner, suite)
    ended = _members(session, row)
    for job_id in ended:
        job_states.cancel_job(session, job_id)
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
        filters=suite.filters,
        created_at=suite.created_at,
    )


def copy_job(job: Job, job_id: str, purpose: Purpose, parent: str, spec: JsonObject) -> JobColumns:
    """The row of a suite's job or of a run, from that of the job with the images; without models under test."""
    return {
        "id": job_id,
        "owner_id": job.owner_id,
        "task_description": job.task_description,
        "kind": job.kind,
        "classes": job.classes,
        "methods": job.methods,
        "models": [],
        "uploaded_models": {},
        "profile": job.profile,
        "seed": job.seed,
        "spec": {"task_description": job.task_description, **spec, **_kept_spec(job)},
        "purpose": purpose,
        "parent_id": parent,
    }


def _kept_spec(job: Job) -> JsonObject:
    """The fields of a job's spec about masks, boxes and questions, and the warning of its report."""
    kept = ("masks", "boxes", "questions", "label_map", "outside_domain_note")
    return {name: job.spec[name] for name in kept if name in job.spec}


class _CopiedSource(TypedDict, total=False):
    """Columns of a copied source image that differ from the original's."""

    state: SourceImageState
    generated: bool
    failure: str
    attempts: int
    lost_leases: int
    not_before: None
    lease_token: None
    lease_expires_at: None
    updated_at: datetime


class _CopiedCounterfactual(TypedDict, total=False):
    """Columns of a copied counterfactual that differ from the original's."""

    lineage: JsonObject


@dataclass(frozen=True, slots=True)
class RowCopies:
    """Copies rows into the job `job_id`. `first_id` is the id of a row in the job that rendered the images."""

    job_id: str
    first_id: Callable[[Any], Any]

    def sources(self, session: Session, condition: ColumnElement[bool], changes: _CopiedSource) -> None:
        fresh: _CopiedSource = {"failure": "", "attempts": 0, "lost_leases": 0, "not_before": None}
        unleased: _CopiedSource = {"lease_token": None, "lease_expires_at": None, "updated_at": utc_now()}
        values = {"job_id": self.job_id, **fresh, **unleased, **changes}
        self._copy(session, SourceImage, SourceImage, condition, values, ("id",))

    def counterfactuals(
        self, session: Session, row: Any, condition: ColumnElement[bool], changes: _CopiedCounterfactual | None = None
    ) -> None:
        values = {"job_id": self.job_id, **(changes or {})}
        self._copy(session, Counterfactual, row, condition, values, ("id", "source_image_id"))

    def _copy(
        self,
        session: Session,
        table: type[Table],
        row: Any,
        condition: ColumnElement[bool],
        values: ColumnValues,
        id_columns: tuple[str, ...],
    ) -> None:
        """Copy the rows with other `values`; `id_columns` hold ids of copied rows, which get the prefix of the job."""
        columns = list(table.__table__.columns)
        prefix = literal(f"{self.job_id[:ID_PREFIX]}-")
        copied: list[Any] = []
        for column in columns:
            if column.name in id_columns:
                copied.append(prefix.concat(self.first_id(getattr(row, column.name))))
            elif column.name in values:
                copied.append(literal(values[column.name], column.type))
            else:
                copied.append(getattr(row, column.name))
        session.execute(
            insert(table).from_select([column.name for column in columns], select(*copied).where(condition))
        )


def release_name(run: Job) -> str:
    """The release that a run tests: its model and the beginning of its revision."""
    return f"{', '.join(run.models)} {run.stored_spec.revision[:REVISION_CHARACTERS]}"


def comparison_sentence(comparison: CellComparison, metric: Metric) -> str:
    """A comparison: "`bus` at night (dillema): 41 % right against 83 %, −42 points, …"."""
    cell = comparison.cell
    if comparison.method == ORIGINALS:
        images = "originals"
    elif cell is None:
        images = f"all counterfactuals ({comparison.method})"
    else:
        images = f"{class_in_words(cell, '`')} {change_in_words(cell)} ({comparison.method})"
    score = SCORE_WORDS[metric].share
    sentence = f"{images}: {percent(comparison.accuracy.value)} {score} against {percent(comparison.against.value)}"
    sentence += f", {points(comparison.difference)} points"
    interval = comparison.selected_interval or comparison.interval
    if interval is not None:
        sentence += f", 95 % interval {points(interval.low)} to {points(interval.high)}"
    sentence += f", {comparison.sources} source images"
    if not comparison.accuracy.value and not comparison.against.value:
        sentence += "; neither is ever right there, so nothing could drop"
    return sentence
