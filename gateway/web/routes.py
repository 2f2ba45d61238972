"""The pages of a job and of its pairs. Filters are query parameters, so that a view can be shared as a link."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from fastapi import APIRouter, Query, Response
from fastapi.responses import FileResponse, HTMLResponse

from gateway.api.dependencies import Cursor, Gateway, JobId, Owner
from gateway.api.images import IMMUTABLE, ONE_HOUR, ImageDigest
from gateway.context import read_stored
from gateway.database.sessions import reading
from gateway.jobs import jobs
from gateway.jobs.pace import pace_of
from gateway.jobs.task_description import rename_masks
from gateway.report.page import ASSETS
from gateway.report.thumbnails import LONGEST_SIDE, paint_png, thumbnail
from gateway.results import counterfactuals
from gateway.results.class_colours import class_colours
from gateway.results.counterfactuals import Listing
from gateway.results.provenance import packet_of_image
from gateway.storage import images
from gateway.web.rendering import FOLDER, Value, address_of, cell_parameters, parameters_of, render
from shared.media.storage import image_key
from shared.media.xmp import with_xmp
from shared.problems import InvalidInput, NotFound
from shared.schemas.effects import Cell
from shared.schemas.masks import ALL_CLASSES
from shared.schemas.results import CounterfactualView, JobResults, ModelResults

PAIRS_PER_PAGE = 24
_STATIC = {path.name: path for folder in (ASSETS, FOLDER / "static") for path in folder.iterdir()}

router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)


class Gallery(Listing):
    """The filters of a page of pairs."""

    cursor: Cursor = None

    def current(self) -> dict[str, Value]:
        """The filters as query parameters."""
        return parameters_of(self)

    def address(self, path: str, **changes: Value | None) -> str:
        """`path` with these filters and `changes` to them; None removes a filter. Starts at the first page."""
        return address_of(path, self, **changes)

    def has(self, **filters: str) -> bool:
        """Whether all these filters are set."""
        return filters.items() <= self.current().items()


@router.get("/jobs/{job}/view")
def show_job(job: JobId, gateway: Gateway, owner: Owner, gallery: Annotated[Gallery, Query()]) -> HTMLResponse:
    """One job: its progress while it runs, then findings, effects and a filtered gallery."""
    with reading(gateway.sessions) as session:
        detail = jobs.show(session, owner, job)
        page = counterfactuals.results_page(session, owner, job, gallery, gallery.cursor, PAIRS_PER_PAGE)
        pace = pace_of(session, detail)
        test_set = jobs.describe_test_set(session, job)
    path = f"/jobs/{job}/view"
    return render(
        "job.html",
        job_id=job,
        job=detail,
        pace=pace,
        test_set=test_set,
        results=page.metrics,
        pairs_shown=page.counterfactuals,
        next=gallery.address(path, cursor=page.next) if page.next else None,
        gallery=gallery,
        path=path,
        facets=_facets(page.metrics),
        cell_link=_cell_link(gallery, path),
        pair_link=_pair_link(gallery, job),
    )


@router.get("/jobs/{job}/progress")
def show_progress(job: JobId, gateway: Gateway, owner: Owner) -> HTMLResponse:
    """The progress of a job as a fragment of HTML. The job's page fetches it at every event."""
    with reading(gateway.sessions) as session:
        detail = jobs.show(session, owner, job)
        return render("_progress.html", job=detail, pace=pace_of(session, detail))


@router.get("/thumbnails/{digest}", response_class=Response)
def show_thumbnail(digest: ImageDigest, gateway: Gateway, owner: Owner) -> Response:
    """An image for the gallery, at most 256 pixels wide and high: smaller images as they are, others as WebP."""
    with reading(gateway.sessions) as session:
        image = images.find(session, owner, digest)
        packet = packet_of_image(session, owner, image.digest)
    png = read_stored(gateway, image_key(image.digest))
    if max(image.width, image.height) > LONGEST_SIDE:
        return _picture(thumbnail(png, packet), "image/webp", ONE_HOUR)
    return _picture(png if packet is None else with_xmp(png, packet), "image/png", ONE_HOUR)


@router.get("/jobs/{job}/overlays/{image}/{label_map}", response_class=Response)
def show_overlay(
    job: JobId, image: ImageDigest, label_map: ImageDigest, gateway: Gateway, owner: Owner, small: bool = False
) -> Response:
    """A label map of a segmentation job painted over its image, in the colours of the job's classes."""
    with reading(gateway.sessions) as session:
        row = jobs.find(session, owner, job)
        keys = [image_key(images.find(session, owner, digest).digest) for digest in (image, label_map)]
        colours = class_colours(row.classes, rename_masks(row))
    try:
        png = paint_png(read_stored(gateway, keys[0]), read_stored(gateway, keys[1]), colours)
    except ValueError as error:
        raise InvalidInput(f"this overlay cannot be drawn: {error}") from error
    return _picture(thumbnail(png), "image/webp") if small else _picture(png, "image/png")


@router.get("/static/{name}", response_class=FileResponse)
def static_file(name: str) -> FileResponse:
    """A style sheet, script or picture of the pages."""
    if name not in _STATIC:
        raise NotFound(f"there is no file {name!r}")
    return FileResponse(_STATIC[name], headers={"Cache-Control": "no-cache"})


def _picture(data: bytes, media_type: str, freshness: str = IMMUTABLE) -> Response:
    headers = {"Cache-Control": freshness, "X-Content-Type-Options": "nosniff"}
    return Response(data, media_type=media_type, headers=headers)


def _facets(results: JobResults | None) -> dict[str, list[str]]:
    """Values that the gallery can be filtered by: classes, and changes as "factor: value"."""
    cells = [effect.cell for figures in results.results for effect in figures.cells] if results else []
    labelled = bool(results and results.results and results.results[0].relation == "labelled")
    return {
        "classes": sorted({cell.label for cell in cells} - {ALL_CLASSES}) if labelled else [],
        "changes": sorted({f"{cell.factor}: {cell.value}" for cell in cells if cell.direction == "to"}),
    }


def _cell_link(gallery: Gallery, path: str) -> Callable[[ModelResults, Cell], str]:
    def link(figures: ModelResults, cell: Cell) -> str:
        filters = cell_parameters(cell) | {"model": figures.model, "method": figures.method}
        if figures.relation != "labelled" or cell.label == ALL_CLASSES:
            filters["class"] = None  # the gallery filters by the ground truth, which these cells have not
        return gallery.address(path, **filters, verdict="accepted") + "#gallery"

    return link


def _pair_link(gallery: Gallery, job: str) -> Callable[[CounterfactualView], str]:
    return lambda view: gallery.address(f"/jobs/{job}/pairs/{view.id}")
