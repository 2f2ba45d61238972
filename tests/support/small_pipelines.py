"""Small, randomly initialised weights of diffusers' instruction-following pipelines, in the Hub's layout."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from diffusers import (
    AutoencoderKL,
    AutoencoderKLFlux2,
    AutoencoderKLQwenImage,
    FlowMatchEulerDiscreteScheduler,
    Flux2Transformer2DModel,
    FluxTransformer2DModel,
    QwenImageTransformer2DModel,
)
from tokenizers.pre_tokenizers import ByteLevel
from transformers import (
    CLIPTextConfig,
    CLIPTextModel,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2Tokenizer,
    Qwen3Config,
    Qwen3ForCausalLM,
    T5Config,
    T5EncoderModel,
    T5Tokenizer,
)
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from shared.profiles.instruct import PipelineName
from tests.support.small_diffusion import CAPTIONS
from tinyworld.networks.clip_tokenizer import learn_clip_tokenizer

WIDTH = 16
MARKS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>")
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"


def write_pipeline(folder: Path, name: PipelineName) -> None:
    """Write the pipeline of a class into `folder`."""
    torch.manual_seed(13)
    if name.startswith("Flux2Klein"):
        parts = _klein()
    elif name.startswith("QwenImageEdit"):
        parts = _qwen(folder)
    else:
        parts = _kontext(folder)
    index: dict[str, Any] = {"_class_name": name, "_diffusers_version": "0.42.1"}
    if name.startswith("Flux2Klein"):
        index["is_distilled"] = True
    for part, (library, component) in parts.items():
        index[part] = [library, _PROCESSOR if part == "processor" else type(component).__name__]
        component.save_pretrained(folder / part)
    (folder / "model_index.json").write_text(json.dumps(index))


_PROCESSOR = "Qwen2VLProcessor"
_Parts = Mapping[str, tuple[str, Any]]


def _klein() -> _Parts:
    vae = AutoencoderKLFlux2(
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        block_out_channels=(8, 8),
        layers_per_block=1,
        latent_channels=4,
        norm_num_groups=4,
    )
    transformer = Flux2Transformer2DModel(
        in_channels=16,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=3 * WIDTH,
        axes_dims_rope=(4, 4, 4, 4),
        guidance_embeds=False,
    )
    sizes = {"hidden_size": WIDTH, "intermediate_size": WIDTH, "num_attention_heads": 2, "num_key_value_heads": 1}
    # The pipeline reads hidden states up to the 27th layer.
    text = Qwen3Config(vocab_size=300, num_hidden_layers=28, head_dim=8, **sizes)
    return {
        "scheduler": ("diffusers", FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True)),
        "vae": ("diffusers", vae),
        "text_encoder": ("transformers", Qwen3ForCausalLM(text)),
        "tokenizer": ("transformers", _byte_tokenizer()),
        "transformer": ("diffusers", transformer),
    }


def _qwen(folder: Path) -> _Parts:
    vae = AutoencoderKLQwenImage(
        base_dim=4, z_dim=4, dim_mult=[1, 1, 1, 1], num_res_blocks=1, latents_mean=[0.0] * 4, latents_std=[1.0] * 4
    )
    transformer = QwenImageTransformer2DModel(
        in_channels=16,
        out_channels=4,
        num_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=WIDTH,
        axes_dims_rope=(8, 4, 4),
    )
    tokenizer = _byte_tokenizer()
    text = {
        "vocab_size": 300,
        "hidden_size": WIDTH,
        "intermediate_size": WIDTH,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "rope_parameters": {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 1e6},
    }
    vision = {
        "depth": 2,
        "hidden_size": WIDTH,
        "intermediate_size": WIDTH,
        "num_heads": 2,
        "out_hidden_size": WIDTH,
        "fullatt_block_indexes": [1],
    }
    numbers = {
        name: tokenizer.convert_tokens_to_ids(mark)
        for name, mark in (
            ("vision_start_token_id", "<|vision_start|>"),
            ("vision_end_token_id", "<|vision_end|>"),
            ("image_token_id", "<|image_pad|>"),
        )
    }
    config = Qwen2_5_VLConfig(text_config=text, vision_config=vision, video_token_id=299, **numbers)
    tokenizer.save_pretrained(folder / "processor")
    return {
        "scheduler": ("diffusers", FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True)),
        "vae": ("diffusers", vae),
        "text_encoder": ("transformers", Qwen2_5_VLForConditionalGeneration(config)),
        "tokenizer": ("transformers", tokenizer),
        "processor": ("transformers", Qwen2VLImageProcessorPil(min_pixels=28 * 28, max_pixels=4 * 28 * 28)),
        "transformer": ("diffusers", transformer),
    }


def _kontext(folder: Path) -> _Parts:
    vae = AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        block_out_channels=(8, 8),
        latent_channels=4,
        norm_num_groups=4,
        use_quant_conv=False,
        use_post_quant_conv=False,
        shift_factor=0.06,
        scaling_factor=1.5,
    )
    transformer = FluxTransformer2DModel(
        in_channels=16,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=WIDTH,
        pooled_projection_dim=WIDTH,
        guidance_embeds=True,
        axes_dims_rope=(4, 4, 8),
    )
    clip = learn_clip_tokenizer(CAPTIONS, 50, folder / "tokenizer")
    read = CLIPTextConfig(
        vocab_size=len(clip),
        hidden_size=WIDTH,
        intermediate_size=WIDTH,
        projection_dim=WIDTH,
        num_hidden_layers=1,
        num_attention_heads=2,
        bos_token_id=clip.bos_token_id,
        eos_token_id=clip.eos_token_id,
        pad_token_id=clip.pad_token_id,
    )
    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -1.0)]
    t5 = T5Tokenizer(vocab=pieces + [(letter, -2.0) for letter in "abcdefghijklmnopqrstuvwxyz"], extra_ids=0)
    encoder = T5Config(vocab_size=64, d_model=WIDTH, d_kv=8, d_ff=WIDTH, num_layers=1, num_heads=2)
    return {
        "scheduler": ("diffusers", FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True)),
        "vae": ("diffusers", vae),
        "text_encoder": ("transformers", CLIPTextModel(read)),
        "tokenizer": ("transformers", clip),
        "text_encoder_2": ("transformers", T5EncoderModel(encoder)),
        "tokenizer_2": ("transformers", t5),
        "transformer": ("diffusers", transformer),
    }


def _byte_tokenizer() -> Qwen2Tokenizer:
    """A tokenizer of single bytes, with the marks of Qwen's templates."""
    pieces = [*sorted(ByteLevel.alphabet()), *MARKS]
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    tokenizer = Qwen2Tokenizer(vocab=vocabulary, merges=[], extra_special_tokens=list(MARKS[1:]))
    tokenizer.chat_template = TEMPLATE
    return tokenizer
