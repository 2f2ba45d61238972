"""Half precision that overflows gives a typed error or null, never a picture."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from diffusion_service.app import create_app
from diffusion_service.attention import install
from diffusion_service.editors.controlnet import ControlNetEditor, Rendered
from diffusion_service.editors.inversion import InversionItem, InversionKey, Inverter
from diffusion_service.stable_diffusion import StableDiffusion
from shared.problems import NotFinite
from shared.schemas.diffusion import Rendering
from shared.service.endpoints import Services
from tests.support.controlnet_items import KEY, item, load_networks
from tests.support.diffusion_requests import photo, request
from tests.support.service_settings import settings
from tests.support.serving import call, serving

UNLUCKY = 13


@pytest.fixture
def unlucky(monkeypatch: pytest.MonkeyPatch) -> None:
    """One seed starts from NaN, as if an earlier layer had overflowed in its row alone."""
    original_noise = StableDiffusion.noise

    def noise(self: StableDiffusion, seed: int, width: int, height: int) -> Tensor:
        return original_noise(self, seed, width, height) * (torch.nan if seed == UNLUCKY else 1.0)

    monkeypatch.setattr(StableDiffusion, "noise", noise)


@pytest.mark.slow
def test_an_autoencoder_that_overflows_in_half_precision_gives_no_picture(folder: Path) -> None:
    networks = load_networks(folder, "bfloat16")
    install(networks.unet)
    networks.vae.to(torch.float16).decoder.conv_out.weight.data.fill_(60_000.0)
    (outcome,) = ControlNetEditor(networks, None).render(KEY, [item()])
    assert isinstance(outcome, NotFinite)
    inverter = Inverter(networks, lambda source, control: None, lambda source: None)
    key = InversionKey(KEY.width, KEY.height, 2, 1.0, None, "none", 1.0)
    (inverted,) = inverter.invert(key, [InversionItem(item().source, "a bus")])
    assert isinstance(inverted, NotFinite)


@pytest.mark.usefixtures("unlucky")
def test_a_row_that_is_not_finite_leaves_its_neighbours_alone(folder: Path) -> None:
    editor = ControlNetEditor(load_networks(folder, "float32"), None)
    good, bad = editor.render(KEY, [item(), item(seed=UNLUCKY)])
    beside, _ = editor.render(KEY, [item(), item(seed=4)])
    assert isinstance(good, Rendered)
    assert isinstance(beside, Rendered)
    assert isinstance(bad, NotFinite)
    assert np.array_equal(good.image, beside.image)


@pytest.mark.usefixtures("unlucky")
def test_an_image_that_is_not_finite_is_null_in_the_reply_and_all_of_them_an_error(folder: Path) -> None:
    async def scenario() -> None:
        async with serving(create_app(settings(folder / "small.toml"))) as client:
            reply = await call(
                client,
                Services.render,
                request(
                    photo(),
                    Rendering(prompt="A red car.", seed=1),
                    Rendering(prompt="A red car.", seed=UNLUCKY, region="structure"),
                ),
            )
            assert [image is None for image in reply.images] == [False, True]
            assert set(reply.controls) == {"full"}
            unlucky = request(photo(), Rendering(prompt="A red car.", seed=UNLUCKY))
            refusal = await client.post("/v1/renderings", content=unlucky.model_dump_json())
            assert (refusal.status_code, refusal.json()["type"]) == (500, "urn:contrafact:problem:not-finite")

    asyncio.run(scenario())
