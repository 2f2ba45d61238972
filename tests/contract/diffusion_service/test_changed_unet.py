"""`unet`, `loras` and `scheduler_options` of `[diffusion]` on small networks."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import torch
from diffusers import UNet2DConditionModel

from diffusion_service.app import create_app
from diffusion_service.few_steps import load_few_step
from diffusion_service.loading import load
from diffusion_service.unets import load_unet
from shared.profiles.diffusion import FewStep
from shared.profiles.unets import MergedLora, WholeUNet
from shared.schemas.diffusion import Rendering, RenderReply
from shared.schemas.service import ServiceInfo
from shared.service.endpoints import Services
from tests.support.controlnet_items import weights
from tests.support.diffusion_requests import photo, request
from tests.support.service_settings import settings
from tests.support.serving import call, serving
from tests.support.small_diffusion import write_diffusion
from tests.support.small_few_step import matrices, merged, write_lora, write_unet, write_unet_file
from tests.support.small_profile import write_profile

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of the schedulers


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Base weights, another UNet, and two LoRAs."""
    folder = tmp_path_factory.mktemp("changed")
    torch.set_num_threads(1)
    write_diffusion(folder)
    write_unet(folder / "unet", folder / "base")
    write_lora(folder / "style", matrices(folder / "base", seed=19), "kohya")
    write_lora(folder / "detail", matrices(folder / "base", seed=23), "diffusers")
    return folder


def lora(folder: Path, name: str, file: str, scale: float = 1.0) -> MergedLora:
    """One of the folder's LoRAs."""
    path = folder / name
    return MergedLora(path=path, file=file, scale=scale, licence="none", gigabytes=0.01)


def whole(folder: Path, file: str | None = None) -> WholeUNet:
    """The folder's other UNet."""
    return WholeUNet(path=folder if file else folder / "unet", file=file, licence="none", gigabytes=0.01)


@pytest.mark.parametrize("replaces_unet", [False, True])
def test_loras_are_merged_one_after_the_other_as_by_hand(folder: Path, replaces_unet: bool) -> None:
    replaced = whole(folder) if replaces_unet else None
    loras = [lora(folder, "style", "kohya.safetensors", 0.5), lora(folder, "detail", "diffusers.safetensors")]
    unet = load_unet(weights(folder / "base"), replaced, loras, "cpu")
    start = UNet2DConditionModel.from_pretrained(
        folder / "unet" if replaces_unet else folder / "base" / "unet"
    ).state_dict()
    expected = merged(start, matrices(folder / "base", seed=19), 0.5)
    expected = merged(expected, matrices(folder / "base", seed=23))
    assert unet.state_dict().keys() == expected.keys(), "nothing of the adapters is left"
    for name, value in unet.state_dict().items():
        torch.testing.assert_close(value, expected[name], rtol=1e-5, atol=1e-5)


def test_a_unet_in_one_file_takes_the_bases_configuration(folder: Path) -> None:
    file = write_unet_file(folder / "file", folder / "unet")
    unet = load_unet(weights(folder / "base"), whole(folder / "file", file), [], "cpu")
    expected = UNet2DConditionModel.from_pretrained(folder / "unet").half().float().state_dict()
    assert all(torch.equal(value, expected[name]) for name, value in unet.state_dict().items())


def test_a_unet_of_another_layout_is_refused(folder: Path) -> None:
    config = UNet2DConditionModel.load_config(folder / "base" / "unet")
    narrow = UNet2DConditionModel.from_config({**config, "block_out_channels": (32, 32)})
    narrow.save_pretrained(folder / "narrow" / "unet")
    with pytest.raises(ValueError, match="block_out_channels"):
        load_unet(weights(folder / "base"), whole(folder / "narrow"), [], "cpu")


def test_a_few_step_lora_is_merged_over_the_changed_unet(folder: Path) -> None:
    base, style = weights(folder / "base"), lora(folder, "style", "kohya.safetensors")
    networks = load(
        base, {"canny": weights(folder / "control")}, device="cpu", unet=load_unet(base, None, [style], "cpu")
    )
    used = {"path": folder / "detail", "file": "diffusers.safetensors", "licence": "none", "gigabytes": 0.01}
    few_step = FewStep.model_validate({"steps": 3, "lora": used})
    few = load_few_step(few_step, base, networks, None, [style]).networks.unet.state_dict()
    expected = merged(networks.unet.state_dict(), matrices(folder / "base", seed=23))
    for name, value in few.items():
        torch.testing.assert_close(value, expected[name], rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_the_service_renders_with_what_the_profile_names_and_says_so(folder: Path) -> None:
    plain = write_profile(folder).read_text()
    source = 'licence = "none", gigabytes = 0.01'
    tables = {
        "plain": "",
        "unet": f'unet = {{ path = "unet", {source} }}\n',
        "lora": f'loras = [{{ path = "style", file = "kohya.safetensors", {source} }}]\n',
        "spacing": 'scheduler = "DDIMScheduler"\nscheduler_options = { timestep_spacing = "trailing" }\n',
        "lcm": 'scheduler = "LCMScheduler"\n',
        "tcd": 'scheduler = "TCDScheduler"\nscheduler_options = { eta = 0.2 }\n',
    }
    for name, table in tables.items():
        (folder / f"{name}.toml").write_text(plain.replace("[diffusion]\n", f"[diffusion]\n{table}"))
    body = request(photo(), Rendering(prompt="A red car.", seed=1), steps=4, guidance=1.0)

    async def ask(profile: str) -> tuple[ServiceInfo, RenderReply]:
        async with serving(create_app(settings(folder / f"{profile}.toml"))) as client:
            info = ServiceInfo.model_validate_json((await client.get("/v1/info")).content)
            return info, await call(client, Services.render, body)

    replies = {name: asyncio.run(ask(name)) for name in tables}
    assert len({reply.images[0].png for _, reply in replies.values()}) == len(tables)  # type: ignore[union-attr]
    assert len({info.revision for info, _ in replies.values()}) == len(tables)
    assert [item.role for item in replies["unet"][0].weights] == ["base", "unet", "controlnet-canny"]
    assert [item.role for item in replies["tcd"][0].weights][1:3] == ["scheduler", "UNet settings"]


def test_an_option_that_a_scheduler_lacks_is_refused(folder: Path) -> None:
    base = weights(folder / "base")
    with pytest.raises(ValueError, match="has no option spacing"):
        load(base, {}, device="cpu", scheduler_options={"spacing": "trailing"})
