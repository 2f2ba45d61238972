"""Random weights of the networks that read images, from their public configurations, in the Hub's layout."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import (
    Blip2Config,
    Blip2ForConditionalGeneration,
    Blip2Processor,
    Blip2QFormerConfig,
    Blip2VisionConfig,
    BlipImageProcessorPil,
    CLIPConfig,
    CLIPModel,
    ConvNextConfig,
    DepthAnythingConfig,
    DepthAnythingForDepthEstimation,
    Dinov2Config,
    OPTConfig,
    ResNetConfig,
    ResNetForImageClassification,
    UperNetConfig,
    UperNetForSemanticSegmentation,
    ViTConfig,
    ViTForImageClassification,
)
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.convnext.image_processing_pil_convnext import ConvNextImageProcessorPil
from transformers.models.dpt.image_processing_pil_dpt import DPTImageProcessorPil
from transformers.models.segformer.image_processing_pil_segformer import SegformerImageProcessorPil
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

from benchmarks.random_networks import SHARD, parameters, random_network
from research.full_services.generators import CAPTION, CLIP_L, NIGHT, VOCABULARY
from research.networks.small_blip2 import learn_processor
from tinyworld.networks.clip_tokenizer import learn_clip_tokenizer

ADE20K = 150  # classes
QUERIES = 32


def write_upernet(folder: Path) -> int:
    """`openmmlab/upernet-convnext-base`, in float32; returns its parameters, as all of these do."""
    stages = ["stage1", "stage2", "stage3", "stage4"]
    backbone = ConvNextConfig(depths=[3, 3, 27, 3], hidden_sizes=[128, 256, 512, 1024], out_features=stages)
    config = UperNetConfig(backbone_config=backbone, num_labels=ADE20K, auxiliary_in_channels=512)
    SegformerImageProcessorPil(size={"height": 512, "width": 512}).save_pretrained(folder)
    return _write(folder, lambda: UperNetForSemanticSegmentation(config))


def write_depth_anything(folder: Path) -> int:
    """`depth-anything/Depth-Anything-V2-Small-hf`, in float32."""
    backbone = Dinov2Config(
        hidden_size=384, num_attention_heads=6, image_size=518, patch_size=14, reshape_hidden_states=False,
        out_indices=[3, 6, 9, 12], apply_layernorm=True,
    )  # fmt: skip
    config = DepthAnythingConfig(
        backbone_config=backbone, reassemble_hidden_size=384, neck_hidden_sizes=[48, 96, 192, 384],
        fusion_hidden_size=64,
    )  # fmt: skip
    size = {"height": 518, "width": 518}
    DPTImageProcessorPil(size=size, keep_aspect_ratio=True, ensure_multiple_of=14).save_pretrained(folder)
    return _write(folder, lambda: DepthAnythingForDepthEstimation(config))


def write_clip(folder: Path) -> int:
    """`openai/clip-vit-large-patch14`, in float32."""
    tokenizer = learn_clip_tokenizer([CAPTION, NIGHT] * 4, 60, folder)
    ids = {name: getattr(tokenizer, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    vision = {
        "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16,
        "image_size": 224, "patch_size": 14, "projection_dim": 768,
    }  # fmt: skip
    text = {"vocab_size": VOCABULARY, **CLIP_L, **ids}
    CLIPImageProcessorPil().save_pretrained(folder)
    config = CLIPConfig(text_config=text, vision_config=vision, projection_dim=768)
    return _write(folder, lambda: CLIPModel(config))


def write_resnet(folder: Path) -> int:
    """`microsoft/resnet-50`, in float32."""
    ConvNextImageProcessorPil(size={"shortest_edge": 224}, crop_pct=0.875).save_pretrained(folder)
    return _write(folder, lambda: ResNetForImageClassification(ResNetConfig(num_labels=1000)))


def write_vit(folder: Path) -> int:
    """`google/vit-base-patch16-224`, in float32."""
    ViTImageProcessorPil().save_pretrained(folder)
    return _write(folder, lambda: ViTForImageClassification(ViTConfig(num_labels=1000)))


def write_blip2(folder: Path) -> int:
    """`Salesforce/blip2-opt-2.7b`, in bfloat16 and shards."""
    tokenizer = learn_processor([CAPTION, NIGHT], folder).tokenizer
    images = BlipImageProcessorPil(size={"height": 224, "width": 224})
    Blip2Processor(images, tokenizer, num_query_tokens=QUERIES).save_pretrained(folder)
    ids = {name: getattr(tokenizer, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    language = OPTConfig(
        vocab_size=50_304, hidden_size=2560, word_embed_proj_dim=2560, ffn_dim=10_240, num_hidden_layers=32,
        num_attention_heads=32, **ids,
    )  # fmt: skip
    config = Blip2Config(
        vision_config=Blip2VisionConfig(), qformer_config=Blip2QFormerConfig(), text_config=language,
        num_query_tokens=QUERIES, image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
    )  # fmt: skip

    def build() -> Blip2ForConditionalGeneration:
        model = Blip2ForConditionalGeneration(config)
        for generation in (model.generation_config, model.language_model.generation_config):
            generation.update(**ids)
        return model

    return _write(folder, build, torch.bfloat16)


def _write(folder: Path, build: Callable[[], Any], dtype: torch.dtype = torch.float32) -> int:
    torch.manual_seed(0)
    network = random_network(build, dtype)
    network.save_pretrained(folder, max_shard_size=SHARD)
    return parameters(network)
