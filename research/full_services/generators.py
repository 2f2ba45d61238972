"""Random weights of Stable Diffusion's architectures, from their public configurations, in the Hub's layout."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKL, ControlNetModel, DDIMScheduler, UNet2DConditionModel
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection

from benchmarks.random_networks import SHARD, parameters, random_network
from shared.schemas.diffusion import ControlKind
from tinyworld.networks.clip_tokenizer import learn_clip_tokenizer

CAPTION = "A red bus in a city by day."
NIGHT = "A red bus in a city at night."
VOCABULARY = 49_408  # CLIP's


@dataclass(frozen=True, slots=True)
class Architecture:
    """The public configuration of a generator's networks: keyword arguments of their classes.

    `texts` are the text encoders in their order. `hint` are the channels of the ControlNets' first layers. `upcast`
    says that the autoencoder overflows in half precision.
    """

    unet: Mapping[str, Any]
    texts: Sequence[Mapping[str, int | str]]
    vae: Sequence[int] = (128, 256, 512, 512)
    hint: Sequence[int] = (16, 32, 96, 256)
    groups: int = 32
    upcast: bool = False


CLIP_L: Mapping[str, int | str] = {
    "hidden_size": 768, "intermediate_size": 3072, "projection_dim": 768, "num_hidden_layers": 12,
    "num_attention_heads": 12, "hidden_act": "quick_gelu",
}  # fmt: skip
OPENCLIP_BIGG: Mapping[str, int | str] = {
    "hidden_size": 1280, "intermediate_size": 5120, "projection_dim": 1280, "num_hidden_layers": 32,
    "num_attention_heads": 20, "hidden_act": "gelu",
}  # fmt: skip
SD15 = Architecture(
    unet={
        "sample_size": 64, "block_out_channels": (320, 640, 1280, 1280), "cross_attention_dim": 768,
        "attention_head_dim": 8,
    },
    texts=[CLIP_L],
)  # fmt: skip
SDXL = Architecture(
    unet={
        "sample_size": 128, "block_out_channels": (320, 640, 1280), "cross_attention_dim": 2048,
        "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        "up_block_types": ("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
        "transformer_layers_per_block": (1, 2, 10), "attention_head_dim": (5, 10, 20), "use_linear_projection": True,
        "addition_embed_type": "text_time", "addition_time_embed_dim": 256,
        "projection_class_embeddings_input_dim": 2816,
    },
    texts=[CLIP_L, OPENCLIP_BIGG],
    upcast=True,
)  # fmt: skip


def write_generator(folder: Path, architecture: Architecture, kinds: Sequence[ControlKind]) -> dict[str, int]:
    """Write `base` and one `control-KIND` per kind into `folder`, in bfloat16; returns the networks' parameters."""
    torch.manual_seed(0)
    base = folder / "base"
    counts = _write_text_encoders(base, architecture.texts)
    unet = random_network(lambda: build_unet(architecture), torch.bfloat16)
    unet.save_pretrained(base / "unet", max_shard_size=SHARD)
    counts["unet"] = parameters(unet)
    del unet
    vae = random_network(lambda: build_autoencoder(architecture), torch.bfloat16)
    vae.save_pretrained(base / "vae")
    counts["autoencoder"] = parameters(vae)
    for kind in kinds:
        control = random_network(lambda: build_controlnet(architecture), torch.bfloat16)
        control.save_pretrained(folder / f"control-{kind}", max_shard_size=SHARD)
        counts[f"controlnet {kind}"] = parameters(control)
        del control
    DDIMScheduler(
        beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear", clip_sample=False, set_alpha_to_one=False,
        steps_offset=1,
    ).save_pretrained(base / "scheduler")  # fmt: skip
    return counts


def _write_text_encoders(base: Path, texts: Sequence[Mapping[str, int | str]]) -> dict[str, int]:
    layout: dict[str, Any] = {"_class_name": "StableDiffusionPipeline"}
    counts = {}
    for number, text in enumerate(texts):
        suffix = f"_{number + 1}" if number else ""
        tokenizer = learn_clip_tokenizer([CAPTION, NIGHT] * 4, 60, base / f"tokenizer{suffix}")
        config = CLIPTextConfig(
            vocab_size=VOCABULARY, bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id, **text,
        )  # fmt: skip
        cls = CLIPTextModelWithProjection if number else CLIPTextModel
        encoder = random_network(partial(cls, config), torch.bfloat16)
        encoder.save_pretrained(base / f"text_encoder{suffix}", max_shard_size=SHARD)
        layout[f"text_encoder{suffix}"] = ["transformers", cls.__name__]
        counts[f"text encoder{suffix.replace('_', ' ')}"] = parameters(encoder)
    if len(texts) > 1:
        layout["force_zeros_for_empty_prompt"] = True
    base.joinpath("model_index.json").write_text(json.dumps(layout))
    return counts


def build_unet(architecture: Architecture) -> UNet2DConditionModel:
    return UNet2DConditionModel(norm_num_groups=architecture.groups, **architecture.unet)


def build_controlnet(architecture: Architecture) -> ControlNetModel:
    return ControlNetModel.from_unet(
        build_unet(architecture),
        conditioning_embedding_out_channels=tuple(architecture.hint),
        load_weights_from_unet=False,
    )


def build_autoencoder(architecture: Architecture) -> AutoencoderKL:
    depth = len(architecture.vae)
    return AutoencoderKL(
        block_out_channels=tuple(architecture.vae), layers_per_block=2, norm_num_groups=architecture.groups,
        down_block_types=("DownEncoderBlock2D",) * depth, up_block_types=("UpDecoderBlock2D",) * depth,
        sample_size=int(architecture.unet["sample_size"]) * 2 ** (depth - 1), force_upcast=architecture.upcast,
        scaling_factor=0.13025 if architecture.upcast else 0.18215,
    )  # fmt: skip
