"""Requests are split by bytes, and their replies are joined in order."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from fastapi import FastAPI, Request
from hypothesis import example, given
from hypothesis import strategies as st

from embedded.serving import ListeningPort
from gateway.kinds import KINDS
from gateway.model_services.clients import ModelServices, join, parts
from shared.media.images import encode
from shared.schemas.base import MAX_MESSAGE_BYTES, MAX_WORKING_SIDE, ImagePayload
from shared.schemas.evaluation import EmbedReply, EmbedRequest, PredictReply, StructureReply, StructureRequest
from shared.schemas.service import SERVICES
from shared.service.asgi import BoundedRequests
from shared.service.endpoints import Services


@given(sizes=st.lists(st.integers(0, 300), min_size=1, max_size=16), most=st.integers(700, 3_000))
@example(sizes=[0, 7, 13, 13, 25, 64, 73, 0, 163, 0, 10], most=712)  # fits without a byte to spare
def test_every_message_is_small_enough_and_none_is_lost(sizes: list[int], most: int) -> None:
    images = [ImagePayload(png=bytes([number]) * size) for number, size in enumerate(sizes)]
    request = EmbedRequest(images=images, texts=["a photo of a bus"] * 3)
    messages = list(parts(Services.embed, request, most))
    assert all(len(message) <= most for message in messages)
    sent = [EmbedRequest.model_validate_json(message) for message in messages]
    assert [image for part in sent for image in part.images] == images
    assert all(part.texts == request.texts for part in sent)
    if len(request.model_dump_json()) <= most:
        assert len(messages) == 1
    replies = [
        EmbedReply(images=[[float(len(i.png))] for i in part.images], texts=[[1.0]], logit_scale=1) for part in sent
    ]
    whole = join(Services.embed, replies)
    assert whole.images == [[float(size)] for size in sizes]
    assert whole.texts == [[1.0]]


def test_the_places_of_answers_are_joined_with_their_probabilities() -> None:
    """A model that is asked a question has both; of the places of the first part alone, the other images were lost."""
    replies = [
        PredictReply(classes=["bus", "car"], probabilities=[[0.5, 0.5], "refused"], places=[1, None]),
        PredictReply(classes=["bus", "car"], probabilities=[[1.0, 0.0]], places=[0]),
    ]
    whole = join(Services.predict, replies)
    assert (whole.probabilities, whole.places) == ([[0.5, 0.5], "refused", [1.0, 0.0]], [1, None, 0])
    assert [answer.place for answer in KINDS["classification"].answers(whole, whole.classes)] == [1, None, 0]
    without = [reply.model_copy(update={"places": None}) for reply in replies]
    assert join(Services.predict, without).places is None


def noise(side: int, seed: int) -> ImagePayload:
    return ImagePayload(png=encode(np.random.default_rng(seed).integers(0, 256, (side, side, 3), dtype=np.uint8)))


def answered_by(app: FastAPI, call: Callable[[ModelServices], StructureReply]) -> StructureReply:
    port = ListeningPort()
    services = ModelServices(dict.fromkeys(SERVICES, port.base_url), deadline=60, wait=1)
    try:
        port.serve(app)
        return call(services)
    finally:
        services.close()
        port.close()


@pytest.mark.slow
def test_a_source_and_its_renderings_of_any_size_reach_the_service() -> None:
    """Fifteen photographs with their source made a message of more than the service takes, after they were rendered."""
    app, bodies = FastAPI(), []

    @app.post(Services.structure.path)
    async def structure(request: Request) -> dict[str, list[Any]]:
        body = await request.body()
        bodies.append(len(body))
        images = json.loads(body)["images"]
        return {"agreements": [len(image["png"]) / 1e9 for image in images], "moves": [None] * len(images)}

    app.add_middleware(BoundedRequests, max_bytes=MAX_MESSAGE_BYTES)
    images = [noise(side, side) for side in (1400, 300, 1400, 1400, 1400, 200, 1400, 1400)]
    request = StructureRequest(source=noise(1400, 0), images=images)
    reply = answered_by(app, lambda services: services.structure(request))
    assert reply.agreements == [4 * -(-len(image.png) // 3) / 1e9 for image in images]
    assert reply.moves == [None] * len(images)
    assert len(bodies) == 2


@pytest.mark.slow
def test_two_images_of_noise_and_a_mask_fit_into_a_message_at_the_largest_working_side() -> None:
    image = noise(MAX_WORKING_SIDE, 0)
    mask = np.random.default_rng(1).integers(0, 255, (MAX_WORKING_SIDE, MAX_WORKING_SIDE), dtype=np.uint8)
    request = StructureRequest(source=image, images=[image], mask=ImagePayload(png=encode(mask)))
    assert len(request.model_dump_json()) <= MAX_MESSAGE_BYTES
