"""Write random weights in Stable Diffusion's layout, at version 1.x's size or another. Costs do not depend on values.

    python -m research.cost_of_methods --random --device cuda

writes them once into a temporary folder and loads them like other weights.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import diffusers
import torch
from diffusers import AutoencoderKL, ControlNetModel, DDIMScheduler, UNet2DConditionModel
from transformers import CLIPTextConfig, CLIPTextModel

from benchmarks.random_networks import random_network
from shared.profiles.diffusion import Diffusion
from shared.profiles.weights import Dtype, Weights
from tinyworld.networks.clip_tokenizer import learn_clip_tokenizer

LAYOUT = {
    "_class_name": "StableDiffusionPipeline",
    "_diffusers_version": diffusers.__version__,
    "feature_extractor": [None, None],
    "image_encoder": [None, None],
    "safety_checker": [None, None],
    "requires_safety_checker": False,
    "scheduler": ["diffusers", "DDIMScheduler"],
    "text_encoder": ["transformers", "CLIPTextModel"],
    "tokenizer": ["transformers", "CLIPTokenizer"],
    "unet": ["diffusers", "UNet2DConditionModel"],
    "vae": ["diffusers", "AutoencoderKL"],
}


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of the networks; the defaults are Stable Diffusion 1.x's, whose images have 512 × 512 pixels."""

    latent: int = 64
    unet: tuple[int, ...] = (320, 640, 1280, 1280)
    layers: int = 2
    heads: int = 8
    vae: tuple[int, ...] = (128, 256, 512, 512)
    text: int = 768
    text_layers: int = 12
    text_heads: int = 12
    hint: tuple[int, ...] = (16, 32, 96, 256)
    groups: int = 32


def write_random(folder: Path, shape: Shape, captions: list[str], dtype: Dtype = "float16") -> Diffusion:
    """Write base and ControlNet into `folder`. Returns the profile's table with both, without a segmenter."""
    torch.manual_seed(0)
    torch_dtype = getattr(torch, dtype)
    base = folder / "base"
    tokenizer = learn_clip_tokenizer(captions, 60, base / "tokenizer")
    text = CLIPTextConfig(
        vocab_size=max(49_408, len(tokenizer)), hidden_size=shape.text, intermediate_size=4 * shape.text,
        projection_dim=shape.text, num_hidden_layers=shape.text_layers, num_attention_heads=shape.text_heads,
        bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    CLIPTextModel(text).to(torch_dtype).save_pretrained(base / "text_encoder")
    random_network(lambda: unet_of(shape)).to(torch_dtype).save_pretrained(base / "unet")
    control = random_network(
        lambda: ControlNetModel.from_unet(
            unet_of(shape), conditioning_embedding_out_channels=shape.hint, load_weights_from_unet=False
        )
    )
    control.to(torch_dtype).save_pretrained(folder / "control")
    depth = len(shape.vae)
    random_network(
        lambda: AutoencoderKL(
            block_out_channels=shape.vae, layers_per_block=shape.layers, norm_num_groups=shape.groups,
            down_block_types=("DownEncoderBlock2D",) * depth, up_block_types=("UpDecoderBlock2D",) * depth,
            sample_size=shape.latent * 2 ** (depth - 1),
        )
    ).to(torch_dtype).save_pretrained(base / "vae")  # fmt: skip
    DDIMScheduler(
        beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear", clip_sample=False, set_alpha_to_one=False,
        steps_offset=1,
    ).save_pretrained(base / "scheduler")  # fmt: skip
    (base / "model_index.json").write_text(json.dumps(LAYOUT))
    common = {"dtype": dtype, "licence": "none", "gigabytes": 1.0}
    return Diffusion(
        base=Weights.model_validate({"path": base, **common}),
        controlnets={"canny": Weights.model_validate({"path": folder / "control", **common})},
        max_batch=16,
    )


def unet_of(shape: Shape) -> UNet2DConditionModel:
    """A UNet with cross-attention at every level except the deepest, as in Stable Diffusion."""
    crossed = len(shape.unet) - 1
    return UNet2DConditionModel(
        sample_size=shape.latent, block_out_channels=shape.unet, layers_per_block=shape.layers,
        cross_attention_dim=shape.text, attention_head_dim=shape.heads, norm_num_groups=shape.groups,
        down_block_types=("CrossAttnDownBlock2D",) * crossed + ("DownBlock2D",),
        up_block_types=("UpBlock2D",) + ("CrossAttnUpBlock2D",) * crossed,
    )  # fmt: skip
