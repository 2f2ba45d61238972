"""Small few-step weights over those of `small_diffusion.py`: a whole UNet, and LoRAs in the layouts of published files.

A LoRA of random matrices A (rank × in) and B (out × rank) for several kinds of layers; convolutions have the kernel in
A and 1 × 1 in B. What it adds to a layer's parameters is alpha / rank · B A.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from diffusers import UNet2DConditionModel
from safetensors.torch import save_file
from torch import Tensor, nn

RANK, ALPHA = 2, 1.0
# SDXL-Lightning and LCM-LoRA change all of these kinds.
LAYERS = (
    "conv_in",
    "time_embedding.linear_1",
    "down_blocks.0.downsamplers.0.conv",
    "down_blocks.0.resnets.0.conv1",
    "down_blocks.0.resnets.0.time_emb_proj",
    "down_blocks.0.attentions.0.proj_in",
    "down_blocks.0.attentions.0.transformer_blocks.0.attn1.to_q",
    "down_blocks.0.attentions.0.transformer_blocks.0.attn2.to_out.0",
    "down_blocks.0.attentions.0.transformer_blocks.0.ff.net.0.proj",
    "mid_block.resnets.1.conv2",
    "up_blocks.1.attentions.1.transformer_blocks.0.attn2.to_v",
)
Matrices = Mapping[str, tuple[Tensor, Tensor]]


def write_unet(folder: Path, base: Path, seed: int = 17) -> None:
    """Into `folder` a UNet of the base's layout with other parameters."""
    torch.manual_seed(seed)
    UNet2DConditionModel.from_config(UNet2DConditionModel.load_config(base / "unet")).save_pretrained(folder)


def write_unet_file(folder: Path, unet: Path) -> str:
    """Into `folder` one file of a UNet's parameters in float16, as SDXL-Lightning's are published; returns its name."""
    state = UNet2DConditionModel.from_pretrained(unet).state_dict()
    folder.mkdir(parents=True, exist_ok=True)
    save_file({name: value.half().contiguous() for name, value in state.items()}, folder / "unet_4step.safetensors")
    return "unet_4step.safetensors"


def matrices(base: Path, seed: int = 19) -> Matrices:
    """A and B of each of `LAYERS`."""
    generator = torch.Generator().manual_seed(seed)
    unet = UNet2DConditionModel.from_pretrained(base / "unet")
    matrices = {}
    for name in LAYERS:
        layer = unet.get_submodule(name)
        assert isinstance(layer, nn.Linear | nn.Conv2d)
        wide = layer.weight.shape
        narrow = (1,) * (len(wide) - 2)
        down = torch.randn((RANK, *wide[1:]), generator=generator) * 0.3
        matrices[name] = (down, torch.randn((wide[0], RANK, *narrow), generator=generator) * 0.3)
    return matrices


def write_lora(folder: Path, lora: Matrices, layout: str) -> str:
    """Into `folder` a LoRA in `diffusers`' layout (as `save_lora_weights` writes it) or `kohya`'s; returns its file."""
    state: dict[str, Tensor] = {}
    for name, (down, up) in lora.items():
        if layout == "kohya":
            key = f"lora_unet_{name.replace('.', '_')}"
            state |= {
                f"{key}.lora_down.weight": down,
                f"{key}.lora_up.weight": up,
                f"{key}.alpha": torch.tensor(ALPHA),
            }
        else:  # it knows no alpha apart from the rank
            state |= {f"unet.{name}.lora_A.weight": down, f"unet.{name}.lora_B.weight": up * ALPHA / RANK}
    folder.mkdir(parents=True, exist_ok=True)
    save_file({key: value.contiguous() for key, value in state.items()}, folder / f"{layout}.safetensors")
    return f"{layout}.safetensors"


def merged(parameters: Mapping[str, Tensor], lora: Matrices, scale: float = 1.0) -> dict[str, Tensor]:
    """Parameters of the base's UNet with the LoRA added by hand."""
    result = dict(parameters)
    for name, (down, up) in lora.items():
        added = torch.einsum("or,r...->o...", up.flatten(1), down)
        result[f"{name}.weight"] = result[f"{name}.weight"] + scale * ALPHA / RANK * added
    return result
