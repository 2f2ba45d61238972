"""The editor in one step: source plus the UNet's output, on small random weights, and behind the service."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest
import torch
from diffusers import DDIMScheduler, UNet2DConditionModel

from diffusion_service.app import create_app
from diffusion_service.editors.instruct_pix2pix import InstructItem, InstructKey, fitted
from diffusion_service.editors.one_step import load_one_step
from diffusion_service.instruct import TOO_LONG
from diffusion_service.stable_diffusion import StableDiffusion
from shared.profiles.instruct import OneStep
from shared.schemas.diffusion import InstructedEdit, InstructReply, InstructRequest
from shared.schemas.service import ServiceInfo
from shared.service.endpoints import Services
from shared.service.settings import ServiceSettings
from tests.support.diffusion_requests import photo, pixels
from tests.support.serving import call, serving
from tests.support.small_few_step import ALPHA, RANK, matrices, merged, write_lora

TIME, SIDE = 700, 64
KEY = InstructKey(SIDE, SIDE, 1, 1.0, 1.0)


def settings(folder: Path, file: str, time: int = TIME) -> dict[str, object]:
    lora = {"path": str(folder), "file": file, "licence": "none", "gigabytes": 0.01}
    return {"engine": "one-step", "time": time, "loras": [lora]}


@pytest.fixture(scope="module")
def file(folder: Path) -> str:
    return write_lora(folder / "one-step", matrices(folder / "base"), "diffusers")


def test_the_image_is_the_source_and_what_the_merged_unet_adds(
    folder: Path, networks: StableDiffusion, file: str
) -> None:
    before = {name: value.clone() for name, value in networks.unet.state_dict().items()}
    editor = load_one_step(OneStep.model_validate(settings(folder / "one-step", file)), networks)
    source = fitted(networks, pixels(photo(SIDE, SIDE)))
    (edited,) = editor.edit(KEY, [InstructItem(source, "it rains", 1)])
    unet = UNet2DConditionModel.from_config(networks.unet.config).eval()
    unet.load_state_dict(merged(before, matrices(folder / "base")))
    latents = networks.encode(source.image)
    level = DDIMScheduler.from_config(networks.sampling.config).alphas_cumprod[TIME].sqrt()
    with torch.no_grad():
        states = networks.prompts.encode("it rains").states[None]
        change = unet(level * latents, TIME, states, return_dict=False)[0]
    (expected,) = networks.pictures(latents + change)
    assert isinstance(edited, np.ndarray)
    assert isinstance(expected, np.ndarray)
    assert np.abs(edited.astype(int) - expected.astype(int)).max() <= 1
    assert all(torch.equal(before[name], value) for name, value in networks.unet.state_dict().items()), "a copy"


def test_an_output_of_zero_keeps_the_source(folder: Path, networks: StableDiffusion) -> None:
    layer = networks.unet.conv_out
    assert layer.bias.abs().max() < 0.1, "of random weights; what a LoRA cannot take away"
    latents = layer.weight.shape[0]
    lora = {"conv_out": (-layer.weight.detach() * RANK / ALPHA, torch.eye(latents)[:, :, None, None])}
    silent = write_lora(folder / "silent", lora, "diffusers")
    editor = load_one_step(OneStep.model_validate(settings(folder / "silent", silent)), networks)
    source = fitted(networks, pixels(photo(SIDE, SIDE)))
    (edited,) = editor.edit(KEY, [InstructItem(source, "make it night", 1)])
    (expected,) = networks.pictures(networks.encode(source.image) + layer.bias.detach()[None, :, None, None])
    assert isinstance(edited, np.ndarray)
    assert isinstance(expected, np.ndarray)
    assert np.abs(edited.astype(int) - expected.astype(int)).max() <= 1


def test_a_time_outside_the_schedule_is_refused(folder: Path, networks: StableDiffusion, file: str) -> None:
    with pytest.raises(ValueError, match="from 0 to 999"):
        load_one_step(OneStep.model_validate(settings(folder / "one-step", file, time=1000)), networks)


@pytest.mark.slow
def test_the_service_takes_one_step_without_guidance(folder: Path, file: str) -> None:
    profile = folder / "one-step.toml"
    lora = f'{{ path = "one-step", file = "{file}", licence = "none", gigabytes = 0.01 }}'
    table = f'[diffusion]\ninstruct = {{ engine = "one-step", time = {TIME}, loras = [{lora}] }}\n'
    profile.write_text((folder / "small.toml").read_text().replace("[diffusion]\n", table, 1))
    texts = [("make it night", 1), ("it rains", 1), ("make it night", 2), (("rain " * 60).strip(), 1)]
    edits = [InstructedEdit(instruction=text, seed=seed) for text, seed in texts]
    request = InstructRequest(source=photo(80, 48), edits=edits, steps=1, guidance=1.0)

    async def scenario() -> tuple[InstructReply, InstructReply, ServiceInfo]:
        async with serving(create_app(ServiceSettings(profile=str(profile), device="cpu", threads=1))) as client:
            for wrong in ({"steps": 2}, {"guidance": 2.0}):
                content = request.model_copy(update=wrong).model_dump_json()
                answer = await client.post(Services.instruct.path, content=content)
                assert (answer.status_code, "steps = 1 and guidance = 1" in answer.json()["detail"]) == (422, True)
            info = ServiceInfo.model_validate_json((await client.get("/v1/info")).content)
            alone = request.model_copy(update={"edits": edits[:1]})
            return await call(client, Services.instruct, request), await call(client, Services.instruct, alone), info

    reply, alone, info = asyncio.run(scenario())
    assert reply.refusals == ["", "", "", TOO_LONG]
    night, rain, other_seed = (pixels(image).astype(int) for image in reply.images[:3])
    assert night.shape == (48, 80, 3)
    assert np.abs(night - rain).max() > 0, "the instruction matters"
    assert np.array_equal(night, other_seed), "the seed does not"
    assert np.abs(night - pixels(alone.images[0])).max() <= 1, "nor do the neighbours in a batch"
    assert (reply.evaluations, reply.keep_mask) == (1, None)
    assert {"instruct lora", "instruct settings"} <= {weights.role for weights in info.weights}
