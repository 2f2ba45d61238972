"""Compositions over HTTP, with the tiny profile's segmenter and with masks."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest
from fastapi import FastAPI

from diffusion_service.app import create_app
from shared.media.images import Pixels, decode, encode
from shared.schemas.base import ImagePayload
from shared.schemas.diffusion import ComposeReply, ComposeRequest, Composition
from shared.service.endpoints import Services
from shared.service.settings import ServiceSettings
from tests.support.serving import call, serving
from tests.support.small_remover import remover_table, write_remover
from tinyworld.objects.demo import demo_scenes
from tinyworld.objects.render import render

BUS, CAR = (render(scene) for scene in demo_scenes(["bus", "car"], 1))


def service(profile: str) -> FastAPI:
    return create_app(ServiceSettings(profile=profile, device="cpu", threads=1))


def payload(pixels: Pixels) -> ImagePayload:
    return ImagePayload(png=encode(pixels))


def request_of(compositions: list[Composition], mask: ImagePayload | None = None) -> ComposeRequest:
    return ComposeRequest(source=payload(BUS.image), mask=mask, compositions=compositions)


@pytest.mark.slow
def test_the_segmenters_object_moves_to_another_background() -> None:
    others = [Composition(), Composition(background=payload(CAR.image)), Composition(scale=0.6)]

    async def scenario() -> ComposeReply:
        async with serving(service("tiny")) as client:
            return await call(client, Services.compose, request_of(others))

    reply = asyncio.run(scenario())
    assert reply.refusals == ["", "", ""]
    mask = decode(reply.mask.png, "L") > 0
    null, moved, small = (decode(image.png).astype(int) for image in reply.images if image)
    source = BUS.image.astype(int)
    assert np.abs(null - source)[mask].mean() < 6, "the null arm shows the source's object"
    assert np.abs(moved - source)[mask].mean() < 6, "so does the counterfactual"
    assert np.abs(moved - source)[~mask].mean() > 20, "on another background"
    assert np.abs(small - source)[mask].mean() > 20


@pytest.mark.slow
def test_masks_need_no_segmenter(folder: Path) -> None:
    mask = np.zeros(BUS.image.shape[:2], np.uint8)
    mask[40:80, 40:80] = 1
    background = Composition(background=payload(CAR.image), background_mask=payload(mask))
    request = request_of([background], payload(mask))
    empty = request_of([background, Composition()], payload(np.zeros_like(mask)))
    refused = {"segmenter": request_of([background]), "size": request_of([background], payload(mask[1:]))}

    async def scenario() -> tuple[ComposeReply, ComposeReply]:
        async with serving(service(str(folder / "blind.toml"))) as client:
            for word, wrong in refused.items():
                answer = await client.post(Services.compose.path, content=wrong.model_dump_json())
                assert (answer.status_code, word in answer.json()["detail"]) == (422, True), answer.text
            return await call(client, Services.compose, request), await call(client, Services.compose, empty)

    reply, without_object = asyncio.run(scenario())
    assert reply.refusals == [""]
    assert np.array_equal(decode(reply.mask.png, "L") > 0, mask > 0)
    assert without_object.images == [None, None]
    assert all("masks" in reason for reason in without_object.refusals)
    assert not decode(without_object.mask.png, "L").any()


@pytest.mark.slow
def test_a_background_remover_finds_the_objects_and_its_doubts_are_refusals(tmp_path: Path) -> None:
    digest = write_remover(tmp_path / "remover" / "model.onnx")
    profile = tmp_path / "photographs.toml"
    head = '[profile]\nname = "own"\ndescription = "own"\nbase = "tiny"\n'
    profile.write_text(head + remover_table('path = "remover"', digest), encoding="utf-8")
    picture, plain = (np.full((96, 160, 3), level, np.uint8) for level in (40, 30))
    picture[30:70, 60:100] = 250
    cleared = Composition(background=payload(plain), clear=True)
    request = ComposeRequest(source=payload(picture), compositions=[Composition(), Composition(scale=0.6), cleared])
    doubtful = ComposeRequest(source=payload(plain), compositions=[Composition()])

    async def scenario() -> tuple[ComposeReply, ComposeReply]:
        async with serving(service(str(profile))) as client:
            return await call(client, Services.compose, request), await call(client, Services.compose, doubtful)

    reply, refused = asyncio.run(scenario())
    null, small = (decode(image.png) for image in reply.images[:2] if image)
    assert [null[50, 80, 0], small[60, 80, 0]] == [250, 250]
    assert [null[5, 5, 0], small[5, 5, 0], small[32, 62, 0]] == [127] * 3, "what the mask misses shows in no arm"
    assert not reply.images[2]
    assert "background" in reply.refusals[2]
    assert refused.images == [None]
    assert "send a mask" in refused.refusals[0]
    assert not decode(refused.mask.png, "L").any()
