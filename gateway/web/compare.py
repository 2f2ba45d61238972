"""The page that compares two models, methods, jobs or suite runs. Its state is in the address."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import HTMLResponse
from sqlalchemy.orm import Session

from gateway.api.comparisons import Comparisons
from gateway.api.dependencies import Cursor, Gateway, JobId, Owner
from gateway.comparisons.comparisons import JobComparisons
from gateway.comparisons.sides import comparable_jobs, open_differences_sentence
from gateway.database.sessions import reading
from gateway.database.tables import Job
from gateway.jobs import jobs
from gateway.suites import runs
from gateway.suites.suites import release_name
from gateway.web.rendering import address_of, cell_parameters, render
from shared.problems import Conflict, InvalidInput, NotFound, Problem
from shared.schemas.comparisons import ComparisonChoice, JobComparison
from shared.schemas.effects import Cell
from shared.schemas.results import CounterfactualView
from shared.schemas.suites import MAX_DROP, RunResults

OTHER_JOBS = 50
DISAGREEMENTS_PER_PAGE = 8
SHOWN_OF_A_SIDE = 2  # counterfactuals of a source image

router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)


class ComparePage(ComparisonChoice):
    """The choices of the form, the cell whose images are shown, and their page."""

    cursor: Cursor = None


@dataclass(frozen=True, slots=True)
class Option:
    """A job that the form offers."""

    id: str
    name: str


@router.get("/jobs/{job}/compare")
def show_comparison_page(
    job: JobId, gateway: Gateway, owner: Owner, comparisons: Comparisons, page: Annotated[ComparePage, Query()]
) -> HTMLResponse:
    """The form, and the comparison that it names. What cannot be compared has a sentence in its place."""
    path = f"/jobs/{job}/compare"
    with reading(gateway.sessions) as session:
        this = jobs.find(session, owner, job)
        view = _view(session, comparisons, owner, this, page)
        comparison = view.comparison
        return render(
            "compare.html",
            status=view.problem.status if view.problem else 200,
            job_id=job,
            job=this,
            view=view,
            options=[_option(row) for row in comparable_jobs(session, owner, this, OTHER_JOBS)],
            page=view.page,
            path=path,
            comparison=comparison,
            open_differences=open_differences_sentence(comparison.cells) if comparison else "",
            shown_of_a_side=SHOWN_OF_A_SIDE,
            following=address_of(path, view.page, cursor=comparison.next) if comparison and comparison.next else None,
            cell_address=_cell_address(path, view.page),
            chosen=page.cell,
            pair_link=_pair_link(comparison) if comparison else None,
        )


@dataclass(frozen=True, slots=True)
class View:
    """What the page shows: the completed choices, and the comparison, or the reason why there is none.

    `releases`: the accuracies of two runs of one suite. `open_choice`: what to choose before anything is compared.
    """

    page: ComparePage
    other: Job
    comparison: JobComparison | None = None
    releases: RunResults | None = None
    problem: Problem | None = None
    open_choice: str = ""


def _view(session: Session, comparisons: JobComparisons, owner: str, this: Job, page: ComparePage) -> View:
    other = this
    try:
        other = jobs.find(session, owner, page.other_job) if page.other_job else this
        page = complete(page, this, other)
        if open_choice := _open_choice(page, this):
            return View(page, other, open_choice=open_choice)
        comparison = comparisons.compare(session, owner, this.id, page, page.cursor, DISAGREEMENTS_PER_PAGE)
        return View(page, other, comparison, _releases(session, owner, this, other))
    except (InvalidInput, Conflict, NotFound) as refusal:
        return View(page, other, problem=refusal)


def complete(page: ComparePage, this: Job, other: Job) -> ComparePage:
    """The choices with a default for each that is open, and for names that the other job lacks.

    The defaults differ in one thing if they can: the job, else the model, else the method.
    """
    methods, other_methods = [row.name for row in this.methods], [row.name for row in other.methods]
    model, method = page.model or _first(this.models), page.method or _first(methods)
    other_model = page.other_model if page.other_model in other.models else None
    other_method = page.other_method if page.other_method in other_methods else None
    if other.id == this.id and other_model is None and other_method in (None, method):
        other_model = next((name for name in other.models if name != model), None)
        if other_model is None and other_method is None:
            other_method = next((name for name in other_methods if name != method), None)
    return page.model_copy(
        update={
            "model": model,
            "method": method,
            "other_job": None if other.id == this.id else other.id,
            "other_model": other_model or (model if model in other.models else _first(other.models)),
            "other_method": other_method or (method if method in other_methods else _first(other_methods)),
        }
    )


def _open_choice(page: ComparePage, this: Job) -> str:
    """What to choose before anything can be compared; "" if both sides are chosen."""
    if not this.models:
        return "This job has no model under test, so nothing can be compared with it."
    same = (page.model, page.method) == (page.other_model, page.other_method)
    return "Choose another side: another job, model or method." if same and page.other_job is None else ""


def _first(names: Sequence[str]) -> str | None:
    return names[0] if names else None


def _option(job: Job) -> Option:
    if job.suite_id is not None:
        return Option(job.id, release_name(job))
    return Option(job.id, f"{job.task_description}, {job.created_at:%d %b %Y %H:%M} ({job.id[:8]})")


def _releases(session: Session, owner: str, this: Job, other: Job) -> RunResults | None:
    """The accuracies of two runs of one suite on the same images; None of other jobs."""
    if this.suite_id is None or this.suite_id != other.suite_id or this.id == other.id:
        return None
    return runs.results(session, owner, this.suite_id, this.id, other.id, MAX_DROP)


def _cell_address(path: str, page: ComparePage) -> Callable[[Cell | None], str]:
    return lambda cell: address_of(path, page, **cell_parameters(cell)) + "#images"


def _pair_link(comparison: JobComparison) -> Callable[[CounterfactualView], str]:
    """The address of a counterfactual's page, which is in the job of its side."""
    job_of = {view.id: comparison.other.job for row in comparison.disagreements for view in row.other_counterfactuals}
    job_of |= {view.id: comparison.this.job for row in comparison.disagreements for view in row.counterfactuals}
    return lambda view: f"/jobs/{job_of[view.id]}/pairs/{view.id}"
