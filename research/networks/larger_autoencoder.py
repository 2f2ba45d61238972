"""A saved autoencoder, made deeper or wider without a change of what it computes.

diffusers has one width and one depth for both halves of an AutoencoderKL, so whoever wants a larger decoder has to
enlarge the encoder, too: by parts that pass on what they get, or nothing, so that latents stay what they are.
"""

from __future__ import annotations

from pathlib import Path

import torch
from diffusers import AutoencoderKL


def load(folder: Path, layers: int | None = None, groups: int | None = None) -> AutoencoderKL:
    """An autoencoder in float32, with more layers a block or more groups of channels than it was saved with."""
    saved = AutoencoderKL.from_pretrained(folder).float()
    now = saved.config.layers_per_block, saved.config.norm_num_groups
    wanted = layers or now[0], groups or now[1]
    if wanted == now:
        return saved
    widths = [width * wanted[1] // now[1] for width in saved.config.block_out_channels]
    config = {"layers_per_block": wanted[0], "norm_num_groups": wanted[1], "block_out_channels": widths}
    larger = AutoencoderKL.from_config({**saved.config, **config})
    _take_over(larger, saved)
    return larger


@torch.no_grad()
def _take_over(larger: AutoencoderKL, saved: AutoencoderKL) -> None:
    """Give `larger` the weights of `saved`, so that it computes the same.

    Added groups are normalised by themselves. The encoder's are zero; the decoder's begin at random, as does an added
    layer, but what leads from them into the old channels is zero.
    """
    old, done = saved.state_dict(), larger.state_dict()
    for name, value in done.items():
        frozen = not name.startswith(("decoder.", "post_quant_conv."))
        if name not in old:
            if (frozen and value.ndim > 1) or name.endswith(("conv2.weight", "conv2.bias")):
                value.zero_()
            continue
        source = old[name]
        if frozen:
            value.zero_()
        elif value.ndim > 1:
            value[: source.shape[0]] = 0
        value[tuple(slice(size) for size in source.shape)] = source
    larger.load_state_dict(done)
