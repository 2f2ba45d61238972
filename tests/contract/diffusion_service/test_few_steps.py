"""Few-step weights on small networks: LoRAs, whole UNets, schedulers, and the renderings that use them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import UNet2DConditionModel
from safetensors.torch import save_file

from diffusion_service.app import create_app
from diffusion_service.control_images import ControlImages
from diffusion_service.editors.controlnet import BatchKey, ControlNetEditor, Rendered
from diffusion_service.few_steps import load_few_step
from diffusion_service.stable_diffusion import StableDiffusion
from shared.profiles.diffusion import FewStep
from shared.profiles.weights import Dtype
from shared.schemas.diffusion import ControlStrength, Rendering, RenderReply
from shared.schemas.service import ServiceInfo
from shared.service.endpoints import Services
from tests.support.control_sources import source
from tests.support.controlnet_items import images, item, load_networks, weights
from tests.support.diffusion_requests import photo, pixels, request
from tests.support.protected_items import HalfSegmenter, Watched
from tests.support.protected_items import item as protected
from tests.support.service_settings import settings
from tests.support.serving import call, serving
from tests.support.small_diffusion import write_diffusion, write_segmenter
from tests.support.small_few_step import matrices, merged, write_lora, write_unet, write_unet_file
from tests.support.small_profile import write_profile

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of the schedulers
STEPS = 3
CONTROLS = (ControlStrength(kind="canny"),)
FEW = BatchKey(64, 64, STEPS, 1.0, CONTROLS)
TRAILING = {"scheduler": "EulerDiscreteScheduler", "scheduler_options": {"timestep_spacing": "trailing"}}
ARRANGEMENTS = [
    TRAILING,
    {"scheduler": "LCMScheduler"},
    {"scheduler": "TCDScheduler"},
    {"scheduler": "TCDScheduler", "scheduler_options": {"eta": 0.0}},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("few-steps")
    write_diffusion(folder)
    write_unet(folder / "unet", folder / "base")
    return folder


@pytest.fixture(scope="module")
def networks(folder: Path) -> StableDiffusion:
    return load_networks(folder)


def few_step(folder: Path, file: str | None = None, **changes: Any) -> FewStep:
    """Of the whole UNet in a folder or, as `unet_file`, in a file; or of the LoRA in `file`."""
    used: dict[str, Any] = {"licence": "none", "gigabytes": 0.01, "dtype": changes.pop("dtype", "float32")}
    scale = changes.pop("scale", 1.0)
    if file is None:
        unet_file = changes.pop("unet_file", None)
        source = {"unet": {"path": folder if unet_file else folder / "unet", "file": unet_file, **used}}
    else:
        source = {"lora": {"path": folder, "file": file, "scale": scale, **used}}
    return FewStep.model_validate({"steps": STEPS, **TRAILING, **source, **changes})


def open_editor(folder: Path, networks: StableDiffusion, chosen: FewStep) -> ControlNetEditor:
    base = weights(folder / "base", chosen.weights.dtype)
    return ControlNetEditor(networks, None, load_few_step(chosen, base, networks))


@pytest.mark.parametrize("scale", [1.0, 0.5])
@pytest.mark.parametrize("layout", ["diffusers", "kohya"])
def test_a_lora_is_merged_as_by_hand(folder: Path, networks: StableDiffusion, layout: str, scale: float) -> None:
    lora = matrices(folder / "base")
    chosen = few_step(folder, write_lora(folder, lora, layout), scale=scale)
    before = {name: value.clone() for name, value in networks.unet.state_dict().items()}
    loaded = load_few_step(chosen, weights(folder / "base"), networks).networks.unet
    expected = merged(before, lora, scale)
    assert set(loaded.state_dict()) == set(expected), "nothing of the adapter is left, so it costs nothing per step"
    for name, value in loaded.state_dict().items():
        torch.testing.assert_close(value, expected[name], rtol=1e-5, atol=1e-6)
    changed = [name for name, value in loaded.state_dict().items() if not torch.equal(value, before[name])]
    assert sorted(changed) == sorted(f"{name}.weight" for name in lora)
    assert all(torch.equal(value, before[name]) for name, value in networks.unet.state_dict().items())
    assert not any(value.requires_grad for value in loaded.parameters())


def test_a_lora_may_count_blocks_as_the_original_code_does(folder: Path, networks: StableDiffusion) -> None:
    """`input_blocks_1_1` is `down_blocks.0.attentions.0` of a UNet with one layer per block."""
    attention = "down_blocks.0.attentions.0"
    lora = {name: pair for name, pair in matrices(folder / "base").items() if name.startswith(attention)}
    original = {name.replace(attention, "input_blocks.1.1"): pair for name, pair in lora.items()}
    chosen = few_step(folder / "sgm", write_lora(folder / "sgm", original, "kohya"))
    loaded = load_few_step(chosen, weights(folder / "base"), networks).networks.unet.state_dict()
    for name, value in merged(networks.unet.state_dict(), lora).items():
        torch.testing.assert_close(loaded[name], value, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(("xl", "dtype"), [(False, "float32"), (True, "float32"), (True, "bfloat16")])
def test_a_lora_renders_what_its_merged_unet_renders(tmp_path: Path, xl: bool, dtype: Dtype) -> None:
    write_diffusion(tmp_path, xl=xl)
    networks, lora = load_networks(tmp_path, dtype), matrices(tmp_path / "base")
    by_hand = UNet2DConditionModel.from_pretrained(tmp_path / "base" / "unet")
    by_hand.load_state_dict(merged(by_hand.state_dict(), lora))
    by_hand.save_pretrained(tmp_path / "unet")
    (expected,) = images(open_editor(tmp_path, networks, few_step(tmp_path, dtype=dtype)).render(FEW, [item()]))
    chosen = few_step(tmp_path, write_lora(tmp_path, lora, "kohya"), dtype=dtype)
    (image,) = images(open_editor(tmp_path, networks, chosen).render(FEW, [item()]))
    (base,) = images(ControlNetEditor(networks, None).render(FEW, [item()]))
    near, far = (np.abs(image.astype(int) - other).mean() for other in (expected, base))
    assert far > 1
    assert near < (0.01 if dtype == "float32" else 0.25) * far, "half precision rounds the merged parameters"


@pytest.mark.slow
@pytest.mark.parametrize(("xl", "dtype"), [(False, "float32"), (True, "bfloat16")])
def test_a_whole_unet_may_be_one_file(tmp_path: Path, xl: bool, dtype: Dtype) -> None:
    """It has no configuration, so the base's applies; its parameters take the base's precision."""
    write_diffusion(tmp_path, xl=xl)
    write_unet(tmp_path / "trained", tmp_path / "base")
    networks, file = load_networks(tmp_path, dtype), write_unet_file(tmp_path, tmp_path / "trained")
    by_hand = UNet2DConditionModel.from_pretrained(tmp_path / "trained").half()
    by_hand.save_pretrained(tmp_path / "unet")
    chosen = few_step(tmp_path, unet_file=file, dtype=dtype)
    unet = load_few_step(chosen, weights(tmp_path / "base", dtype), networks).networks.unet
    for name, value in unet.state_dict().items():
        assert torch.equal(value, by_hand.state_dict()[name].to(networks.dtype)), name
    assert unet.conv_in.weight.is_contiguous(memory_format=torch.channels_last)
    assert not unet.training
    assert not any(value.requires_grad for value in unet.parameters())
    (expected,) = images(open_editor(tmp_path, networks, few_step(tmp_path, dtype=dtype)).render(FEW, [item()]))
    (image,) = images(open_editor(tmp_path, networks, chosen).render(FEW, [item()]))
    assert np.array_equal(image, expected)


def test_a_file_that_is_no_unet_of_the_bases_layout_is_refused(folder: Path, networks: StableDiffusion) -> None:
    base, state = weights(folder / "base"), networks.unet.state_dict()
    first = "conv_in.bias"
    guided = {"time_embedding.cond_proj.weight": torch.zeros(8, 8)}
    for wrong, message in (
        ({name: value for name, value in state.items() if name != first}, "lacks conv_in.bias"),
        (state | guided, "time_embedding.cond_proj.weight"),
        (state | {first: torch.zeros(3)}, r"conv_in.bias is \(3,\), base's \(32,\)"),
    ):
        save_file({name: value.contiguous() for name, value in wrong.items()}, folder / "wrong.safetensors")
        with pytest.raises(ValueError, match=rf"wrong\.safetensors.*{message}"):
            load_few_step(few_step(folder, unet_file="wrong.safetensors"), base, networks)
    lora = write_lora(folder / "adapter", matrices(folder / "base"), "kohya")
    with pytest.raises(ValueError, match=r"`few_step\.lora`"):
        load_few_step(few_step(folder / "adapter", unet_file=lora), base, networks)
    (folder / "cut.safetensors").write_bytes((folder / "wrong.safetensors").read_bytes()[:1000])
    with pytest.raises(ValueError, match=r"cut\.safetensors"):
        load_few_step(few_step(folder, unet_file="cut.safetensors"), base, networks)
    with pytest.raises(OSError, match=r"absent\.safetensors"):
        load_few_step(few_step(folder, unet_file="absent.safetensors"), base, networks)


@pytest.mark.slow
@pytest.mark.parametrize("changes", ARRANGEMENTS)
def test_other_steps_and_guidance_use_the_base(
    folder: Path, networks: StableDiffusion, changes: dict[str, Any]
) -> None:
    plain, both = ControlNetEditor(networks, None), open_editor(folder, networks, few_step(folder, **changes))
    others = [(STEPS + 1, 1.0), (STEPS, 4.0), (1, 2.0)]
    for steps, guidance in others:
        key = BatchKey(64, 64, steps, guidance, CONTROLS)
        (expected,), (image,) = images(plain.render(key, [item()])), images(both.render(key, [item()]))
    assert np.array_equal(image, expected)
    (expected,), (image,) = images(plain.render(FEW, [item()])), images(both.render(FEW, [item()]))
    assert not np.array_equal(image, expected)


@pytest.mark.slow
@pytest.mark.parametrize("changes", ARRANGEMENTS)
def test_an_image_follows_from_its_seed_and_no_neighbour_changes_a_bit(
    folder: Path, networks: StableDiffusion, changes: dict[str, Any]
) -> None:
    editor = open_editor(folder, networks, few_step(folder, **changes))
    torch.manual_seed(1)
    alone = images(editor.render(FEW, [item()] * 4))
    torch.manual_seed(2)
    company = [item("A bus in a city at night.", seed=9), item("Snow.", seed=11), item(), item("Fog.", seed=1)]
    together = images(editor.render(FEW, company))
    assert np.array_equal(together[2], alone[0])
    assert np.array_equal(alone[1], alone[0]), "a null arm is the edit's image where the inputs are equal"
    other = images(editor.render(FEW, [item(seed=4)] * 4))
    assert not np.array_equal(other[0], alone[0])


def test_noise_within_steps_is_drawn_where_the_scheduler_draws_it(folder: Path, networks: StableDiffusion) -> None:
    """TCD without noise of its own is another image than with it; each image has noise of its own."""
    by_eta = {}
    for eta in (0.0, 0.5):
        chosen = few_step(folder, scheduler="TCDScheduler", scheduler_options={"eta": eta})
        by_eta[eta] = images(open_editor(folder, networks, chosen).render(FEW, [item(), item(seed=4)]))
    assert not np.array_equal(by_eta[0.0][0], by_eta[0.5][0])
    sampling = load_few_step(chosen, weights(folder / "base"), networks).networks.sampling
    draws = [torch.randn(8, generator=generator) for generator in sampling.step_arguments([3, 3, 4])["generator"]]
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])
    assert not torch.equal(draws[0], networks.noise(3, 64, 64).flatten()[:8]), "not the noise that it starts from"


@pytest.mark.parametrize("changes", ARRANGEMENTS)
def test_protected_shapes_are_held_in_few_steps_too(
    folder: Path, networks: StableDiffusion, changes: dict[str, Any]
) -> None:
    write_segmenter(folder / "segmenter")
    segmenter = HalfSegmenter(weights(folder / "segmenter"), ["object"], device="cpu")
    few = load_few_step(few_step(folder, **changes), weights(folder / "base"), networks)
    recorded: list[torch.Tensor] = []
    watched: Any = Watched(few.networks, recorded)
    editor = ControlNetEditor(networks, ControlImages(segmenter), replace(few, networks=watched))
    editor.render(FEW, [protected(None), protected("blended"), protected("relit")])
    columns = slice(networks.noise(0, 64, 64).shape[-1] // 2 - 1)  # all but the soft edge
    free, blended, lit = recorded[0][..., columns]
    clean = networks.encode(source().image)[0][..., columns]
    torch.testing.assert_close(blended, clean, atol=1e-5, rtol=0)
    assert not torch.allclose(free, clean, atol=0.1)
    assert not torch.allclose(lit, free, atol=0.1)


def test_evaluations_are_those_of_few_steps(folder: Path, networks: StableDiffusion) -> None:
    (plain,) = open_editor(folder, networks, few_step(folder)).render(FEW, [item()])
    guided = few_step(folder, guidance=1.5)
    key = BatchKey(64, 64, STEPS, 1.5, CONTROLS)
    (twice,) = open_editor(folder, networks, guided).render(key, [item()])
    assert isinstance(plain, Rendered)
    assert isinstance(twice, Rendered)
    assert (plain.evaluations, twice.evaluations) == (STEPS, 2 * STEPS)


@pytest.mark.slow
def test_what_does_not_fit_is_refused_on_loading(folder: Path, networks: StableDiffusion) -> None:
    base, lora = weights(folder / "base"), matrices(folder / "base")
    for changed, message in (
        ({"scheduler": "EulerAncestralDiscreteScheduler"}, "choose one of .*LCMScheduler.*TCDScheduler"),
        ({"scheduler_options": {"spacing": "trailing"}}, "EulerDiscreteScheduler has no option spacing; it has .*"),
        ({"scheduler": "DDIMScheduler", "scheduler_options": {"eta": 1.0}}, "DDIMScheduler has no option eta"),
        ({"scheduler": "LCMScheduler", "scheduler_options": {}, "steps": 60}, "LCMScheduler cannot take 60 steps"),
    ):
        with pytest.raises(ValueError, match=message):
            load_few_step(few_step(folder, **changed), base, networks)
    narrow = UNet2DConditionModel.from_config({**networks.unet.config, "block_out_channels": (32, 32)})
    narrow.save_pretrained(folder / "other" / "unet")
    with pytest.raises(ValueError, match="block_out_channels"):
        load_few_step(few_step(folder / "other"), base, networks)
    foreign = {name.replace("down_blocks.0", "down_blocks.7"): pair for name, pair in lora.items()}
    file = write_lora(folder / "foreign", foreign, "kohya")
    with pytest.raises(ValueError, match=r"unet\.down_blocks\.7"):
        load_few_step(few_step(folder / "foreign", file), base, networks)
    wide = {name: (torch.cat([down] * 2, dim=1), up) for name, (down, up) in lora.items()}
    with pytest.raises(ValueError, match="wide"):
        load_few_step(few_step(folder / "wide", write_lora(folder / "wide", wide, "diffusers")), base, networks)
    state = {"text_encoder.text_model.encoder.layers.0.self_attn.q_proj.lora_A.weight": torch.zeros(2, 32)}
    save_file(state, folder / "words.safetensors")
    with pytest.raises(ValueError, match="text_encoder"):
        load_few_step(few_step(folder, "words.safetensors"), base, networks)
    (folder / "pickled.bin").write_bytes(b"no pickles")
    with pytest.raises(OSError, match=r"absent\.safetensors"):
        load_few_step(few_step(folder, "absent.safetensors"), base, networks)


PROFILE = """[diffusion]
few_step.steps = 2
few_step.scheduler = "LCMScheduler"
"""


@pytest.mark.slow
def test_the_service_renders_with_few_steps_and_reports_it(folder: Path) -> None:
    plain = write_profile(folder).read_text()
    file = write_lora(folder / "lora", matrices(folder / "base"), "kohya")
    lora = f'few_step.lora = {{ path = "lora", file = "{file}", licence = "none", gigabytes = 0.01 }}\n'
    (folder / "blind.toml").write_text(plain)
    (folder / "few.toml").write_text(plain.replace("[diffusion]\n", PROFILE + lora))
    (folder / "tcd.toml").write_text((folder / "few.toml").read_text().replace("LCM", "TCD"))
    picture = photo()
    rendering = Rendering(prompt="A red car.", seed=1)
    few = request(picture, rendering, rendering, guidance=1.0)
    many = request(picture, rendering, steps=4, guidance=3.0)

    async def ask(profile: str) -> tuple[ServiceInfo, RenderReply, RenderReply]:
        async with serving(create_app(settings(folder / f"{profile}.toml"))) as client:
            info = ServiceInfo.model_validate_json((await client.get("/v1/info")).content)
            return info, await call(client, Services.render, few), await call(client, Services.render, many)

    without, base, expected = asyncio.run(ask("blind"))
    info, image, same = asyncio.run(ask("few"))
    other, third, _ = asyncio.run(ask("tcd"))
    assert same == expected
    assert image.evaluations == base.evaluations == 2
    assert image.images[0] == image.images[1]
    assert len({pixels(reply.images[0]).tobytes() for reply in (image, base, third)}) == 3
    assert [part.role for part in info.weights] == [
        "base",
        "controlnet-canny",
        "few-step lora",
        "few-step settings",
    ]
    assert len({without.revision, info.revision, other.revision}) == 3
