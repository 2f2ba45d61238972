"""The page of one counterfactual: all arms, what models predict, scores, prompts and replies, how to make it again."""

from __future__ import annotations

import io
import shlex
from typing import Annotated

import numpy as np
from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import HTMLResponse
from PIL import Image
from pydantic import TypeAdapter

from gateway.api.dependencies import Gateway, JobId, Owner
from gateway.api.images import IMMUTABLE, ImageDigest
from gateway.context import read_stored
from gateway.database.sessions import reading
from gateway.jobs import jobs
from gateway.operations.data_directory import directory_of
from gateway.results import counterfactuals
from gateway.settings import Settings
from gateway.storage import images
from gateway.web.gallery import SHOWS, Arm, Choice, GalleryState, difference_address, has_masks, picture_address
from gateway.web.rendering import render
from shared.media.images import Pixels, decode
from shared.media.storage import image_key
from shared.schemas.results import CounterfactualDetail

GAIN = 2  # brightness of a difference: 128 grey levels or more are white

router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)


@router.get("/jobs/{job}/pairs/{counterfactual}")
def show_pair(
    job: JobId,
    counterfactual: str,
    gateway: Gateway,
    owner: Owner,
    request: Request,
    state: Annotated[GalleryState, Query()],
) -> HTMLResponse:
    """One counterfactual beside its source and arms, with links to its neighbours under the same filters."""
    with reading(gateway.sessions) as session:
        row = jobs.find(session, owner, job)
        view = counterfactuals.detail(session, owner, job, counterfactual)
        before, after = counterfactuals.neighbours(session, owner, job, state.listing(), counterfactual)
    path = f"/jobs/{job}/pairs/{counterfactual}"
    references = _references(view, state, path)
    return render(
        "pair.html",
        job_id=job,
        job=row,
        view=view,
        limits=_limits(view),
        state=state,
        path=path,
        before=state.address(f"/jobs/{job}/pairs/{before}") if before else None,
        after=state.address(f"/jobs/{job}/pairs/{after}") if after else None,
        back=state.address(f"/jobs/{job}/gallery"),
        show=state.show or "slider",
        shows=[
            Choice(words, None, state.address(path, show=name), name == (state.show or "slider"))
            for name, words in SHOWS.items()
        ],
        references=list(references.values()),
        against=next(arm for arm, choice in references.items() if choice.active),
        picture_of=picture_address(job, state, small=False),
        small_picture_of=picture_address(job, state, small=True),
        has_masks=has_masks([view]),
        difference=difference_address(job),
        origin=str(request.base_url).rstrip("/"),
        replay_command=replay_command(gateway.settings, view.id),
    )


def replay_command(settings: Settings, counterfactual: str) -> str:
    """The command that renders a counterfactual of this system again; an embedded system is named by its directory."""
    directory = directory_of(settings)
    option = [] if directory is None else ["--directory", str(directory)]
    return shlex.join(["contrafact", "replay", *option, counterfactual])


def _references(view: CounterfactualDetail, state: GalleryState, path: str) -> dict[Arm, Choice]:
    """What the counterfactual can be compared with, by arm; the source image first. One is chosen."""
    arms: dict[Arm, tuple[str, str | None]] = {
        "source": ("source", view.source.image),
        "null": ("null arm", view.null_image),
        "sham": ("sham arm", view.sham_image),
    }
    there = {arm: words for arm, (words, image) in arms.items() if image is not None}
    chosen = state.against if state.against in there else "source"
    return {
        arm: Choice(words, None, state.address(path, against=None if arm == "source" else arm), arm == chosen)
        for arm, words in there.items()
    }


def _limits(view: CounterfactualDetail) -> dict[str, float]:
    """By score the threshold of the checks of this edit: the strictest of those of its changes' factors."""
    parameters = view.lineage.get("parameters")
    named = parameters.get("thresholds") if isinstance(parameters, dict) else None
    thresholds = TypeAdapter(dict[str, dict[str, float]]).validate_python(named or {})
    factors = [change.factor for change in view.changes]
    return {
        check: max(by_factor.get(factor, by_factor.get("default", 0.0)) for factor in factors)
        for check, by_factor in thresholds.items()
        if factors
    }


@router.get("/jobs/{job}/differences/{image}/{other}", response_class=Response)
def show_difference(job: JobId, image: ImageDigest, other: ImageDigest, gateway: Gateway, owner: Owner) -> Response:
    """The absolute difference of two images, `GAIN` times as bright, as a grey PNG in the size of the first."""
    with reading(gateway.sessions) as session:
        jobs.find(session, owner, job)
        keys = [image_key(images.find(session, owner, digest).digest) for digest in (image, other)]
    first, second = (decode(read_stored(gateway, key)) for key in keys)
    buffer = io.BytesIO()
    Image.fromarray(difference(first, second)).save(buffer, "PNG", compress_level=1)
    headers = {"Cache-Control": IMMUTABLE, "X-Content-Type-Options": "nosniff"}
    return Response(buffer.getvalue(), media_type="image/png", headers=headers)


def difference(first: Pixels, second: Pixels) -> Pixels:
    """The largest absolute difference of a pixel's channels times `GAIN`, height × width in 0 … 255.

    An image of another size is scaled to that of the first.
    """
    if first.shape != second.shape:
        size = (first.shape[1], first.shape[0])
        second = np.asarray(Image.fromarray(second).resize(size, Image.Resampling.BILINEAR))
    apart = np.abs(first.astype(np.int16) - second.astype(np.int16)).max(axis=2)
    return np.asarray(np.minimum(GAIN * apart, 255), np.uint8)
