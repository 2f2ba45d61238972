"""InstructPix2Pix's layout: equal to diffusers' pipeline on small random weights, and behind the service."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from diffusers import DDIMScheduler, StableDiffusionInstructPix2PixPipeline, UNet2DConditionModel
from PIL import Image
from safetensors.torch import load_file, save_file
from transformers import CLIPTokenizer

from diffusion_service.app import create_app
from diffusion_service.editors.instruct_pix2pix import (
    InstructItem,
    InstructKey,
    InstructPix2PixEditor,
    fitted,
    load_pix2pix,
)
from diffusion_service.instruct import TOO_LONG
from diffusion_service.stable_diffusion import StableDiffusion
from shared.media.images import Pixels
from shared.profiles.instruct import InstructPix2Pix
from shared.profiles.unets import WholeUNet
from shared.profiles.weights import Weights
from shared.schemas.base import ImagePayload
from shared.schemas.diffusion import InstructedEdit, InstructReply, InstructRequest
from shared.schemas.service import ServiceInfo
from shared.service.endpoints import Services
from shared.service.settings import ServiceSettings
from tests.support.diffusion_requests import photo, pixels
from tests.support.serving import call, serving
from tests.support.small_diffusion import write_instruct_unet
from tests.support.small_few_step import ALPHA, RANK, Matrices, matrices, merged, write_lora

EDITOR = """[diffusion]
instruct = { engine = "instruct-pix2pix", unet = { path = "instruct", licence = "none", gigabytes = 0.01 } }
"""
STEPS, SIDE = 3, 64


@pytest.fixture(scope="module")
def profile(folder: Path) -> str:
    write_instruct_unet(folder / "instruct")
    path = folder / "instruct.toml"
    path.write_text((folder / "small.toml").read_text().replace("[diffusion]\n", EDITOR, 1))
    return str(path)


def source() -> ImagePayload:
    return photo(SIDE, SIDE)


def by_diffusers(loaded: StableDiffusion, base: Path, image: Pixels, edit: InstructedEdit, guidance: float) -> Pixels:
    pipeline = StableDiffusionInstructPix2PixPipeline(
        vae=loaded.vae,
        text_encoder=loaded.prompts.networks[0],
        tokenizer=CLIPTokenizer.from_pretrained(base / "tokenizer"),
        unet=loaded.unet,
        scheduler=DDIMScheduler.from_config(loaded.sampling.config),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )
    pipeline.set_progress_bar_config(disable=True)
    edited = pipeline(
        edit.instruction,
        Image.fromarray(image),
        num_inference_steps=STEPS,
        guidance_scale=guidance,
        image_guidance_scale=1.4,
        generator=torch.Generator("cpu").manual_seed(edit.seed),
        output_type="np",
    )
    picture: Pixels = np.round(edited.images[0] * 255).astype(np.uint8)
    return picture


@pytest.mark.parametrize("guidance", [6.0, 1.0])
def test_a_batch_has_the_pictures_of_diffusers_pipeline(
    profile: str, folder: Path, networks: StableDiffusion, guidance: float
) -> None:
    unet = WholeUNet(path=folder / "instruct", licence="none", gigabytes=0.01)
    loaded = load_pix2pix(InstructPix2Pix(engine="instruct-pix2pix", unet=unet), networks)
    editor = InstructPix2PixEditor(loaded)
    images = [pixels(source()) for _ in range(2)]
    edits = [InstructedEdit(instruction=text, seed=seed) for text, seed in (("it rains", 4), ("make it night", 5))]
    key = InstructKey(SIDE, SIDE, STEPS, guidance, 1.4)
    items = [
        InstructItem(fitted(editor.networks, image), edit.instruction, edit.seed)
        for image, edit in zip(images, edits, strict=True)
    ]
    for image, edit, edited in zip(images, edits, editor.edit(key, items), strict=True):
        assert isinstance(edited, np.ndarray)
        expected = by_diffusers(loaded, folder / "base", image, edit, guidance)
        assert np.abs(edited.astype(int) - expected.astype(int)).max() <= 1
        assert edited.std() > 1, "a picture, and not one colour"


@pytest.mark.slow
def test_the_service_carries_out_instructions(profile: str) -> None:
    image = photo(80, 48)
    texts = ["make it night", "it rains", "make it night", "rain " * 60]
    edits = [
        InstructedEdit(instruction=text.strip(), seed=seed) for text, seed in zip(texts, (1, 1, 2, 1), strict=True)
    ]
    request = InstructRequest(source=image, edits=edits, steps=STEPS)
    alone = InstructRequest(source=image, edits=edits[:1], steps=STEPS)
    refused = request.model_copy(update={"region": "background"})
    unguided = alone.model_copy(update={"guidance": 1.0})

    async def scenario() -> tuple[InstructReply, InstructReply, InstructReply, ServiceInfo]:
        async with serving(create_app(ServiceSettings(profile=profile, device="cpu", threads=1))) as client:
            answer = await client.post(Services.instruct.path, content=refused.model_dump_json())
            assert (answer.status_code, "background" in answer.json()["detail"]) == (422, True)
            info = ServiceInfo.model_validate_json((await client.get("/v1/info")).content)
            replies = [await call(client, Services.instruct, body) for body in (request, alone, unguided)]
            return replies[0], replies[1], replies[2], info

    reply, first, plain, info = asyncio.run(scenario())
    assert reply.refusals == ["", "", "", TOO_LONG]
    assert reply.images[3] is None
    night, rain, other_seed = (pixels(image).astype(int) for image in reply.images[:3])
    assert night.shape == (48, 80, 3)
    assert np.abs(night - rain).max() > 0, "the instruction matters"
    assert np.abs(night - other_seed).max() > 0, "and so does the seed"
    assert np.abs(night - pixels(first.images[0])).max() <= 1, "but not the neighbours in a batch"
    assert (reply.evaluations, plain.evaluations, reply.keep_mask) == (3 * STEPS, STEPS, None)
    assert {"instruct", "instruct settings"} <= {weights.role for weights in info.weights}


def test_a_profile_without_an_editor_says_so(folder: Path) -> None:
    request = InstructRequest(source=source(), edits=[InstructedEdit(instruction="it rains", seed=1)])

    async def scenario() -> None:
        path = str(folder / "small.toml")
        async with serving(create_app(ServiceSettings(profile=path, device="cpu", threads=1))) as client:
            answer = await client.post(Services.instruct.path, content=request.model_dump_json())
            assert (answer.status_code, "[diffusion.instruct]" in answer.json()["detail"]) == (422, True)

    asyncio.run(scenario())


def test_a_first_layer_and_a_lora_of_8_bits_change_a_copy_of_the_few_step_unet(
    folder: Path, networks: StableDiffusion
) -> None:
    generator = torch.Generator().manual_seed(2)
    shape = networks.unet.conv_in.weight.shape
    layer = {
        "conv_in.weight": torch.randn((shape[0], 8, *shape[2:]), generator=generator).half(),
        "conv_in.bias": torch.randn(shape[0], generator=generator).half(),
    }
    (folder / "editor").mkdir()
    save_file(layer, folder / "editor" / "conv_in.safetensors")
    lora = {
        name: (down.to(torch.float8_e4m3fn).float(), up.to(torch.float8_e4m3fn).float())
        for name, (down, up) in matrices(folder / "base").items()
        if name != "conv_in"
    }
    file = write_lora(folder / "editor", lora, "diffusers")
    state = {name: value.to(torch.float8_e4m3fn) for name, value in load_file(folder / "editor" / file).items()}
    save_file(state, folder / "editor" / file)
    torch.manual_seed(3)
    few_step = replace(networks, unet=UNet2DConditionModel.from_config(networks.unet.config).eval())
    before = {name: value.clone() for name, value in few_step.unet.state_dict().items()}
    where = {"path": folder / "editor", "licence": "none", "gigabytes": 0.01}
    profile = InstructPix2Pix.model_validate(
        {"engine": "instruct-pix2pix", "conv_in": where, "loras": [{**where, "file": file}]}
    )
    changed_unet = load_pix2pix(profile, networks, few_step).unet
    expected = merged(
        {**before, **layer}, {name: (down, up * RANK / ALPHA) for name, (down, up) in read(state).items()}
    )
    for name, value in changed_unet.state_dict().items():
        torch.testing.assert_close(value, expected[name].float(), rtol=1e-4, atol=1e-4)
    assert all(torch.equal(before[name], value) for name, value in few_step.unet.state_dict().items()), "a copy"
    unfit = InstructPix2Pix.model_validate({"engine": "instruct-pix2pix", "conv_in": {**where, "file": file}})
    with pytest.raises(ValueError, match="is not a first layer"):
        load_pix2pix(unfit, networks)


def read(state: dict[str, torch.Tensor]) -> Matrices:
    """The matrices of a LoRA in diffusers' layout, by layer."""
    names = [name.removeprefix("unet.").removesuffix(".lora_A.weight") for name in state if "lora_A" in name]
    return {
        name: (state[f"unet.{name}.lora_A.weight"].float(), state[f"unet.{name}.lora_B.weight"].float())
        for name in names
    }


def test_a_unet_that_sees_no_source_is_refused(folder: Path, networks: StableDiffusion) -> None:
    plain = WholeUNet(path=folder / "base" / "unet", licence="none", gigabytes=0.01)
    with pytest.raises(ValueError, match=r"in_channels is 4, base's 8"):
        load_pix2pix(InstructPix2Pix(engine="instruct-pix2pix", unet=plain), networks)
    whole = Weights(path=folder / "base", licence="none", gigabytes=0.01)
    with pytest.raises(ValueError, match="8 input channels"):
        load_pix2pix(InstructPix2Pix(engine="instruct-pix2pix", weights=whole), networks)
