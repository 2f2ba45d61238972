"""The UNet of the editor that follows instructions: it begins as the few-step UNet, and is published as two files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from diffusers import UNet2DConditionModel
from safetensors.torch import load_file
from torch import Tensor

from tinyworld.networks.instructed_unet import (
    CONV_IN,
    LORA,
    add_lora,
    balance_lora,
    editing_unet,
    few_step_unet,
    load_editor,
    rank_of,
    save_editor,
)
from tinyworld.system.folders import weights_of

MODERATE = 0.02  # of LoRA weights after some training


@pytest.fixture(scope="module")
def few_step() -> UNet2DConditionModel:
    return few_step_unet(weights_of("objects") / "diffusion")


def output(unet: UNet2DConditionModel, latents: Tensor) -> Tensor:
    text = torch.randn(2, 7, 128, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        predicted: Tensor = unet(latents, torch.tensor([999, 249]), text, return_dict=False)[0]
    return predicted


def trained(few_step: UNet2DConditionModel, rank: int) -> UNet2DConditionModel:
    """An editor with random LoRA weights and random weights for the source's latents."""
    torch.manual_seed(3)
    unet = editing_unet(few_step)
    add_lora(unet, rank)
    with torch.no_grad():
        for name, parameter in unet.named_parameters():
            if parameter.requires_grad:
                parameter.add_(MODERATE * torch.randn_like(parameter))
                assert "lora" in name or name.startswith("conv_in.")
    return unet.eval()


def test_an_untrained_editor_is_the_few_step_generator_for_any_source(few_step: UNet2DConditionModel) -> None:
    latents = torch.randn(2, 10, 16, 16, generator=torch.Generator().manual_seed(0))
    unet = editing_unet(few_step)
    add_lora(unet, 2)
    torch.testing.assert_close(output(unet, latents), output(few_step, latents[:, :5]), rtol=1e-3, atol=1e-4)


def test_a_saved_editor_paints_as_the_trained_one(few_step: UNet2DConditionModel, tmp_path: Path) -> None:
    unet = trained(few_step, rank=2)
    save_editor(unet, tmp_path, {"steps": 4})
    loaded = load_editor(tmp_path, few_step)
    latents = torch.randn(2, 10, 16, 16, generator=torch.Generator().manual_seed(0))
    expected = output(unet, latents)
    error = (output(loaded, latents) - expected).square().mean()
    change = (output(few_step, latents[:, :5]) - expected).square().mean()
    assert error < 0.02 * change
    assert json.loads((tmp_path / "config.json").read_text()) == {"in_channels": 10, "steps": 4}


def test_what_is_saved_is_small(few_step: UNet2DConditionModel, tmp_path: Path) -> None:
    save_editor(trained(few_step, rank=1), tmp_path, {"steps": 4})
    assert {value.dtype for value in load_file(tmp_path / LORA).values()} == {torch.float8_e4m3fn}
    assert load_file(tmp_path / CONV_IN)["conv_in.weight"].shape == (64, 10, 3, 3)
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 200_000


def test_the_roads_editor_starts_from_their_few_step_lora() -> None:
    folder = weights_of("roads") / "diffusion"
    plain = UNet2DConditionModel.from_pretrained(folder / "unet").float().state_dict()
    merged = few_step_unet(folder).state_dict()
    assert set(merged) == set(plain)
    changed = {name for name, value in merged.items() if not torch.equal(value, plain[name])}
    assert changed
    assert all(name.endswith(".weight") for name in changed)


def test_balancing_keeps_the_product_and_evens_the_factors() -> None:
    torch.manual_seed(0)
    lora = {"x.lora_A.weight": 8 * torch.randn(2, 30), "x.lora_B.weight": 0.002 * torch.randn(20, 2)}
    even = balance_lora(lora)
    first, second = even["x.lora_A.weight"], even["x.lora_B.weight"]
    assert torch.equal(second @ first, lora["x.lora_B.weight"] @ lora["x.lora_A.weight"])
    assert 0.5 <= float(first.std() / second.std()) <= 2


def test_the_rank_is_read_from_the_weights(few_step: UNet2DConditionModel) -> None:
    assert rank_of(trained(few_step, rank=3).state_dict()) == 3
