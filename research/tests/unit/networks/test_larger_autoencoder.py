"""An enlarged autoencoder computes what the saved one does, and its decoder can learn."""

from __future__ import annotations

import pytest
import torch
from diffusers import AutoencoderKL

from research.networks.larger_autoencoder import load
from shared.profiles.weights import REPOSITORY

SHIPPED = REPOSITORY / "tinyworld" / "weights" / "diffusion" / "vae"


@pytest.mark.parametrize(("layers", "groups", "widths"), [(2, None, [32, 64, 96]), (None, 20, [40, 80, 120])])
def test_latents_and_pictures_stay_what_they_were(layers: int | None, groups: int | None, widths: list[int]) -> None:
    torch.manual_seed(0)
    larger, shipped = load(SHIPPED, layers, groups), load(SHIPPED)
    assert larger.config.block_out_channels == widths
    pictures = torch.rand(1, 3, 32, 32) * 2 - 1
    with torch.no_grad():
        latents = shipped.encode(pictures).latent_dist.mean
        torch.testing.assert_close(larger.encode(pictures).latent_dist.mean, latents, rtol=0, atol=1e-5)
        torch.testing.assert_close(larger.decode(latents).sample, shipped.decode(latents).sample, rtol=0, atol=1e-5)


def test_what_is_added_to_the_decoder_has_a_gradient() -> None:
    torch.manual_seed(0)
    small: dict[str, torch.Tensor] = AutoencoderKL.from_pretrained(SHIPPED).state_dict()
    larger = load(SHIPPED, layers=2)
    larger.decode(torch.randn(1, 5, 8, 8)).sample.square().mean().backward()
    added = {n: p for n, p in larger.decoder.named_parameters() if f"decoder.{n}" not in small and "conv2.w" in n}
    assert len(added) == 3
    assert all(p.grad is not None and bool(p.grad.any()) for p in added.values())
