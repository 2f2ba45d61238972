"""`/jobs`: create, list, show, cancel, retry, delete."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Header, Query, Request, Response
from starlette.concurrency import run_in_threadpool

from gateway.api.dependencies import Cursor, Gateway, JobId, Limit, Owner, problems
from gateway.api.forms import REQUEST_BODY, read_submission
from gateway.database.sessions import reading
from gateway.jobs import jobs
from gateway.jobs.submit import plan_submission, submit
from gateway.operations.deletion import remove_rows_briefly
from gateway.repairs import repairs
from shared.schemas.jobs import JobDetail, JobsPage
from shared.schemas.plans import JobPlan

router = APIRouter(tags=["jobs"])
Key = Annotated[str | None, Header(min_length=1, max_length=200, description="the same key never creates a second job")]

DryRun = Annotated[bool, Query(description="validate the request and return its plan (200); nothing is stored")]


@router.post(
    "/jobs",
    status_code=202,
    response_model=JobDetail,
    openapi_extra=REQUEST_BODY,
    responses={
        200: {"model": JobPlan, "description": "the plan (dry run)"},
        202: {"headers": {"Location": {"description": "the job's path", "schema": {"type": "string"}}}},
        **problems(
            s400="a file or the form cannot be read",
            s409="the Idempotency-Key was used for another request",
            s413="too many bytes, files or pixels",
            s415="neither a form nor JSON",
            s503="the models under test are not ready yet",
        ),
    },
)
async def create_job(
    request: Request,
    response: Response,
    gateway: Gateway,
    owner: Owner,
    dry_run: DryRun = False,
    idempotency_key: Key = None,
) -> JobDetail | Response:
    """Start a job: images and a task description are enough; everything else has defaults."""
    async with read_submission(request, idempotency_key) as submission:
        if dry_run:
            plan = await run_in_threadpool(plan_submission, gateway, owner, submission)
            return Response(plan.model_dump_json(), media_type="application/json")
        job = await run_in_threadpool(submit, gateway, owner, submission)
    response.headers["Location"] = f"/jobs/{job.id}"
    return job


@router.get("/jobs")
def list_jobs(gateway: Gateway, owner: Owner, cursor: Cursor = None, limit: Limit = 20) -> JobsPage:
    """Your jobs, newest first."""
    with reading(gateway.sessions) as session:
        return jobs.listing(session, owner, cursor, limit)


@router.get("/jobs/{job}", responses=problems(s404="no such job"))
def show_job(job: JobId, gateway: Gateway, owner: Owner) -> JobDetail:
    """A job: its state, its source images by state, and the progress of its edits."""
    with reading(gateway.sessions) as session:
        return jobs.show(session, owner, job)


@router.get("/jobs/{job}/plan", responses=problems(s404="no such job"))
def show_plan(job: JobId, gateway: Gateway, owner: Owner) -> JobPlan:
    """A job's plan: what it runs, and which drops in accuracy its source images can show."""
    with reading(gateway.sessions) as session:
        calibrations = [*gateway.profile.calibration.values()]
        return jobs.plan_of(session, owner, job, gateway.settings.working_side, calibrations)


@router.post("/jobs/{job}/cancel", responses=problems(s404="no such job", s409="the job has ended"))
def cancel_job(job: JobId, gateway: Gateway, owner: Owner) -> JobDetail:
    """Stop a running job. Finished images stay; cancelling twice is fine."""
    with gateway.sessions.begin() as session:
        jobs.cancel(session, owner, job)
    gateway.wake()  # for the report of the finished images
    with reading(gateway.sessions) as session:
        return jobs.show(session, owner, job)


@router.post("/jobs/{job}/retry", responses=problems(s404="no such job", s409="there is nothing to retry"))
def retry_job(job: JobId, gateway: Gateway, owner: Owner) -> JobDetail:
    """Retry the failed and cancelled images of a job. Finished images stay; the report is rebuilt."""
    with gateway.sessions.begin() as session:
        jobs.retry(session, owner, job)
    gateway.wake()
    with reading(gateway.sessions) as session:
        return jobs.show(session, owner, job)


@router.delete("/jobs/{job}", status_code=204, responses=problems(s404="no such job", s502="the object store failed"))
def delete_job(job: JobId, gateway: Gateway, owner: Owner) -> None:
    """Delete a job with its results, report and repairs, running or not. Uploaded images stay yours."""
    with gateway.sessions.begin() as session:
        ended = repairs.ids_of(session, [job])
        report = jobs.remove(session, owner, job)
    repairs.forget_objects(gateway.store, ended)
    remove_rows_briefly(gateway.sessions)
    if report is not None:
        gateway.store.delete(report)
