"""The Open Inference Protocol (KServe's version 2, which Triton, MLServer and OpenVINO's server speak), over HTTP.

    POST .../v2/models/NAME/infer   {"inputs": [{"name", "shape", "datatype", "data"}]}
    200                             {"outputs": [{"name", "shape", "datatype", "data"}, ...]}

With the extension for binary tensors, `data` is left out: the values follow the JSON, whose length is in the header
`Inference-Header-Content-Length`. Specification: https://kserve.github.io/website/docs/concepts/architecture/data-plane
"""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field, ValidationError

HEAD_LENGTH = "Inference-Header-Content-Length"
_TYPES: dict[str, str] = {
    "BOOL": "?",
    "FP16": "<f2",
    "FP32": "<f4",
    "FP64": "<f8",
    **{
        f"{sign}INT{bits}": f"<{letter}{bits // 8}"
        for sign, letter in (("", "i"), ("U", "u"))
        for bits in (8, 16, 32, 64)
    },
}


class _Parameters(BaseModel):
    binary_data_size: int | None = None


class _Tensor(BaseModel):
    name: str
    shape: list[int]
    datatype: str
    data: Any = None
    parameters: _Parameters = Field(default_factory=_Parameters)


class _Reply(BaseModel):
    outputs: list[_Tensor]


def request(name: str, images: NDArray[np.float32], *, binary: bool) -> tuple[bytes, dict[str, str]]:
    """Body and headers of a request for one input."""
    tensor: dict[str, Any] = {"name": name, "shape": list(images.shape), "datatype": "FP32"}
    if not binary:
        content = json.dumps({"inputs": [tensor | {"data": images.ravel().tolist()}]}).encode()
        return content, {"Content-Type": "application/json"}
    values = images.astype("<f4").tobytes()
    tensor["parameters"] = {"binary_data_size": len(values)}
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    return head + values, {"Content-Type": "application/octet-stream", HEAD_LENGTH: str(len(head))}


def read(body: bytes, head_length: str, images: int) -> dict[str, NDArray[Any]]:
    """The outputs of a reply, by name. Raises ValueError for other replies, and for outputs of NaN or infinity."""
    length = int(head_length) if head_length.isascii() and head_length.isdigit() else len(body)
    try:
        reply = _Reply.model_validate_json(body[:length])
    except ValidationError as error:
        raise ValueError('did not return {"outputs": [{"name", "shape", "datatype", "data"}, ...]}') from error
    rest, outputs = memoryview(body)[length:], dict[str, NDArray[Any]]()
    for tensor in reply.outputs:
        if tensor.datatype not in _TYPES:
            raise ValueError(
                f"returned the output {tensor.name!r} of datatype {tensor.datatype}; it must be of numbers"
            )
        size = tensor.parameters.binary_data_size
        outputs[tensor.name] = _array(tensor, None if size is None else bytes(rest[:size]))
        rest = rest[size or 0 :]
    if not outputs:
        raise ValueError(f"returned no outputs for {images} images")
    return outputs


def _array(tensor: _Tensor, values: bytes | None) -> NDArray[Any]:
    dtype = np.dtype(_TYPES[tensor.datatype])
    try:
        flat = np.array(tensor.data, dtype).ravel() if values is None else np.frombuffer(values, dtype)
    except (ValueError, TypeError, OverflowError) as error:
        raise ValueError(f"returned the output {tensor.name!r} with data that is not {tensor.datatype}") from error
    if any(side < 0 for side in tensor.shape) or flat.size != math.prod(tensor.shape):
        raise ValueError(f"returned {flat.size} values of the output {tensor.name!r} of shape {tensor.shape}")
    if not np.isfinite(flat).all():
        raise ValueError(f"returned NaN or infinity in the output {tensor.name!r}")
    return flat.reshape(tensor.shape)
