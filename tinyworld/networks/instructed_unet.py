"""The UNet of an editor that follows instructions: a few-step UNet that also takes the source's latents.

The layout is InstructPix2Pix's (Brooks et al., arXiv 2211.09800, section 3.2): the source's latents follow the noisy
ones in the channels of `conv_in`, whose new weights begin at zero. Everything else is a LoRA over the few-step UNet. So
an editor is published as two small files beside the generator, whose autoencoder and text encoder it shares.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from diffusers import StableDiffusionPipeline, UNet2DConditionModel
from diffusers.models.attention_processor import AttnProcessor
from peft import LoraConfig
from peft.utils import get_peft_model_state_dict
from safetensors.torch import load_file, save_file
from torch import Tensor

FEW_STEP, LORA_FEW_STEP, INSTRUCT = "unet-few-step", "lora-few-step", "instruct"  # folders beside the generator's UNet
LORA, CONV_IN, CONFIG = "pytorch_lora_weights.safetensors", "conv_in.safetensors", "config.json"
LAYERS = (
    "to_q", "to_k", "to_v", "to_out.0", "proj_in", "proj_out", "ff.net.0.proj", "ff.net.2",
    "conv1", "conv2", "conv_shortcut", "time_emb_proj", "conv_out",
)  # fmt: skip


def few_step_unet(folder: Path) -> UNet2DConditionModel:
    """The few-step UNet of a published generator, in float32: its own, or its UNet with the few-step LoRA merged."""
    if (folder / FEW_STEP).exists():
        return UNet2DConditionModel.from_pretrained(folder / FEW_STEP).float()
    unet = UNet2DConditionModel.from_pretrained(folder / "unet").float()
    return _with_lora(unet, load_file(folder / LORA_FEW_STEP / LORA))


def editing_unet(few_step: UNet2DConditionModel) -> UNet2DConditionModel:
    """A copy of the few-step UNet with as many more input channels; it ignores them until it is trained."""
    channels = few_step.config.in_channels
    unet = UNet2DConditionModel.from_config({**few_step.config, "in_channels": 2 * channels})
    state = few_step.state_dict()
    weight = state["conv_in.weight"]
    unet.load_state_dict(state | {"conv_in.weight": torch.cat([weight, torch.zeros_like(weight)], dim=1)})
    unet.set_attn_processor(AttnProcessor())
    return unet


def add_lora(unet: UNet2DConditionModel, rank: int) -> None:
    """Leave only `conv_in` and a LoRA of a rank over `LAYERS` to train."""
    unet.requires_grad_(False)
    unet.add_adapter(LoraConfig(r=rank, lora_alpha=rank, target_modules=list(LAYERS)))
    unet.conv_in.requires_grad_(True)


def rank_of(state: Mapping[str, Tensor]) -> int:
    """The rank of the LoRA in the state of a UNet that `add_lora` prepared."""
    return next(len(value) for name, value in state.items() if ".lora_A." in name)


def save_editor(unet: UNet2DConditionModel, folder: Path, settings: Mapping[str, float]) -> None:
    """Write `conv_in` as 16-bit floats, the LoRA as 8-bit ones (e4m3), and how the editor samples."""
    folder.mkdir(parents=True, exist_ok=True)
    conv_in = {f"conv_in.{name}": value.detach().half().cpu() for name, value in unet.conv_in.named_parameters()}
    save_file(conv_in, folder / CONV_IN, metadata={"format": "pt"})
    lora = {name: value.detach().cpu() for name, value in get_peft_model_state_dict(unet).items()}
    small = {name: value.to(torch.float8_e4m3fn).contiguous() for name, value in balance_lora(lora).items()}
    StableDiffusionPipeline.save_lora_weights(folder, unet_lora_layers=small)
    (folder / CONFIG).write_text(json.dumps({"in_channels": unet.config.in_channels, **settings}, indent=1) + "\n")


def load_editor(folder: Path, few_step: UNet2DConditionModel) -> UNet2DConditionModel:
    """The UNet that `save_editor` wrote, with its LoRA merged, in float32."""
    unet = _with_lora(editing_unet(few_step), load_file(folder / LORA))
    unet.load_state_dict({name: value.float() for name, value in load_file(folder / CONV_IN).items()}, strict=False)
    return unet.eval()


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


def _with_lora(unet: UNet2DConditionModel, lora: Mapping[str, Tensor]) -> UNet2DConditionModel:
    unet.load_lora_adapter({name: value.float() for name, value in lora.items()}, prefix="unet")
    unet.fuse_lora()
    unet.unload_lora()
    return unet
