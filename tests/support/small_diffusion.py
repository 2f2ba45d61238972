"""Small, randomly initialised weights: Stable Diffusion (1.x and XL), ControlNets, a segmenter, depth."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from diffusers import AutoencoderKL, ControlNetModel, DDIMScheduler, UNet2DConditionModel, UniPCMultistepScheduler
from safetensors.torch import save_file
from transformers import (
    CLIPTextConfig,
    CLIPTextModel,
    CLIPTextModelWithProjection,
    CLIPTokenizer,
    DepthAnythingConfig,
    DepthAnythingForDepthEstimation,
    Dinov2Config,
    DPTConfig,
    DPTForDepthEstimation,
    SegformerConfig,
    SegformerForSemanticSegmentation,
)
from transformers.models.dpt.image_processing_pil_dpt import DPTImageProcessorPil
from transformers.models.segformer.image_processing_pil_segformer import SegformerImageProcessorPil

from diffusion_service.hed import HedNetwork
from shared.profiles.diffusion import EdgeDetector
from tinyworld.networks.clip_tokenizer import learn_clip_tokenizer

WIDTH = 32
CAPTIONS = ["A red car stands on a beach. It rains.", "A blue bus drives through a city at night."] * 4


def write_diffusion(folder: Path, *, prediction: str = "epsilon", scheduler: str = "ddim", xl: bool = False) -> None:
    """Write base weights into `folder/base` and a ControlNet into `folder/control`. Native size 64 pixels."""
    torch.manual_seed(7)
    base = folder / "base"
    tokenizer = learn_clip_tokenizer(CAPTIONS, 50, base / "tokenizer")
    if xl:
        tokenizer.save_pretrained(base / "tokenizer_2")
        _text(CLIPTextModelWithProjection, tokenizer).save_pretrained(base / "text_encoder_2")
    _text(CLIPTextModel, tokenizer).save_pretrained(base / "text_encoder")
    unet = _unet(xl)
    unet.save_pretrained(base / "unet")
    AutoencoderKL(
        block_out_channels=(16, 32, 32),
        down_block_types=("DownEncoderBlock2D",) * 3,
        up_block_types=("UpDecoderBlock2D",) * 3,
        norm_num_groups=8,
        force_upcast=xl,
    ).save_pretrained(base / "vae")
    kinds = {"ddim": DDIMScheduler, "unipc": UniPCMultistepScheduler}
    zero_snr = {"timestep_spacing": "trailing", "rescale_betas_zero_snr": True} if prediction == "v_prediction" else {}
    kinds[scheduler](prediction_type=prediction, **zero_snr).save_pretrained(base / "scheduler")
    layout: dict[str, object] = {"_class_name": "StableDiffusionPipeline"}
    if xl:
        layout |= {
            "text_encoder_2": ["transformers", "CLIPTextModelWithProjection"],
            "force_zeros_for_empty_prompt": True,
        }
    (base / "model_index.json").write_text(json.dumps(layout))
    _control(unet).save_pretrained(folder / "control")


def write_instruct_unet(folder: Path) -> None:
    """A UNet of the base weights' layout that also sees a source's latents, into `folder`."""
    torch.manual_seed(11)
    _unet(xl=False, in_channels=8).save_pretrained(folder)


def write_segmenter(folder: Path) -> None:
    """A segmenter that calls everything `object`, as far as its bias goes."""
    torch.manual_seed(8)
    config = SegformerConfig(
        num_encoder_blocks=2,
        depths=[1, 1],
        sr_ratios=[4, 2],
        hidden_sizes=[8, 16],
        patch_sizes=[7, 3],
        strides=[4, 2],
        num_attention_heads=[1, 2],
        mlp_ratios=[2, 2],
        decoder_hidden_size=16,
        id2label={0: "background", 1: "object", 2: "companion"},
    )
    model = SegformerForSemanticSegmentation(config)
    torch.nn.init.zeros_(model.decode_head.classifier.weight)
    model.decode_head.classifier.bias.data = torch.tensor([0.0, 1.0, 0.0])
    model.save_pretrained(folder)
    SegformerImageProcessorPil(size={"height": 64, "width": 64}).save_pretrained(folder)


def _text(cls: type, tokenizer: CLIPTokenizer) -> CLIPTextModel | CLIPTextModelWithProjection:
    config = CLIPTextConfig(
        vocab_size=len(tokenizer),
        hidden_size=WIDTH,
        intermediate_size=2 * WIDTH,
        projection_dim=WIDTH,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=77,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return cls(config)


def _unet(xl: bool, in_channels: int = 4) -> UNet2DConditionModel:
    pooled = {
        "addition_embed_type": "text_time",
        "addition_time_embed_dim": 8,
        "projection_class_embeddings_input_dim": 6 * 8 + WIDTH,
    }
    return UNet2DConditionModel(
        sample_size=16,
        in_channels=in_channels,
        layers_per_block=1,
        block_out_channels=(32, 64),
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        cross_attention_dim=2 * WIDTH if xl else WIDTH,
        attention_head_dim=4,
        norm_num_groups=8,
        **(pooled if xl else {}),
    )


def write_control(folder: Path, base: Path, seed: int) -> None:
    """Another ControlNet for the base weights in `base`, into `folder`."""
    torch.manual_seed(seed)
    _control(UNet2DConditionModel.from_pretrained(base / "unet")).save_pretrained(folder)


def write_depth(folder: Path, kind: str = "depth_anything") -> None:
    """A model of relative depth: `depth_anything` or `dpt`."""
    torch.manual_seed(9)
    sizes = {"neck_hidden_sizes": [8, 8, 8, 8], "fusion_hidden_size": 8}
    transformer = {"hidden_size": 16, "num_hidden_layers": 4, "num_attention_heads": 2, "image_size": 32}
    model: DPTForDepthEstimation | DepthAnythingForDepthEstimation
    if kind == "dpt":
        model = DPTForDepthEstimation(
            DPTConfig(**transformer, **sizes, intermediate_size=32, patch_size=8, backbone_out_indices=[0, 1, 2, 3])
        )
        processor = DPTImageProcessorPil(size={"height": 32, "width": 32})
    else:
        stages = ["stage1", "stage2", "stage3", "stage4"]
        backbone = Dinov2Config(**transformer, patch_size=14, out_features=stages, reshape_hidden_states=False)
        model = DepthAnythingForDepthEstimation(
            DepthAnythingConfig(backbone_config=backbone, **sizes, reassemble_hidden_size=16)
        )
        processor = DPTImageProcessorPil(
            size={"height": 28, "width": 28}, keep_aspect_ratio=True, ensure_multiple_of=14
        )
    for name, parameter in model.named_parameters():
        if name.startswith(
            ("neck", "head")
        ):  # or the last layer, which lets nothing negative through, says 0 everywhere
            torch.nn.init.normal_(parameter, std=0.3)
            parameter.data = parameter.data.abs() if name.startswith("head") else parameter.data
    model.save_pretrained(folder)
    processor.save_pretrained(folder)


def _control(unet: UNet2DConditionModel) -> ControlNetModel:
    control = ControlNetModel.from_unet(unet, conditioning_embedding_out_channels=(8, 16, 16))
    for part in (control.controlnet_down_blocks, control.controlnet_cond_embedding.conv_out):
        for parameter in part.parameters():  # zero before training
            torch.nn.init.normal_(parameter, std=0.2)
    return control


def write_hed(folder: Path) -> None:
    """Random weights of HED's full layout, which has no smaller one; 59 MB."""
    torch.manual_seed(9)
    folder.mkdir()
    state = HedNetwork().state_dict()
    save_file(state, folder / EdgeDetector.model_fields["file"].default)


def hed_weights(folder: Path) -> EdgeDetector:
    """The profile's entry of these weights."""
    return EdgeDetector(path=folder, licence="none", gigabytes=0.06)
