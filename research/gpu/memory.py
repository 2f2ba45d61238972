"""Memory of the weights of `modern-24gb` by network, from the public configurations on the meta device: `python -m
research.gpu.memory`.

Nothing is allocated or fetched. Bytes are those of parameters and buffers in the profile's types; vLLM keeps the linear
layers of the language model in 8 bits and everything else in bfloat16.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from diffusers import AutoencoderKLFlux2, Flux2Transformer2DModel
from torch import nn
from transformers import (
    CLIPTextConfig,
    CLIPTextModel,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
    SiglipConfig,
    SiglipModel,
)

from research.full_services.generators import SD15, VOCABULARY, build_autoencoder, build_controlnet, build_unet
from shared.profiles.profile import Profile, load_profile

PROFILE = "modern-24gb"
CARD = 24.0  # GB: what the smaller of the cards of "24 GB" report (an L4, an A10G)
QWEN: Mapping[str, Any] = {
    "hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36, "num_attention_heads": 32,
    "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151_936, "tie_word_embeddings": True,
}  # fmt: skip
_QWEN_VISION: Mapping[str, Any] = {
    "hidden_size": 1024, "intermediate_size": 4096, "depth": 24, "num_heads": 16, "out_hidden_size": 2560,
    "deepstack_visual_indexes": [5, 11, 17], "num_position_embeddings": 2304, "patch_size": 16,
}  # fmt: skip
KLEIN: Mapping[str, Any] = {
    "num_layers": 5, "num_single_layers": 20, "attention_head_dim": 128, "num_attention_heads": 24,
    "joint_attention_dim": 7680, "in_channels": 128, "guidance_embeds": False,
}  # fmt: skip
_SIGLIP: Mapping[str, Any] = {
    "hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27, "num_attention_heads": 16,
}  # fmt: skip
Build = Callable[[], Any]  # networks; their classes have no types


def _vision_language() -> Any:
    config = Qwen3VLConfig(text_config=dict(QWEN), vision_config=dict(_QWEN_VISION), tie_word_embeddings=True)
    return Qwen3VLForConditionalGeneration(config)


def _scorer() -> Any:
    vision = {**_SIGLIP, "image_size": 384, "patch_size": 14}
    return SiglipModel(SiglipConfig(text_config={**_SIGLIP, "vocab_size": 256_000}, vision_config=vision))


def _text_encoder() -> Any:
    return CLIPTextModel(CLIPTextConfig(vocab_size=VOCABULARY, **SD15.texts[0]))


# Table of the profile → its networks.
NETWORKS: Mapping[str, Mapping[str, Build]] = {
    "caption.server": {"Qwen3-VL 4B": _vision_language},
    "diffusion.base": {
        "UNet": partial(build_unet, SD15),
        "text encoder": _text_encoder,
        "autoencoder": partial(build_autoencoder, SD15),
    },
    "diffusion.controlnets.canny": {"ControlNet": partial(build_controlnet, SD15)},
    "diffusion.instruct.weights": {
        "transformer": lambda: Flux2Transformer2DModel(**KLEIN),
        "text encoder": lambda: Qwen3ForCausalLM(Qwen3Config(**QWEN)),
        "autoencoder": AutoencoderKLFlux2,
    },
    "evaluator.scorer": {"SigLIP 2": _scorer},
}


def on_meta(build: Build) -> nn.Module:
    """A network without storage, in bfloat16."""
    with torch.device("meta"):
        network: nn.Module = build()
        nn.Module.to(network, torch.bfloat16)
    if callable(tie := getattr(network, "tie_weights", None)):
        tie()
    return network


def weight_bytes(network: nn.Module) -> int:
    """Bytes of its parameters and buffers; tied ones count once."""
    return sum(tensor.nbytes for tensor in (*network.parameters(), *network.buffers()))


def quantised_bytes(network: nn.Module, part: str) -> int:
    """The same with the linear layers of the blocks below `part` in one byte per weight."""
    linear = {
        layer.weight
        for name, layer in network.named_modules()
        if isinstance(layer, nn.Linear) and f"{part}.layers." in name
    }
    return weight_bytes(network) - sum(weight.nbytes // 2 for weight in linear)


def largest_layer_bytes(network: nn.Module) -> int:
    """Bytes of its largest layer, which is what sequential offloading holds on the device."""
    return max(sum(tensor.nbytes for tensor in layer.parameters(recurse=False)) for layer in network.modules())


def gigabytes_by_table(profile: Profile) -> dict[str, dict[str, float]]:
    """Table → network → GB (10⁹ bytes) that stay on the device."""
    sequential = getattr(profile.diffusion.instruct, "offload", "none") == "sequential"
    tables: dict[str, dict[str, float]] = {}
    for table, networks in NETWORKS.items():
        sizes = {}
        for name, build in networks.items():
            network = on_meta(build)
            if table == "caption.server":
                size = quantised_bytes(network, "language_model")
            elif table == "diffusion.instruct.weights" and sequential:
                size = largest_layer_bytes(network)
            else:
                size = weight_bytes(network)
            sizes[name] = size / 1e9
        tables[table] = sizes
    return tables


def stated(profile: Profile) -> dict[str, float]:
    """What the profile states for the same tables, in GB."""
    diffusion, server = profile.diffusion, profile.caption.server
    assert server is not None
    weights = getattr(diffusion.instruct, "weights", None)
    assert weights is not None
    return {
        "caption.server": server.gigabytes,
        "diffusion.base": diffusion.base.gigabytes,
        "diffusion.controlnets.canny": diffusion.controlnets["canny"].gigabytes,
        "diffusion.instruct.weights": weights.gigabytes,
        "evaluator.scorer": profile.evaluator.scorer.gigabytes,
    }


def computed(table: str, sizes: Mapping[str, float]) -> float:
    """GB of a table: of all its networks, or of the largest where they take turns on the device."""
    return max(sizes.values()) if table == "diffusion.instruct.weights" else sum(sizes.values())


def main() -> None:
    """Print a row for each network, and the sum with the server's cache."""
    profile = load_profile(PROFILE)
    statements = stated(profile)
    for table, sizes in gigabytes_by_table(profile).items():
        print(f"{table:30} {computed(table, sizes):5.2f} GB, stated {statements[table]:.1f}")
        for name, size in sizes.items():
            print(f"    {name:26} {size:5.2f}")
    cache = profile.caption.server.cache if profile.caption.server else None
    print(f"{'key-value cache':30} {cache.gigabytes if cache else 0:5.2f} GB, of a card of {CARD:.0f}")


if __name__ == "__main__":
    main()
