"""Models under test that use much memory, never end, answer nonsense, or describe more than they hold."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
from onnx import GraphProto, NodeProto, TensorProto, helper, numpy_helper

CLASSES = ["a", "b", "c"]
SIDE = 4
DESCRIPTION = json.dumps({"classes": CLASSES, "preprocessing": {"height": SIDE, "width": SIDE}}).encode()
_PRODUCT_SIDE = 1500
_PRODUCTS = 5_000  # of matrices, a tenth of a second each


def onnx_package(nodes: Sequence[NodeProto], constants: Mapping[str, object]) -> dict[str, bytes]:
    """pixels (batch × 3 × 4 × 4) → `logits` (batch × 3), by these nodes."""
    graph = helper.make_graph(
        list(nodes),
        "g",
        [helper.make_tensor_value_info("pixels", TensorProto.FLOAT, ["b", 3, SIDE, SIDE])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["b", 3])],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 17)])
    return {"model.onnx": bytes(model.SerializeToString()), "contrafact.json": DESCRIPTION}


def growing_with_the_batch() -> dict[str, bytes]:
    """Every image takes 9 GiB more: 147 GB for 16 of them, in under 400 bytes."""
    nodes = [
        helper.make_node("ReduceMean", ["pixels"], ["mean"], axes=[2, 3]),
        helper.make_node("Unsqueeze", ["mean", "axis"], ["column"]),
        helper.make_node("Expand", ["column", "shape"], ["giant"]),
        helper.make_node("ReduceMean", ["giant"], ["logits"], axes=[2], keepdims=0),
    ]
    return onnx_package(nodes, {"axis": np.array([2]), "shape": np.array([1, 1, 766_000_000])})


def growing_unseen() -> dict[str, bytes]:
    """The same, but its shape is computed from the pixels, so it cannot be inferred."""
    nodes = [
        helper.make_node("ReduceMax", ["pixels"], ["brightest"], keepdims=0),
        helper.make_node("Mul", ["brightest", "many"], ["length"]),
        helper.make_node("Cast", ["length"], ["count"], to=TensorProto.INT64),
        helper.make_node("Reshape", ["count", "one"], ["shape"]),
        helper.make_node("ConstantOfShape", ["shape"], ["giant"]),
        helper.make_node("ReduceMean", ["giant"], ["nothing"], keepdims=0),
        helper.make_node("ReduceMean", ["pixels"], ["mean"], axes=[2, 3], keepdims=0),
        helper.make_node("Add", ["mean", "nothing"], ["logits"]),
    ]
    return onnx_package(nodes, {"many": np.float32(4e9), "one": np.array([1])})


def _endless() -> list[NodeProto]:
    """`mean` (a number) → `late`, minutes later."""
    names = ["product0", *(f"product{number}" for number in range(1, _PRODUCTS))]
    products = [helper.make_node("MatMul", [last, "start"], [name]) for last, name in pairwise(names)]
    return [
        helper.make_node("Expand", ["mean", "square"], ["start"]),
        helper.make_node("Add", ["start", "start"], [names[0]]),
        *products,
        helper.make_node("ReduceMean", [names[-1]], ["late"], keepdims=0),
    ]


_ENDLESS_CONSTANTS = {"square": np.array([_PRODUCT_SIDE, _PRODUCT_SIDE])}


def never_ending() -> dict[str, bytes]:
    """Multiplies matrices for minutes, without a loop."""
    nodes = [
        helper.make_node("ReduceMean", ["pixels"], ["mean"], keepdims=0),
        *_endless(),
        helper.make_node("ReduceMean", ["pixels"], ["means"], axes=[2, 3], keepdims=0),
        helper.make_node("Add", ["means", "late"], ["logits"]),
    ]
    return onnx_package(nodes, _ENDLESS_CONSTANTS)


def never_ending_on_white() -> dict[str, bytes]:
    """As `never_ending`, but only for bright images, which the trial does not have."""

    def branch(name: str, nodes: Sequence[NodeProto], output: str) -> GraphProto:
        return helper.make_graph(
            list(nodes), name, [], [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)]
        )

    nodes = [
        helper.make_node("ReduceMean", ["pixels"], ["mean"], keepdims=0),
        helper.make_node("Greater", ["mean", "limit"], ["bright"]),
        helper.make_node(
            "If",
            ["bright"],
            ["late_or_not"],
            then_branch=branch("then", _endless(), "late"),
            else_branch=branch("else", [helper.make_node("Identity", ["limit"], ["soon"])], "soon"),
        ),
        helper.make_node("ReduceMean", ["pixels"], ["means"], axes=[2, 3], keepdims=0),
        helper.make_node("Add", ["means", "late_or_not"], ["logits"]),
    ]
    return onnx_package(nodes, {**_ENDLESS_CONSTANTS, "limit": np.float32(0.9)})


def looping() -> dict[str, bytes]:
    """A loop with a condition that stays true."""
    yes = helper.make_node("Identity", ["going"], ["goes"])
    body = helper.make_graph(
        [yes],
        "body",
        [
            helper.make_tensor_value_info("turn", TensorProto.INT64, []),
            helper.make_tensor_value_info("going", TensorProto.BOOL, []),
        ],
        [helper.make_tensor_value_info("goes", TensorProto.BOOL, [])],
    )
    nodes = [
        helper.make_node("Loop", ["", "true"], [], body=body),
        helper.make_node("ReduceMean", ["pixels"], ["logits"], axes=[2, 3], keepdims=0),
    ]
    return onnx_package(nodes, {"true": np.array(True)})


def not_a_number() -> dict[str, bytes]:
    """Answers NaN."""
    nodes = [
        helper.make_node("ReduceMean", ["pixels"], ["mean"], axes=[2, 3], keepdims=0),
        helper.make_node("Sub", ["mean", "two"], ["negative"]),
        helper.make_node("Sqrt", ["negative"], ["logits"]),
    ]
    return onnx_package(nodes, {"two": np.float32(2)})


def not_a_number_on_white() -> dict[str, bytes]:
    """Answers NaN to bright images, which the trial does not have."""
    nodes = [
        helper.make_node("ReduceMean", ["pixels"], ["mean"], axes=[2, 3], keepdims=0),
        helper.make_node("Sub", ["limit", "mean"], ["below"]),
        helper.make_node("Sqrt", ["below"], ["logits"]),
    ]
    return onnx_package(nodes, {"limit": np.float32(0.9)})


def segmenter_not_a_number_on_white() -> dict[str, bytes]:
    """A segmenter that answers NaN to bright images, which the trial does not have."""
    nodes = [
        helper.make_node("ReduceMean", ["pixels"], ["mean"], axes=[2, 3]),
        helper.make_node("Sub", ["limit", "mean"], ["below"]),
        helper.make_node("Sqrt", ["below"], ["root"]),
        helper.make_node("Add", ["pixels", "root"], ["logits"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("pixels", TensorProto.FLOAT, ["b", 3, SIDE, SIDE])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["b", 3, SIDE, SIDE])],
        [numpy_helper.from_array(np.array(0.9, np.float32), "limit")],
    )
    model = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 17)])
    description = {**json.loads(DESCRIPTION), "kind": "segmentation"}
    return {"model.onnx": bytes(model.SerializeToString()), "contrafact.json": json.dumps(description).encode()}


def brightness() -> dict[str, bytes]:
    """A harmless model."""
    node = helper.make_node("ReduceMean", ["pixels"], ["logits"], axes=[2, 3], keepdims=0)
    return onnx_package([node], {})


CONFIGS: dict[str, dict[str, object]] = {
    "a billion layers": {"model_type": "vit", "num_hidden_layers": 1_000_000_000},
    "a million layers": {
        "model_type": "vit",
        "num_hidden_layers": 1_000_000,
        "num_attention_heads": 1,
        "hidden_size": 8,
        "intermediate_size": 8,
    },
    "wide layers": {"model_type": "vit", "hidden_size": 768_000, "num_attention_heads": 12},
    "a billion classes": {"model_type": "resnet", "num_labels": 1_000_000_000},
    "deep stages": {"model_type": "resnet", "depths": [900_000, 900_000], "hidden_sizes": [8, 16], "embedding_size": 8},
}
"""Changes of a small model's config.json that describe more than its weights hold."""

PADS_TO_MULTIPLES_OF_128 = json.dumps({"image_processor_type": "Swin2SRImageProcessor", "size_divisor": 128}).encode()
"""Preprocessing that keeps the size of an image, except that small images all get one size."""
