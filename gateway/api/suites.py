"""`/suites`: frozen counterfactuals, and releases tested against them."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, Response

from gateway.api.dependencies import Cursor, Gateway, Limit, Owner, problems
from gateway.database.sessions import reading
from gateway.operations.deletion import remove_rows_briefly
from gateway.repairs import repairs
from gateway.suites import runs, suites
from shared.schemas.suites import (
    MAX_DROP,
    RunRequest,
    RunResults,
    RunView,
    SuiteCounterfactuals,
    SuiteDetail,
    SuiteRequest,
    SuitesPage,
)

router = APIRouter(tags=["suites"])
SuiteId = Annotated[str, Path(max_length=100, description="a suite's id or name")]
RunId = Annotated[str, Path(max_length=64, description="a run's id")]
LOCATION = {"headers": {"Location": {"description": "its path", "schema": {"type": "string"}}}}


@router.post(
    "/suites",
    status_code=201,
    responses={201: LOCATION, **problems(s404="no such job", s409="the job is running, or the name is in use")},
)
def create_suite(request: SuiteRequest, response: Response, gateway: Gateway, owner: Owner) -> SuiteDetail:
    """Freeze the accepted counterfactuals of a job, with originals and null arms. They stay when the job is deleted."""
    with gateway.sessions.begin() as session:
        suite = suites.create(session, owner, request)
    response.headers["Location"] = f"/suites/{suite}"
    with reading(gateway.sessions) as session:
        return suites.show(session, owner, suite)


@router.get("/suites")
def list_suites(gateway: Gateway, owner: Owner, cursor: Cursor = None, limit: Limit = 50) -> SuitesPage:
    """Your suites, by name."""
    with reading(gateway.sessions) as session:
        return suites.listing(session, owner, cursor, limit)


@router.get("/suites/{suite}", responses=problems(s404="no such suite"))
def show_suite(suite: SuiteId, gateway: Gateway, owner: Owner) -> SuiteDetail:
    """A suite: what it keeps, and which releases were tested against it."""
    with reading(gateway.sessions) as session:
        return suites.show(session, owner, suite)


@router.get("/suites/{suite}/counterfactuals", responses=problems(s404="no such suite"))
def list_suite_counterfactuals(
    suite: SuiteId, gateway: Gateway, owner: Owner, cursor: Cursor = None, limit: Limit = 50
) -> SuiteCounterfactuals:
    """The counterfactuals of a suite with their source images and arms, also after the job's deletion."""
    with reading(gateway.sessions) as session:
        return suites.counterfactuals(session, owner, suite, cursor, limit)


@router.delete("/suites/{suite}", status_code=204, responses=problems(s404="no such suite"))
def delete_suite(suite: SuiteId, gateway: Gateway, owner: Owner) -> None:
    """Delete a suite with its runs. Its images are removed later, unless something else uses them."""
    with gateway.sessions.begin() as session:
        ended = repairs.ids_of(session, suites.members(session, owner, suite))
        reports = suites.remove(session, owner, suite)
    repairs.forget_objects(gateway.store, ended)
    remove_rows_briefly(gateway.sessions)
    for key in reports:
        gateway.store.delete(key)


@router.post(
    "/suites/{suite}/runs",
    status_code=202,
    responses={
        202: LOCATION,
        **problems(s404="no such suite", s503="the models under test are not ready yet"),
    },
)
def start_run(suite: SuiteId, request: RunRequest, response: Response, gateway: Gateway, owner: Owner) -> RunView:
    """Test a release: predictions on the suite's images, nothing is rendered. The same weights are not tested twice."""
    run = runs.start(gateway, owner, suite, request.model)
    response.headers["Location"] = f"/suites/{suite}/runs/{run.id}"
    return run


@router.get("/suites/{suite}/runs/{run}", responses=problems(s404="no such suite or run"))
def show_run(suite: SuiteId, run: RunId, gateway: Gateway, owner: Owner) -> RunView:
    """The state of a run. A run is also a job: `/jobs/{run}/events`, `/jobs/{run}/report` etc. take its id."""
    with reading(gateway.sessions) as session:
        return suites.run_view(session, suites.find_run(session, owner, suite, run))


@router.get(
    "/suites/{suite}/runs/{run}/results",
    responses=problems(s404="no such suite or run", s409="the run is not done"),
)
def show_run_results(
    suite: SuiteId,
    run: RunId,
    gateway: Gateway,
    owner: Owner,
    baseline: Annotated[
        str | None, Query(max_length=64, description="a run to compare with; default: the run's own null arms")
    ] = None,
    max_drop: Annotated[float, Query(ge=0, le=100, description="points that a cell may drop")] = MAX_DROP,
) -> RunResults:
    """Accuracy in every cell, against a baseline's on the same images (paired) or against its own null arms."""
    with reading(gateway.sessions) as session:
        return runs.results(session, owner, suite, run, baseline, max_drop)
