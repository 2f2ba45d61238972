"""The page of models under test: which there are, a form for one's own, and what a model says of a few images."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query
from fastapi.responses import HTMLResponse, JSONResponse
from pydantic import Field

from gateway.api.dependencies import Gateway, Owner
from gateway.context import read_stored
from gateway.database.sessions import reading
from gateway.jobs.model_choice import models_by_name
from gateway.kinds import KINDS
from gateway.models_under_test import models
from gateway.models_under_test.of_job import TestedModel
from gateway.storage import images
from gateway.trial.steps import describe
from gateway.web.rendering import render
from shared.media.storage import image_key, model_key
from shared.problems import NotReady, Problem
from shared.schemas.base import Contract, ImagePayload
from shared.schemas.jobs import Digest
from shared.schemas.models import Preprocessing

MOST_IMAGES = 3
LINK_SECONDS = 600
# How an image becomes the input of an ONNX model, as people often train them; the form lets change each number.
PREPROCESSING = {
    "ImageNet (torchvision)": Preprocessing(
        height=224, width=224, fit="crop", shortest_edge=256, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)
    ),
    "values from 0 to 1": Preprocessing(height=224, width=224),
    "values from −1 to 1": Preprocessing(height=224, width=224, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5)),
    "values from 0 to 255": Preprocessing(height=224, width=224, scale=1.0),
    "letterbox, as YOLO": Preprocessing(height=640, width=640, fit="letterbox"),
}

router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)


class Trial(Contract):
    """A model by its name, and up to three uploaded images."""

    model: Annotated[str, Field(min_length=1, max_length=200)]
    images: Annotated[list[Digest], Field(min_length=1, max_length=MOST_IMAGES)]


class ModelAnswer(Contract):
    """What the model says of an image (canonical digest), or why it says nothing."""

    image: str
    answer: str
    fault: str


@router.get("/own-models")
def show_models(gateway: Gateway, owner: Owner, model: Annotated[str, Query(max_length=200)] = "") -> HTMLResponse:
    """All models under test, and the form. `model`: the one to try, such as one that was just uploaded."""
    try:
        listed, problem = models.listing(gateway, owner).models, ""
    except NotReady as not_ready:
        listed, problem = [], not_ready.detail
    return render(
        "own_models.html",
        models=listed,
        problem=problem,
        tried=next((view for view in listed if view.name == model), None),
        presets={name: preset.model_dump(mode="json", exclude_none=True) for name, preset in PREPROCESSING.items()},
        kinds=list(KINDS),
        most_images=MOST_IMAGES,
    )


@router.post("/own-models/answers", response_class=JSONResponse)
def try_model(trial: Trial, gateway: Gateway, owner: Owner) -> list[ModelAnswer]:
    """What a model says of a few uploaded images, each alone; nothing is stored.

    Raises InvalidInput for an unknown model, NotFound for an unknown image, and NotReady.
    """
    (model,) = models_by_name([trial.model], models.all_models(gateway, owner))
    with reading(gateway.sessions) as session:
        digests = [images.find(session, owner, digest).digest for digest in trial.images]
        keys = {row.name: (row.digest, model_key(row.digest, row.id)) for row in models.uploads_of(session, owner)}
    tested = TestedModel(model.name, *keys.get(model.name, (None, None))) if model.uploaded else TestedModel(model.name)
    endpoint: Any = KINDS[model.kind].endpoint
    answers = []
    for digest in digests:
        payload = ImagePayload(png=read_stored(gateway, image_key(digest)))
        try:
            request = tested.request(endpoint, [payload], lambda key: gateway.store.link(key, LINK_SECONDS))
            answer, fault = describe(gateway.services.call(endpoint, request))
        except Problem as problem:
            answer, fault = "", problem.detail
        answers.append(ModelAnswer(image=digest, answer=answer, fault=fault))
    return answers
