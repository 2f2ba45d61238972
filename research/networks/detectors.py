"""Detectors of driving scenes under test: a small convolutional network without anchors, and its ONNX file.

Two heads on one trunk are two detectors. Every eighth pixel of an image of 128 answers centre, width and height of a
box in pixels and the score of each class, as Ultralytics' raw output: (batch, 4 + classes, 256).
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence
from itertools import pairwise
from typing import cast

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn

from tinyworld.roads.world import THINGS

SIDE, STRIDE = 128, 8
CELLS = SIDE // STRIDE
USUAL_SIZE = 20.0  # pixels, of an untrained network's boxes
_WIDTHS = (16, 24, 32, 40)
_HEAD = 32
_LARGEST_LOGARITHM = 3.0
_LARGE = 256  # values of a tensor from which on it is stored as 8-bit integers
_HALF_STEPS = 127
_OPSET, _IR = 17, 8


class _Block(nn.Sequential):
    """Convolution, normalisation, ReLU."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1, size: int = 3) -> None:
        super().__init__(
            nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()
        )


class _Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(_Block(width, width), _Block(width, width))

    def forward(self, values: Tensor) -> Tensor:
        return cast(Tensor, values + self.inner(values))


class Head(nn.Module):
    """What a detector answers, from the trunk's features: (batch, 4 + classes, cells)."""

    def __init__(self) -> None:
        super().__init__()
        self.block = _Block(_WIDTHS[2], _HEAD)
        self.answer = nn.Conv2d(_HEAD, 4 + len(THINGS), 1)
        nn.init.constant_(self.answer.bias[4:], -4.0)  # type: ignore[index]  # objects are rare
        places = (torch.arange(CELLS) + 0.5) * STRIDE
        rows, columns = torch.meshgrid(places, places, indexing="ij")
        self.register_buffer("places", torch.stack([columns, rows])[None])

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Boxes (centre, width, height in pixels) and logits of the classes, each batch × ... × cells × cells."""
        answer = self.answer(self.block(features)).float()
        centres = answer[:, :2] * STRIDE + self.places
        sizes = torch.exp(answer[:, 2:4].clamp(-_LARGEST_LOGARITHM, _LARGEST_LOGARITHM)) * USUAL_SIZE
        return torch.cat([centres, sizes], dim=1), answer[:, 4:]


class Detectors(nn.Module):
    """A trunk with one head for each detector of these names."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__()
        self.fine = nn.Sequential(
            _Block(3, _WIDTHS[0], 2),
            *(layer for one, other in pairwise(_WIDTHS[:3]) for layer in (_Block(one, other, 2), _Residual(other))),
        )
        self.coarse = nn.Sequential(
            _Block(_WIDTHS[2], _WIDTHS[3], 2),
            _Block(_WIDTHS[3], _WIDTHS[3]),
            _Block(_WIDTHS[3], _WIDTHS[2], size=1),
            nn.Upsample(scale_factor=2.0),
        )
        self.heads = nn.ModuleDict({name: Head() for name in names})

    def forward(self, pixel_values: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
        """Boxes and logits of each detector for RGB images of -1 to 1 (batch × 3 × 128 × 128)."""
        fine = self.fine(pixel_values)
        features = fine + self.coarse(fine)
        return {name: head(features) for name, head in self.heads.items()}


class _One(nn.Module):
    """One of the detectors, as its file answers."""

    def __init__(self, detectors: Detectors, name: str) -> None:
        super().__init__()
        self.detectors, self.name = detectors, name

    def forward(self, pixel_values: Tensor) -> Tensor:
        boxes, logits = self.detectors(pixel_values)[self.name]
        return torch.cat([boxes, torch.sigmoid(logits)], dim=1).flatten(2)


def as_onnx(detectors: Detectors, name: str) -> bytes:
    """One of the detectors as an ONNX file of 8-bit weights with a scale for each output channel."""
    output = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # this exporter is the old one, which needs no further library
        torch.onnx.export(
            _One(detectors, name).eval(),
            (torch.zeros(1, 3, SIDE, SIDE),),
            output,  # type: ignore[arg-type]  # this exporter writes to a buffer, too
            dynamo=False,
            opset_version=_OPSET,
            input_names=["pixel_values"],
            output_names=["boxes_and_scores"],
            dynamic_axes={"pixel_values": {0: "batch"}, "boxes_and_scores": {0: "batch"}},
        )
    return bytes(_in_8_bits(onnx.load_model_from_string(output.getvalue())).SerializeToString())


def _in_8_bits(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same with large weights as integers, which the runtime turns into floats as it loads the file."""
    graph, nodes = model.graph, []
    for tensor in list(graph.initializer):
        values = numpy_helper.to_array(tensor)
        if values.ndim != 4 or values.size < _LARGE:
            continue
        scale = np.abs(values).reshape(len(values), -1).max(axis=1) / _HALF_STEPS
        steps = np.round(values / np.maximum(scale, np.finfo(np.float32).tiny)[:, None, None, None]).astype(np.int8)
        graph.initializer.remove(tensor)
        graph.initializer.append(_constant(f"{tensor.name}.steps", steps))
        graph.initializer.append(_constant(f"{tensor.name}.scale", scale.astype(np.float32)))
        inputs = [f"{tensor.name}.steps", f"{tensor.name}.scale"]
        nodes.append(helper.make_node("DequantizeLinear", inputs, [tensor.name], axis=0))
    rest = list(graph.node)
    del graph.node[:]
    graph.node.extend([*nodes, *rest])
    model.ir_version = _IR
    onnx.checker.check_model(model)
    return model


def _constant(name: str, values: NDArray[np.generic]) -> TensorProto:
    return numpy_helper.from_array(values, name)
