"""The progress of a job, small images, overlays and files of the pages."""

from __future__ import annotations

from fastapi import APIRouter, Response
from fastapi.responses import FileResponse, HTMLResponse

from gateway.api.dependencies import Gateway, JobId, Owner
from gateway.api.images import IMMUTABLE, ONE_HOUR, ImageDigest
from gateway.context import read_stored
from gateway.database.sessions import reading
from gateway.jobs import jobs
from gateway.jobs.pace import pace_of
from gateway.jobs.task_description import rename_masks
from gateway.report.page import ASSETS
from gateway.report.thumbnails import LONGEST_SIDE, paint_png, thumbnail
from gateway.results.class_colours import class_colours
from gateway.results.provenance import packet_of_image
from gateway.storage import images
from gateway.web.rendering import FOLDER, render
from shared.media.storage import image_key
from shared.media.xmp import with_xmp
from shared.problems import InvalidInput, NotFound

_STATIC = {path.name: path for folder in (ASSETS, FOLDER / "static") for path in folder.iterdir()}

router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)


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
