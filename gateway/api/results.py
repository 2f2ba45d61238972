"""`/jobs/{job}/results` and the report."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import Response
from pydantic import Field

from gateway.api.dependencies import Cursor, Gateway, JobId, Limit, Owner, problems
from gateway.context import read_stored
from gateway.database.sessions import reading
from gateway.database.tables import Report
from gateway.jobs import jobs
from gateway.report.markdown import report_markdown
from gateway.report.page import report_data
from gateway.results import counterfactuals
from gateway.results.counterfactuals import Listing
from gateway.results.failure_points import failure_points_page
from shared.problems import NotFound
from shared.schemas.reports import JobReport, ReportFormat
from shared.schemas.results import CounterfactualDetail, FailurePointsPage, ResultsPage

router = APIRouter(tags=["results"])


class Page(Listing):
    """Filters, order, and which page."""

    cursor: Cursor = None
    limit: Limit = 50
    metrics: Annotated[bool, Field(description="send the metrics too; they are the same on every page")] = True


@router.get("/jobs/{job}/results", responses=problems(s404="no such job"))
def show_results(job: JobId, gateway: Gateway, owner: Owner, page: Annotated[Page, Query()]) -> ResultsPage:
    """The metrics, once the job is done, and a page of counterfactuals, as soon as there are some."""
    with reading(gateway.sessions) as session:
        return counterfactuals.results_page(session, owner, job, page, page.cursor, page.limit, page.metrics)


@router.get("/jobs/{job}/results/{counterfactual}", responses=problems(s404="no such counterfactual"))
def show_counterfactual(job: JobId, counterfactual: str, gateway: Gateway, owner: Owner) -> CounterfactualDetail:
    """One counterfactual with its lineage: the prompts, replies and parameters that made it."""
    with reading(gateway.sessions) as session:
        return counterfactuals.detail(session, owner, job, counterfactual)


@router.get("/jobs/{job}/failure-points", responses=problems(s404="no such job"))
def show_failure_points(
    job: JobId, gateway: Gateway, owner: Owner, cursor: Cursor = None, limit: Limit = 50
) -> FailurePointsPage:
    """The severity at which each image first fails under each corruption: a page of images, empty if none ran."""
    with reading(gateway.sessions) as session:
        return failure_points_page(session, owner, job, cursor, limit)


TEXT = {"schema": {"type": "string"}}
MEDIA_TYPES: dict[ReportFormat, str] = {"html": "text/html", "md": "text/markdown", "json": "application/json"}


@router.get(
    "/jobs/{job}/report",
    response_class=Response,
    responses={
        200: {"model": JobReport, "content": {"text/html": TEXT, "text/markdown": TEXT}},
        **problems(s404="no such job, or it has no report (in this format) yet"),
    },
)
def show_report(
    job: JobId,
    gateway: Gateway,
    owner: Owner,
    report_format: Annotated[ReportFormat, Query(alias="format", description="page, Markdown or data")] = "html",
) -> Response:
    """The report: one self-contained HTML page, its data as JSON, or Markdown for a pull request, without pictures.

    A cancelled job's report covers the images that are done.
    """
    with reading(gateway.sessions) as session:
        row = jobs.find(session, owner, job)
        report = session.get(Report, job)
        if report is None or row.report_due:
            when = "is being written; ask again in a moment" if row.report_due else "is written when it is done"
            raise NotFound(f"the job is {row.state}; its report {when}")
        if report_format == "md":
            markdown = report_markdown(report.results, jobs.describe_test_set(session, job))
            return _reply(job, report_format, markdown.encode())
        key = report.object_key
    page = read_stored(gateway, key)
    return _reply(job, report_format, _data_of(page) if report_format == "json" else page)


def _reply(job: str, report_format: ReportFormat, content: bytes) -> Response:
    headers = {"Content-Disposition": f'inline; filename="contrafact-{job}.{report_format}"'}
    return Response(content, media_type=MEDIA_TYPES[report_format], headers=headers)


def _data_of(page: bytes) -> bytes:
    data = report_data(page.decode())
    if data is None:
        raise NotFound("the report has no data, because an older version wrote it; POST to this path to rebuild it")
    return data
