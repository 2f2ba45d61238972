"""Refuse an ONNX file if a tensor's declared or inferred size exceeds the memory limit.

onnxruntime computes constant parts of a graph while it loads it, so this check runs before a session is created. For
tensors whose size cannot be inferred, only the limits of the process apply.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import ModelProto, TensorProto, ValueInfoProto

from evaluator_service.models_under_test.onnx_check import check_onnx
from evaluator_service.models_under_test.onnx_models import preparation, sample_image
from shared.problems import OutOfMemory
from shared.schemas.models import ONNX_NAME, ModelDescription

MEBIBYTE = 1024**2
_SHAPE_BYTES = 4096  # constants that are shapes are smaller
_CONTENT = ("raw_data", "float_data", "int32_data", "int64_data", "double_data", "uint64_data")


@dataclass(frozen=True, slots=True)
class TensorBound:
    """No tensor may take more than `max_bytes` for a batch of `max_batch` images."""

    max_batch: int
    max_bytes: int


def refuse_large_tensors(folder: Path, description: ModelDescription, bound: TensorBound) -> None:
    """Infer the shapes of the ONNX model in a folder.

    Raises OutOfMemory for a tensor beyond the bound, and what `check_onnx` and `preparation` raise.
    """
    data = (folder / ONNX_NAME).read_bytes()
    model = check_onnx(data)
    prepare, _ = preparation(folder, description, whole=False)
    shape = (bound.max_batch, *prepare([sample_image()]).shape[1:])
    _drop_contents(model)
    _fix_inputs(model, shape)
    try:
        graph = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
    except onnx.shape_inference.InferenceError:  # no shape can be inferred
        return
    for value in [*graph.input, *graph.value_info, *graph.output]:
        size = _bytes(value)
        if size > bound.max_bytes:
            dimensions = " × ".join(str(dim.dim_value or "?") for dim in value.type.tensor_type.shape.dim)
            raise OutOfMemory(f"the tensor {value.name[:100]!r} of {dimensions} takes {size // MEBIBYTE:,} MiB")


def _drop_contents(model: ModelProto) -> None:
    """Remove the weights; shape inference needs only types, shapes and small constants."""
    for tensor in model.graph.initializer:
        if tensor.ByteSize() > _SHAPE_BYTES:
            for field in _CONTENT:
                tensor.ClearField(field)


def _fix_inputs(model: ModelProto, shape: Sequence[int]) -> None:
    """Give the free dimensions of the images their sizes."""
    constants = {tensor.name for tensor in model.graph.initializer}
    for value in model.graph.input:
        dimensions = value.type.tensor_type.shape.dim
        if value.name not in constants and len(dimensions) == len(shape):
            for dimension, size in zip(dimensions, shape, strict=True):
                if not dimension.HasField("dim_value"):
                    dimension.dim_value = size


def _bytes(value: ValueInfoProto) -> int:
    """The bytes of a tensor, with 1 for unknown dimensions."""
    tensor = value.type.tensor_type
    if tensor.elem_type in (TensorProto.UNDEFINED, TensorProto.STRING):
        return 0
    item = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)).itemsize
    return int(item * math.prod(max(1, dimension.dim_value) for dimension in tensor.shape.dim))
