"""diffusion_service over HTTP, on small weights: replies, batching, refusals, info."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import torch
from diffusers import UNet2DConditionModel
from torch.nn.modules.module import register_module_forward_pre_hook

from diffusion_service.app import create_app
from shared.media.images import decode
from shared.schemas.base import ImagePayload
from shared.schemas.diffusion import Rendering
from shared.schemas.service import ServiceInfo
from shared.service.endpoints import Services
from tests.support.diffusion_requests import photo, pixels, request
from tests.support.service_settings import settings
from tests.support.serving import call, serving


def test_a_reply_has_all_that_the_contract_promises(folder: Path) -> None:
    async def scenario() -> None:
        async with serving(create_app(settings(folder / "small.toml"))) as client:
            first_request = request(
                photo(90, 70),
                Rendering(prompt="A red car.", seed=1),
                Rendering(prompt="A red car.", seed=1, region="structure"),
                Rendering(prompt="A red car.", seed=1),
            )
            reply = await call(client, Services.render, first_request)
            assert [pixels(image).shape for image in reply.images] == [(70, 90, 3)] * 3
            assert reply.images[0] == reply.images[2], "the null arm of equal inputs is the same image"
            assert set(reply.controls) == {"full", "structure"}
            assert reply.keep_mask is not None
            assert decode(reply.keep_mask.png, "L").shape == (70, 90)
            assert (reply.evaluations, reply.prompts) == (4, ["A red car."] * 3)

    asyncio.run(scenario())


@pytest.mark.parametrize("size", [(50, 75), (200, 96), (33, 64), (400, 20)])
def test_images_controls_and_masks_have_the_sources_size(folder: Path, size: tuple[int, int]) -> None:
    async def scenario() -> None:
        async with serving(create_app(settings(folder / "small.toml"))) as client:
            reply = await call(
                client, Services.render, request(photo(*size), Rendering(prompt="Snow.", seed=1, region="structure"))
            )
            assert pixels(reply.images[0]).shape == (size[1], size[0], 3)
            assert reply.keep_mask is not None
            for mask in (reply.controls["structure"], reply.keep_mask):
                assert decode(mask.png, "L").shape == (size[1], size[0])

    asyncio.run(scenario())


@pytest.mark.slow
def test_deterministic_replies_do_not_depend_on_the_batch_or_its_order(folder: Path) -> None:
    async def scenario() -> None:
        async with serving(
            create_app(settings(folder / "small.toml", deterministic=True, max_wait_seconds=0.2))
        ) as client:
            first = request(photo(), Rendering(prompt="A red car.", seed=1), Rendering(prompt="Snow.", seed=2))
            others = [request(photo(), Rendering(prompt=f"A bus {n}.", seed=n)) for n in range(3)]
            alone = await call(client, Services.render, first)
            crowd = await asyncio.gather(*(call(client, Services.render, body) for body in [*others, first]))
            assert crowd[-1] == alone
            info = ServiceInfo.model_validate_json((await client.get("/v1/info")).content)
            assert info.deterministic
            assert [item.role for item in info.weights] == ["base", "controlnet-canny", "segmenter"]
            metrics = (await client.get("/metrics")).text
            assert 'contrafact_batch_size_bucket{le="4.0"' in metrics

    asyncio.run(scenario())


def test_requests_that_cannot_be_rendered_are_refused_with_a_reason(folder: Path) -> None:
    async def scenario() -> None:
        async with serving(create_app(settings(folder / "blind.toml"))) as client:
            source = photo()
            full = request(source, Rendering(prompt="A red car.", seed=1))
            keep = request(source, Rendering(prompt="A red car.", seed=1, region="object"))
            broken = full.model_copy(update={"source": ImagePayload(png=b"no image")})
            for refused, status, words in [(keep, 422, "segmenter"), (broken, 400, "not a PNG")]:
                reply = await client.post("/v1/renderings", content=refused.model_dump_json())
                assert reply.status_code == status
                assert words in reply.json()["detail"]
            changes: list[dict[str, object]] = [{"steps": 0}, {"editor": "magic"}, {"renderings": []}, {"unknown": 1}]
            for change in changes:
                reply = await client.post("/v1/renderings", json={**full.model_dump(mode="json"), **change})
                assert reply.status_code == 422
                assert next(iter(change)) in reply.json()["detail"]
            assert (await call(client, Services.render, full)).keep_mask is None

    asyncio.run(scenario())


def test_a_cpu_warms_up_with_one_small_image(folder: Path) -> None:
    """At its native size, Stable Diffusion XL's warm-up takes a CPU a quarter of an hour."""
    rows: list[tuple[int, ...]] = []

    def note(module: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        if isinstance(module, UNet2DConditionModel):
            rows.append(tuple(inputs[0].shape))

    async def scenario() -> None:
        async with serving(create_app(settings(folder / "small.toml", max_batch=4))):
            pass

    handle = register_module_forward_pre_hook(note)
    try:
        asyncio.run(scenario())
    finally:
        handle.remove()
    assert {shape[2:] for shape in rows} == {(4, 4)}, "16 pixels, of the native 64"
    assert max(shape[0] for shape in rows) == 3, "a guided edit and its source"


def test_weights_that_do_not_load_are_named(folder: Path) -> None:
    (folder / "wrong.toml").write_text((folder / "small.toml").read_text().replace('["object"]', '["car"]'))

    async def scenario() -> None:
        with pytest.raises(AssertionError, match="keep_labels"):
            async with serving(create_app(settings(folder / "wrong.toml"))):
                pass

    asyncio.run(scenario())
