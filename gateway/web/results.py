"""The page of a job's results: findings with their images, then charts whose cells and bars link to their images.

Its state is in the address. A threshold of confidence changes the figures of one model and method without a call of a
model, because predictions are stored with their probabilities.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import HTMLResponse
from pydantic import Field
from sqlalchemy.orm import Session

from gateway.api.dependencies import Gateway, JobId, Owner
from gateway.database.sessions import reading
from gateway.database.tables import Job, Report
from gateway.feedback.notes import finding_id, load_notes, with_notes
from gateway.jobs import jobs
from gateway.report.settling import open_effects, steps_for
from gateway.results.confusion import at_threshold
from gateway.results.counterfactuals import first_views
from gateway.results.filters import Filters
from gateway.results.job_rows import load_rows
from gateway.results.rounds import rounds_of
from gateway.web.addresses import address_of, class_filter, gallery, images_of_cell
from gateway.web.figure_links import matrix_link
from gateway.web.heat_map import heat_maps, shade, side_by_side
from gateway.web.rendering import render
from shared.problems import InvalidInput
from shared.schemas.base import Contract
from shared.schemas.effects import Cell, CellEffect
from shared.schemas.result_rows import CounterfactualView
from shared.schemas.results import JobResults, ModelResults
from shared.verdicts import most_severe

PICTURES_PER_FINDING = 3
FINDINGS_WITH_PICTURES = 12
Name = Annotated[str | None, Field(max_length=200)]

router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)


class ResultsView(Contract):
    """Which figures the page shows. `threshold`: predictions with a lower top probability count as none."""

    model: Name = None
    method: Name = None
    threshold: Annotated[float, Field(ge=0, le=1)] = 0


@dataclass(frozen=True, slots=True)
class Finding:
    """A finding with some of the images whose prediction changed, and what would settle it."""

    id: str
    figures: ModelResults
    effect: CellEffect
    images: list[CounterfactualView]
    steps: list[str]


@router.get("/jobs/{job}/overview")
def show_results_page(
    job: JobId, gateway: Gateway, owner: Owner, view: Annotated[ResultsView, Query()]
) -> HTMLResponse:
    """Findings first, then one model and method: heat map, forest plot, confusion, methods side by side, funnel, cost.

    Raises InvalidInput for a model or method that the job lacks.
    """
    with reading(gateway.sessions) as session:
        row = jobs.find(session, owner, job)
        report = session.get(Report, job)
        results = with_notes(report.results, load_notes(session, job)) if report is not None else None
        figures = None if results is None else _chosen(results, view)
        findings = [] if results is None else _findings(session, job, results)
        shown = figures if figures is None else _at(session, row, figures, view.threshold)
    return render(
        "results.html",
        job_id=job,
        job=row,
        results=results,
        findings=findings,
        view=view,
        figures=shown,
        thresholded=shown is not figures,
        address=partial(address_of, f"/jobs/{job}/overview", view),
        maps=[] if shown is None else heat_maps(shown),
        methods=None if results is None or figures is None else side_by_side(_of_model(results, figures.model)),
        open_effects=[] if figures is None else open_effects(figures),
        shade=shade,
        cell_link=lambda of, cell: images_of_cell(job, of, cell),
        funnel_link=lambda method, **filters: gallery(job, method=method, **filters),
        matrix_link=None if shown is None else matrix_link(job, shown, view.threshold),
        links_are_counted=True,
        pair_link=_pair_link(job),
    )


def _chosen(results: JobResults, view: ResultsView) -> ModelResults | None:
    """The figures of the named model and method; by default of the most severe verdict."""
    figures = results.results
    for name, chosen in (("model", view.model), ("method", view.method)):
        names = dict.fromkeys(getattr(row, name) for row in figures)
        if chosen is not None and chosen not in names:
            raise InvalidInput(f"the job has no {name} {chosen!r}; it has {', '.join(names) or 'none'}")
    fitting = [row for row in figures if view.model in (None, row.model) and view.method in (None, row.method)]
    return most_severe(results, fitting)


def _at(session: Session, job: Job, figures: ModelResults, threshold: float) -> ModelResults:
    """The figures at a threshold of confidence; of segmenters, which have no such probability, as they are."""
    if threshold <= 0 or figures.metric == "iou":
        return figures
    return at_threshold(figures, load_rows(session, job.id), rounds_of(session, job.id), threshold)


def _findings(session: Session, job: str, results: JobResults) -> list[Finding]:
    rows = [(figures, effect) for figures in results.results for effect in figures.findings]
    rows.sort(key=lambda row: row[1].standing != "weakness")
    return [
        Finding(
            finding_id(figures.model, figures.method, effect.cell),
            figures,
            effect,
            _images(session, job, figures, effect.cell) if number < FINDINGS_WITH_PICTURES else [],
            steps_for(job, figures, effect),
        )
        for number, (figures, effect) in enumerate(rows)
    ]


def _images(session: Session, job: str, figures: ModelResults, cell: Cell) -> list[CounterfactualView]:
    """The first images of a cell whose prediction changed."""
    to = cell.direction == "to"
    filters = {
        "model": figures.model,
        "method": figures.method,
        "factor": cell.factor,
        "value": cell.value if to else None,
        "from": None if to else cell.value,
        "verdict": "counted",
        "flipped": True,
        **class_filter(figures, cell.label),
    }
    return first_views(session, job, Filters.model_validate(filters), PICTURES_PER_FINDING)


def _of_model(results: JobResults, model: str) -> Sequence[ModelResults]:
    return [row for row in results.results if row.model == model]


def _pair_link(job: str) -> Callable[[CounterfactualView], str]:
    return lambda view: f"/jobs/{job}/pairs/{view.id}"
