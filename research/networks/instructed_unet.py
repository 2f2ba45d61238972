"""The UNet of an editor that follows instructions: the few-step UNet with a LoRA, which predicts what changes.

The layout is the engine `one-step` of `diffusion_service`: the source's latents in place of the noise, at a fixed time,
and the output is added to them. So an editor is published as one small file beside the generator, whose other networks
it shares.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from diffusers import StableDiffusionPipeline, UNet2DConditionModel
from diffusers.models.attention_processor import AttnProcessor
from peft import LoraConfig
from peft.utils import get_peft_model_state_dict, set_peft_model_state_dict
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional

FEW_STEP, LORA_FEW_STEP, INSTRUCT = "unet-few-step", "lora-few-step", "instruct"  # folders beside the generator's UNet
LORA, CONFIG = "pytorch_lora_weights.safetensors", "config.json"
LAST_RATE = 10.0  # of the last layer's learning rate: nothing before it learns anything while it gives nothing
LAYERS = (
    "to_q", "to_k", "to_v", "to_out.0", "proj_in", "proj_out", "ff.net.0.proj", "ff.net.2",
    "conv_in", "conv1", "conv2", "conv_shortcut", "time_emb_proj", "conv_out",
)  # fmt: skip


def few_step_unet(folder: Path) -> UNet2DConditionModel:
    """The few-step UNet of a published generator, in float32: its own, or its UNet with the few-step LoRA merged."""
    if (folder / FEW_STEP).exists():
        return UNet2DConditionModel.from_pretrained(folder / FEW_STEP).float()
    unet = UNet2DConditionModel.from_pretrained(folder / "unet").float()
    return _with_lora(unet, load_file(folder / LORA_FEW_STEP / LORA))


def add_lora(unet: UNet2DConditionModel, rank: int) -> None:
    """Leave only a LoRA of a rank over `LAYERS` to train, under which the UNet begins with no change at all.

    The last layer's LoRA takes the layer's weights away, which its rank allows exactly: it has as many rows as latent
    channels. Raises ValueError for a smaller rank. What is left is the layer's small bias.
    """
    unet.set_attn_processor(AttnProcessor())  # scaled_dot_product_attention's backward is slow on CPU
    weight = unet.conv_out.weight.detach().clone()
    if rank < len(weight):
        raise ValueError(f"a LoRA of rank {rank} cannot silence the last layer; use at least {len(weight)}")
    unet.requires_grad_(False)
    unet.add_adapter(LoraConfig(r=rank, lora_alpha=rank, target_modules=list(LAYERS)))
    unet.conv_out.rate_factor = LAST_RATE
    with torch.no_grad():
        first, second = (getattr(unet.conv_out, name)["default"].weight for name in ("lora_A", "lora_B"))
        first[: len(weight)] = -weight
        second[:, : len(weight), 0, 0] = torch.eye(len(weight))


def start_from(unet: UNet2DConditionModel, folder: Path) -> None:
    """As `add_lora`, but with the LoRA that `save_editor` wrote into a folder. Raises OSError if it is missing."""
    lora = load_file(folder / LORA)
    add_lora(unet, rank_of(lora))
    set_peft_model_state_dict(unet, {name.removeprefix("unet."): value.float() for name, value in lora.items()})


def rank_of(state: Mapping[str, Tensor]) -> int:
    """The rank of the LoRA in the state of a UNet that `add_lora` prepared."""
    return next(len(value) for name, value in state.items() if ".lora_A." in name)


def save_editor(unet: UNet2DConditionModel, folder: Path, settings: Mapping[str, float]) -> None:
    """Write the LoRA, and how the editor samples."""
    folder.mkdir(parents=True, exist_ok=True)
    save_lora(get_peft_model_state_dict(unet), folder)
    (folder / CONFIG).write_text(json.dumps(dict(settings), indent=1) + "\n")


def save_lora(lora: Mapping[str, Tensor], folder: Path) -> None:
    """Write a LoRA of a UNet as 8-bit floats (e4m3), that of the last layer as 16-bit ones.

    An editor's last layer is the difference of two layers, which 8 bits would spoil.
    """
    small = {
        name: value.detach().cpu().to(torch.float16 if "conv_out" in name else torch.float8_e4m3fn).contiguous()
        for name, value in balance_lora(lora).items()
    }
    StableDiffusionPipeline.save_lora_weights(folder, unet_lora_layers=small)


def load_editor(folder: Path, few_step: UNet2DConditionModel) -> UNet2DConditionModel:
    """The UNet that `save_editor` wrote, its LoRA merged into `few_step`, in float32."""
    return _with_lora(few_step, load_file(folder / LORA)).eval()


def balance_lora(lora: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same LoRA with both matrices of each layer about equally large, so that 8 bits serve both.

    They are scaled by powers of two, which is exact.
    """
    even = dict(lora)
    for name in lora:
        if ".lora_A." in name and float(lora[other := name.replace(".lora_A.", ".lora_B.")].abs().max()) > 0:
            ratio = lora[other].square().mean().sqrt() / lora[name].square().mean().sqrt()
            factor = torch.exp2((ratio.log2() / 2).round())
            even[name], even[other] = lora[name] * factor, lora[other] / factor
    return even


def lora_of_difference(before: Mapping[str, Tensor], after: Mapping[str, Tensor], rank: int) -> dict[str, Tensor]:
    """The LoRA of a rank that brings one UNet's matrices nearest to another's, by their singular values.

    Biases and norms stay as they were `before`: a LoRA carries none. Layers with fewer rows get rows of zeros, so that
    all have one rank.
    """
    lora: dict[str, Tensor] = {}
    for name, old in before.items():
        if old.ndim < 2:
            continue
        left, values, right = torch.linalg.svd((after[name].float() - old.float()).flatten(1), full_matrices=False)
        kept = min(rank, len(values))
        root, missing = values[:kept].sqrt(), rank - kept
        first = functional.pad(root[:, None] * right[:kept], (0, 0, 0, missing)).reshape(rank, *old.shape[1:])
        second = functional.pad(left[:, :kept] * root, (0, missing)).reshape(len(old), rank, *[1] * (old.ndim - 2))
        layer = name.removesuffix(".weight")
        lora[f"{layer}.lora_A.weight"], lora[f"{layer}.lora_B.weight"] = first, second
    return lora


def _with_lora(unet: UNet2DConditionModel, lora: Mapping[str, Tensor]) -> UNet2DConditionModel:
    unet.load_lora_adapter({name: value.float() for name, value in lora.items()}, prefix="unet")
    unet.fuse_lora()
    unet.unload_lora()
    return unet
