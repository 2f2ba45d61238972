"""A background remover without training: what is bright is the object."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

SIDE = 64
STEEPNESS, MIDDLE = 20.0, 0.5  # of the sigmoid over the mean of the channels


def write_remover(path: Path) -> str:
    """Write the ONNX file; its SHA-256."""
    shape = [1, 1, SIDE, SIDE]
    weight = np.full((1, 3, 1, 1), STEEPNESS / 3, np.float32)
    constants = {"weight": weight, "bias": np.array([-STEEPNESS * MIDDLE], np.float32)}
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["picture", "weight", "bias"], ["logit"]),
            helper.make_node("Sigmoid", ["logit"], ["opacity"]),
            helper.make_node("Identity", ["logit"], ["side output"]),
        ],
        "bright things",
        [helper.make_tensor_value_info("picture", TensorProto.FLOAT, [1, 3, SIDE, SIDE])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ("opacity", "side output")],
        [numpy_helper.from_array(values, name) for name, values in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save_model(model, path)
    return hashlib.sha256(path.read_bytes()).hexdigest()


def remover_table(source: str, sha256: str) -> str:
    """`[diffusion.background_remover]` of a profile; `source` names folder or repository of its `model.onnx`."""
    return (
        f'[diffusion.background_remover]\n{source}\nsha256 = "{sha256}"\nlicence = "none"\ngigabytes = 0.001\n'
        "mean = [0.0, 0.0, 0.0]\nstd = [1.0, 1.0, 1.0]\n"
    )
