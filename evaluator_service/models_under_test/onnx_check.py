"""Check an ONNX file before it is run; each refusal names the offending tensor or operator.

It must be self-contained (external data would be a path on our disk), use only standard operators (no custom
libraries), and be bounded (no loops, whose running time is unknown).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from graphlib import CycleError, TopologicalSorter

import onnx
from google.protobuf.message import DecodeError
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto

from shared.problems import InvalidInput

STANDARD_DOMAINS = frozenset({"", "ai.onnx", "ai.onnx.ml"})
_RESHAPING = frozenset({"Identity", "Cast", "Flatten", "Reshape", "Squeeze", "Unsqueeze", "Gather", "Slice"})
MAX_OPERATORS = 100_000  # the largest published vision models have under 20,000
Operator = tuple[str, str]  # domain and name
UNBOUNDED = frozenset({"Loop", "Scan", "SequenceMap"})


def check_onnx(data: bytes) -> ModelProto:
    """The model in a file. Raises InvalidInput unless it is self-contained, of standard, bounded operators."""
    try:
        model = onnx.load_model_from_string(data)
    except DecodeError as error:
        raise InvalidInput("model.onnx is not an ONNX file, or is damaged; export the model again") from error
    if not model.graph.node:
        raise InvalidInput("model.onnx has no operators; export the model again")
    for tensor in _tensors(model):
        if tensor.data_location == TensorProto.EXTERNAL or tensor.external_data:
            raise InvalidInput(
                f"the tensor {tensor.name!r} keeps its data in another file; save the model with everything inside "
                "(onnx.save_model(..., save_as_external_data=False))"
            )
    _refuse_expanding(model)
    local = {(function.domain, function.name) for function in model.functions}
    for node in _nodes(model):
        if node.domain not in STANDARD_DOMAINS and (node.domain, node.op_type) not in local:
            raise InvalidInput(
                f"the operator {node.op_type!r} of {node.domain!r} is not part of the ONNX standard; export the model "
                "with standard operators only"
            )
        if node.op_type in UNBOUNDED and node.domain in STANDARD_DOMAINS:
            raise InvalidInput(f"the operator {node.op_type!r} may run for ever; export the model with loops unrolled")
    return model


def _refuse_expanding(model: ModelProto) -> None:
    """Raise InvalidInput for a graph of too many operators, counted as onnxruntime runs it: with its calls replaced."""
    bodies: defaultdict[Operator, Counter[Operator]] = defaultdict(Counter)
    for function in model.functions:
        nodes = [*function.node, *(node for graph in _inside(function.node) for node in graph.node)]
        bodies[_named(function.domain, function.name)].update(_named(node.domain, node.op_type) for node in nodes)
    try:
        order = list(
            TopologicalSorter({name: body.keys() & bodies.keys() for name, body in bodies.items()}).static_order()
        )
    except CycleError as error:
        raise InvalidInput("a function of the model calls itself; export the model without recursion") from error
    sizes: dict[Operator, int] = {}
    for name in order:
        sizes[name] = min(MAX_OPERATORS + 1, sum(n * sizes.get(part, 1) for part, n in bodies[name].items()))
    total = sum(sizes.get(_named(node.domain, node.op_type), 1) for graph in _graphs(model) for node in graph.node)
    if total > MAX_OPERATORS:
        raise InvalidInput(
            f"the model has more than {MAX_OPERATORS:,} operators once its functions are expanded; export a smaller one"
        )


def _named(domain: str, name: str) -> Operator:
    """An operator's or a function's name; the standard domain has two names."""
    return ("" if domain == "ai.onnx" else domain, name)


def last_operator(model: ModelProto, output: str) -> str:
    """The type of the operator that computes an output's values; what only reshapes, copies or picks is passed over."""
    makers = {name: node for node in model.graph.node for name in node.output}
    node = makers.pop(output, None)
    while node is not None and node.op_type in _RESHAPING and node.input:
        node = makers.pop(node.input[0], None)  # a file may hold a circle
    return "" if node is None else node.op_type


def _nodes(model: ModelProto) -> Iterator[NodeProto]:
    for graph in _graphs(model):
        yield from graph.node
    for function in model.functions:
        yield from function.node
        for inner in _inside(function.node):
            yield from inner.node


def _graphs(model: ModelProto) -> Iterator[GraphProto]:
    yield model.graph
    yield from _inside(model.graph.node)


def _inside(nodes: Iterable[NodeProto]) -> Iterator[GraphProto]:
    """All graphs in the attributes of nodes, recursively; protobuf bounds the depth."""
    for attribute in _attributes(nodes):
        for graph in [*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])]:
            yield graph
            yield from _inside(graph.node)


def _tensors(model: ModelProto) -> Iterator[TensorProto]:
    for graph in _graphs(model):
        yield from graph.initializer
        for sparse in graph.sparse_initializer:
            yield from (sparse.values, sparse.indices)
    for attribute in _attributes(_nodes(model)):
        yield from [attribute.t] if attribute.HasField("t") else []
        yield from attribute.tensors
        for sparse in [
            *attribute.sparse_tensors,
            *([attribute.sparse_tensor] if attribute.HasField("sparse_tensor") else []),
        ]:
            yield from (sparse.values, sparse.indices)


def _attributes(nodes: Iterable[NodeProto]) -> Iterator[AttributeProto]:
    for node in nodes:
        yield from node.attribute
