"""Load a UNet: the base's, or a whole one in its place, with LoRAs merged into it.

A whole UNet is a folder in the Hub's layout, or one safetensors file with diffusers' keys, loaded as SDXL-Lightning's
model card shows. LoRA files have keys as diffusers writes them or as kohya's trainer does (`lora_unet_...`, the layout
of the published ones); diffusers converts them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from diffusers import UNet2DConditionModel
from diffusers.loaders import StableDiffusionXLLoraLoaderMixin
from diffusers.utils import convert_unet_state_dict_to_peft
from huggingface_hub.constants import HF_HUB_OFFLINE
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from diffusion_service.loading import for_inference, load_network, local_file, read_json
from shared.profiles.unets import InputLayer, Lora, WholeUNet
from shared.profiles.weights import Dtype, Weights
from shared.service.load_progress import reading

# The configuration values of a UNet that ControlNets and text encoders depend on.
_SHARED_CONFIG = (
    "in_channels",
    "out_channels",
    "block_out_channels",
    "layers_per_block",
    "cross_attention_dim",
    "addition_embed_type",
    "time_cond_proj_dim",
)


def load_unet(base: Weights, unet: WholeUNet | None, loras: Sequence[Lora], device: str) -> UNet2DConditionModel:
    """Load `unet`, or else the base's own, and merge `loras` into it in their order.

    Raises ValueError for weights that do not fit the base, OSError if files are missing.
    """
    if unet is None:
        network: UNet2DConditionModel = load_network(UNet2DConditionModel, base, "unet", device)
    else:
        with reading(unet):
            network = whole_unet(unet, read_json(base, "unet/config.json"), base.dtype, device)
    for lora in loras:
        with reading(lora):
            network = merge(lora, network)
    return network


def whole_unet(weights: WholeUNet, config: Mapping[str, Any], dtype: Dtype, device: str) -> UNet2DConditionModel:
    """Load a UNet of the layout that the base's `config` describes, in `dtype`. Raises as `load_unet` does."""
    if weights.file is not None:
        return _from_file(weights, weights.file, config, dtype, device)
    network: UNet2DConditionModel = load_network(UNet2DConditionModel, weights, "", device)
    _check_layout(weights, network.config, config)
    return network


def _check_layout(weights: WholeUNet, config: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    different = [name for name in _SHARED_CONFIG if config.get(name) != expected.get(name)]
    if different:
        differences = "; ".join(f"{name} is {config.get(name)}, base's {expected.get(name)}" for name in different)
        raise ValueError(f"the UNet {weights.id} does not have the layout of base: {differences}")


def _from_file(
    weights: WholeUNet, file: str, config: Mapping[str, Any], dtype: Dtype, device: str
) -> UNet2DConditionModel:
    with torch.device("meta"):  # parameters without storage, because the file's parameters replace them
        unet: UNet2DConditionModel = UNet2DConditionModel.from_config(config)
    state = _safetensors(weights, file)
    _check_parameters(f"{file} of {weights.id}", state, unet.state_dict())
    unet.load_state_dict(state, strict=True, assign=True)
    return for_inference(unet.to(device, getattr(torch, dtype)))


def _check_parameters(name: str, state: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Raise ValueError unless a file has the parameters of the base's UNet. torch would list all differences."""
    if missing := sorted(set(expected) - set(state)):
        raise ValueError(
            f"{name} is not a UNet of base's layout: it lacks {missing[0]}; a LoRA is `few_step.lora` or one of `loras`"
        )
    if unknown := sorted(set(state) - set(expected)):
        raise ValueError(f"{name} is not a UNet of base's layout, which has no {unknown[0]}")
    for key, value in expected.items():
        if state[key].shape != value.shape:
            shapes = f"{key} is {tuple(state[key].shape)}, base's {tuple(value.shape)}"
            raise ValueError(f"{name} is not a UNet of base's layout: {shapes}")


def with_input_layer(layer: InputLayer, unet: UNet2DConditionModel, config: Mapping[str, Any]) -> UNet2DConditionModel:
    """A copy of a UNet with another first layer, whose input channels are those of `config`. Raises as `load_unet`."""
    name = f"{layer.file} of {layer.id}"
    first = _safetensors(layer, layer.file)
    if set(first) != {"conv_in.weight", "conv_in.bias"}:
        raise ValueError(f"{name} is not a first layer: it holds {', '.join(sorted(first)[:3]) or 'nothing'}")
    return copied(unet, config, {key: value.to(unet.device, unet.dtype) for key, value in first.items()}, name)


def copied(
    unet: UNet2DConditionModel,
    config: Mapping[str, Any],
    others: Mapping[str, Tensor] = MappingProxyType({}),
    name: str = "",
) -> UNet2DConditionModel:
    """A copy of a UNet for a `config`, with other parameters, of the file `name`, in place of some of its own.

    Raises ValueError for parameters that do not fit the config.
    """
    with torch.device("meta"):
        copy: UNet2DConditionModel = UNet2DConditionModel.from_config(config)
    state = {key: value.clone() for key, value in unet.state_dict().items()} | dict(others)
    _check_parameters(name, state, copy.state_dict())
    copy.load_state_dict(state, strict=True, assign=True)
    return for_inference(copy)


def _safetensors(weights: Weights, file: str) -> dict[str, Tensor]:
    """The tensors of one file of the weights. Raises ValueError if it is not a safetensors file."""
    try:
        return dict(load_file(local_file(weights, file)))
    except SafetensorError as error:
        raise ValueError(f"{file} of {weights.id} is not a safetensors file: {error}") from error


def merge(lora: Lora, unet: UNet2DConditionModel) -> UNet2DConditionModel:
    """The UNet with the LoRA added to its parameters. Raises ValueError for a LoRA that does not fit it."""
    state, alphas = StableDiffusionXLLoraLoaderMixin.lora_state_dict(
        lora.location,
        weight_name=lora.file,
        subfolder=lora.subfolder or None,
        revision=lora.hub_revision,
        unet_config=unet.config,
        use_safetensors=True,
        local_files_only=HF_HUB_OFFLINE,
    )
    _check_keys(lora, state, unet)
    # peft cannot add matrices of 8 bits.
    state = {key: value.float() if value.dtype.itemsize == 1 else value for key, value in state.items()}
    try:
        unet.load_lora_adapter(state, prefix="unet", network_alphas=alphas)
    except RuntimeError as error:
        raise ValueError(f"the LoRA {lora.id} does not fit base's UNet: {error}") from error
    unet.fuse_lora(lora_scale=lora.scale)
    unet.unload_lora()
    return for_inference(unet)


def _check_keys(lora: Lora, state: Mapping[str, Tensor], unet: UNet2DConditionModel) -> None:
    """Raise ValueError for a file that changes other networks, or modules that the UNet lacks: diffusers only warns."""
    modules = {f"unet.{name}" for name, _ in unet.named_modules()}
    keys = [key.partition(".lora_")[0] for key in convert_unet_state_dict_to_peft(dict(state))]
    unknown = sorted(set(keys) - modules)
    if unknown or not keys:
        reason = f"it has no {unknown[0]}" if unknown else "the file holds nothing"
        raise ValueError(f"{lora.file} of {lora.id} is no LoRA of base's UNet: {reason}")
