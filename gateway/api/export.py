"""`/jobs/{job}/export`: images, labels and provenance as one streamed archive."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Header, Path, Query, Response
from fastapi.responses import StreamingResponse
from pydantic import Field

from gateway.api.dependencies import Gateway, JobId, Owner, problems
from gateway.context import Context
from gateway.database.sessions import reading
from gateway.export.job import Export, open_export, open_suite
from gateway.export.selection import Selection
from gateway.suites import suites
from shared.schemas.exports import FormatName, Release

router = APIRouter(tags=["results"])
TAR = "application/x-tar"


class ExportQuery(Selection):
    """Which images, and as what."""

    format: Annotated[FormatName, Field(description="layout of the archive")] = "folders"


@router.get(
    "/jobs/{job}/export",
    response_class=StreamingResponse,
    responses={
        200: {"content": {TAR: {"schema": {"type": "string", "format": "binary"}}}, "description": "the archive"},
        304: {"description": "not modified"},
        **problems(s404="no such job", s409="the job is running"),
    },
)
def export_job(
    job: JobId,
    gateway: Gateway,
    owner: Owner,
    query: Annotated[ExportQuery, Query()],
    if_none_match: Annotated[str | None, Header()] = None,
) -> Response:
    """Originals, accepted counterfactuals and their null arms with labels, scores and predictions, as a tar.

    Formats: class folders, Hugging Face datasets (parquet), COCO, FiftyOne. `POST /jobs` reads all but parquet again.
    """
    return _reply(gateway, open_export(gateway.sessions, owner, job, query.format, query), if_none_match)


@router.get(
    "/suites/{suite}/export",
    tags=["suites"],
    response_class=StreamingResponse,
    responses={
        200: {"content": {TAR: {"schema": {"type": "string", "format": "binary"}}}, "description": "the archive"},
        304: {"description": "not modified"},
        **problems(s404="no such suite"),
    },
)
def publish_suite(
    suite: Annotated[str, Path(max_length=100, description="a suite's id or name")],
    gateway: Gateway,
    owner: Owner,
    query: Annotated[Release, Query()],
    if_none_match: Annotated[str | None, Header()] = None,
) -> Response:
    """A suite as a data set in the Hub's layout, as a tar: parquet, card with licences and provenance, Croissant."""
    with reading(gateway.sessions) as session:
        export = open_suite(session, suites.find(session, owner, suite), query)
    return _reply(gateway, export, if_none_match)


def _reply(gateway: Context, export: Export, if_none_match: str | None) -> Response:
    headers = {
        "ETag": f'"{export.tag}"',
        "Cache-Control": "private, no-cache",
        "Content-Disposition": f'attachment; filename="{export.file_name}"',
        "X-Content-Type-Options": "nosniff",
    }
    if if_none_match is not None and f'"{export.tag}"' in if_none_match:
        return Response(status_code=304, headers=headers)
    return StreamingResponse(export.chunks(gateway.sessions, gateway.store), media_type=TAR, headers=headers)
