"""The UNet of the editor that follows instructions: it begins with hardly a change, and is published as one file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from diffusers import UNet2DConditionModel
from safetensors.torch import load_file
from torch import Tensor

from research.networks.instructed_unet import (
    LORA,
    add_lora,
    balance_lora,
    few_step_unet,
    load_editor,
    lora_of_difference,
    rank_of,
    save_editor,
)
from research.system.folders import weights_of

MODERATE = 0.02  # of LoRA weights after some training


@pytest.fixture(scope="module")
def few_step() -> UNet2DConditionModel:
    return few_step_unet(weights_of("objects") / "diffusion")


def output(unet: UNet2DConditionModel, latents: Tensor) -> Tensor:
    text = torch.randn(2, 7, 128, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        predicted: Tensor = unet(latents, torch.tensor([999, 249]), text, return_dict=False)[0]
    return predicted


def trained(rank: int) -> UNet2DConditionModel:
    """An editor with random LoRA weights."""
    torch.manual_seed(3)
    unet = few_step_unet(weights_of("objects") / "diffusion")
    add_lora(unet, rank)
    with torch.no_grad():
        for name, parameter in unet.named_parameters():
            if parameter.requires_grad:
                parameter.add_(MODERATE * torch.randn_like(parameter))
                assert "lora" in name
    return unet.eval()


def latents() -> Tensor:
    return torch.randn(2, 5, 16, 16, generator=torch.Generator().manual_seed(0))


def test_an_untrained_editor_changes_nothing_but_by_the_last_bias(few_step: UNet2DConditionModel) -> None:
    unet = few_step_unet(weights_of("objects") / "diffusion")
    add_lora(unet, 6)
    bias = few_step.conv_out.bias.detach()[None, :, None, None]
    torch.testing.assert_close(output(unet, latents()), bias.expand(2, 5, 16, 16), rtol=1e-3, atol=1e-4)
    assert bias.abs().max() < 0.05, "of latents with a variance of 1"


def test_a_rank_that_cannot_silence_the_last_layer_is_refused(few_step: UNet2DConditionModel) -> None:
    with pytest.raises(ValueError, match="at least 5"):
        add_lora(few_step, 4)


def test_a_saved_editor_paints_as_the_trained_one(few_step: UNet2DConditionModel, tmp_path: Path) -> None:
    unet = trained(rank=5)
    save_editor(unet, tmp_path, {"steps": 1})
    loaded = load_editor(tmp_path, few_step_unet(weights_of("objects") / "diffusion"))
    expected = output(unet, latents())
    error = (output(loaded, latents()) - expected).square().mean()
    change = expected.square().mean()
    assert error < 0.02 * change
    assert json.loads((tmp_path / "config.json").read_text()) == {"steps": 1}


def test_what_is_saved_is_small(tmp_path: Path) -> None:
    save_editor(trained(rank=5), tmp_path, {"steps": 1})
    saved = load_file(tmp_path / LORA)
    assert {value.dtype for name, value in saved.items() if "conv_out" in name} == {torch.float16}
    assert {value.dtype for name, value in saved.items() if "conv_out" not in name} == {torch.float8_e4m3fn}
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 500_000


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


def test_a_difference_of_low_rank_is_kept_by_a_lora() -> None:
    torch.manual_seed(0)
    before = {"x.weight": torch.randn(20, 30), "y.weight": torch.randn(3, 8, 3, 3), "y.bias": torch.randn(3)}
    after = {
        "x.weight": before["x.weight"] + torch.randn(20, 4) @ torch.randn(4, 30),
        "y.weight": torch.randn(3, 8, 3, 3),
        "y.bias": torch.randn(3),
    }
    lora = lora_of_difference(before, after, 5)
    assert {name: tuple(value.shape) for name, value in lora.items()} == {
        "x.lora_A.weight": (5, 30),
        "x.lora_B.weight": (20, 5),
        "y.lora_A.weight": (5, 8, 3, 3),
        "y.lora_B.weight": (3, 5, 1, 1),
    }, "no bias; a layer of three rows has the others' rank"
    for layer in ("x", "y"):
        first, second = (lora[f"{layer}.lora_{part}.weight"].flatten(1) for part in "AB")
        difference = (after[f"{layer}.weight"] - before[f"{layer}.weight"]).flatten(1)
        torch.testing.assert_close(second @ first, difference, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(first.norm(dim=1), second.norm(dim=0), msg="8 bits serve both")
    less = lora_of_difference(before, after, 3)
    assert less["x.lora_A.weight"].equal(lora["x.lora_A.weight"][:3]), "the largest singular values first"


def test_the_rank_is_read_from_the_weights() -> None:
    assert rank_of(trained(rank=7).state_dict()) == 7
