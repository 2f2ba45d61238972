"""The map of a job's images: similar ones lie close together, those that changed a prediction are marked."""

from __future__ import annotations

from typing import Annotated, NamedTuple

import numpy as np
from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import HTMLResponse
from sqlalchemy.orm import Session

from gateway.api.dependencies import Gateway, JobId, Owner
from gateway.database.sessions import reading
from gateway.jobs import jobs
from gateway.report.words import change_name
from gateway.results.counterfactuals import Listing
from gateway.results.facets import NOT_COUNTED
from gateway.results.image_map import JobMap, JobMaps, MappedEdit, Of, mapped_edits
from gateway.web.gallery import Choice, GalleryState, JobCounts, facets_of, filter_rows
from gateway.web.rendering import render
from shared.schemas.results import ChangeView

WIDTH, HEIGHT = 1_000, 640  # units of the drawing
MARGIN = 20

router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)


class Point(NamedTuple):
    """A counterfactual on the map: place in the drawing, and whether a model changed its prediction (None: unknown)."""

    id: str
    x: int
    y: int
    words: str
    flipped: bool | None


def _maps(request: Request) -> JobMaps:
    maps: JobMaps = request.app.state.maps
    return maps


@router.get("/jobs/{job}/map")
def show_map(
    job: JobId,
    gateway: Gateway,
    owner: Owner,
    maps: Annotated[JobMaps, Depends(_maps)],
    counts: JobCounts,
    state: Annotated[GalleryState, Query()],
) -> HTMLResponse:
    """The matching counterfactuals with a recorded embedding, as links on a plane. Counts are as in the gallery."""
    path, of = f"/jobs/{job}/map", state.of or "images"
    with reading(gateway.sessions) as session:
        row = jobs.find(session, owner, job)
        facets = facets_of(session, counts, row, state)
    job_map = maps.find(gateway.sessions, gateway.store, job, of)
    with reading(gateway.sessions) as session:
        points = _points(session, job, state.listing(), job_map)
    kinds: dict[Of, str] = {"images": "images", "changes": "changes from the source"}
    return render(
        "map.html",
        job_id=job,
        job=row,
        state=state,
        path=path,
        filter_rows=filter_rows(facets, state, path, has_review_order=False),
        total=None if facets is NOT_COUNTED else facets.total,
        counted=state.address(path, counts="true"),
        points=points,
        job_map=job_map,
        kinds=[Choice(words, None, state.address(path, of=name), name == of) for name, words in kinds.items()],
        pair_address=lambda point: state.address(f"/jobs/{job}/pairs/{point.id}"),
        gallery_address=state.address(f"/jobs/{job}/gallery"),
        size=(WIDTH, HEIGHT),
    )


def _points(session: Session, job_id: str, listing: Listing, job_map: JobMap) -> list[Point]:
    """The points of the matching counterfactuals; those that changed a prediction last, so they lie on top."""
    places = _fitted(job_map)
    points = [
        Point(edit.id, *places[edit.id], _words(edit), edit.flipped)
        for edit in mapped_edits(session, job_id, listing, job_map)
    ]
    return sorted(points, key=lambda point: bool(point.flipped))


def _fitted(job_map: JobMap) -> dict[str, tuple[int, int]]:
    """The places of a map in units of the drawing, as large as fits; both axes keep one scale."""
    if not job_map.places:
        return {}
    places = np.array(list(job_map.places.values()))
    low, high = places.min(axis=0), places.max(axis=0)
    room = np.array([WIDTH - 2 * MARGIN, HEIGHT - 2 * MARGIN])
    scale = float((room / np.maximum(high - low, 1e-9)).min())
    fitted = (places - (low + high) / 2) * (scale, -scale) + (WIDTH / 2, HEIGHT / 2)
    return {id: (round(x), round(y)) for id, (x, y) in zip(job_map.places, fitted.tolist(), strict=True)}


def _words(edit: MappedEdit) -> str:
    changes = "; ".join(change_name(ChangeView.model_validate(change)) for change in edit.changes)
    return f"{changes}, {edit.source_name}"
