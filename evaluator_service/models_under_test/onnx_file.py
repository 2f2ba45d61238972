"""One ONNX file: checked and bounded before it is run, then run by onnxruntime with its preprocessing.

It must be self-contained (external data would be a path on our disk), use only standard operators (no custom
libraries), and be free of loops, whose running time is unknown. Each refusal names the offending tensor or operator.

onnxruntime computes constant parts of a graph while it loads it, so declared and inferred sizes of tensors are compared
with the memory limit before a session is created. For tensors whose size cannot be inferred, only the limits of the
process apply.
"""

from __future__ import annotations

import ast
import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from google.protobuf.message import DecodeError
from numpy.typing import NDArray
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto

from evaluator_service.models_under_test.hub import names_by_index
from evaluator_service.models_under_test.preprocessing import Prepare, from_description, processors
from shared.chunks import chunks
from shared.media.images import Pixels
from shared.problems import InvalidInput, OutOfMemory
from shared.schemas.models import CONFIG_NAME, DESCRIPTION_NAME, ONNX_NAME, PROCESSOR_NAME, ModelDescription

STANDARD_DOMAINS = frozenset({"", "ai.onnx", "ai.onnx.ml"})
_RESHAPING = frozenset({"Identity", "Cast", "Flatten", "Reshape", "Squeeze", "Unsqueeze", "Gather", "Slice"})
MAX_OPERATORS = 100_000  # the largest published vision models have under 20,000
Operator = tuple[str, str]  # domain and name
Tensors = dict[str, NDArray[Any]]
UNBOUNDED = frozenset({"Loop", "Scan", "SequenceMap"})
MEBIBYTE = 1024**2
_SHAPE_BYTES = 4096  # constants that are shapes are smaller
_CONTENT = ("raw_data", "float_data", "int32_data", "int64_data", "double_data", "uint64_data")
_FLOATS: dict[str, type[np.floating]] = {"tensor(float)": np.float32, "tensor(float16)": np.float16}
_PROVIDERS = {"cuda": "CUDAExecutionProvider", "cpu": "CPUExecutionProvider"}
_ERRORS_ONLY = 3
_PROBE_OPSET, _PROBE_IR = 17, 8  # old enough for every onnxruntime
_OUTPUT_NAMES = ("logits", "probabilities", "out")  # torchvision's segmenters have "out" and "aux"
_SAMPLE_SIDE = 97  # odd, and not the native size of any model


class OnnxFile:
    """A loaded file with its preprocessing; `sample` is its output for a grey image.

    `last_operator` computes its output.
    """

    def __init__(
        self, folder: Path, description: ModelDescription, shape: Sequence[str], device: str, *, whole: bool = False
    ) -> None:
        """`shape` names the dimensions of its output, none those of a detector, which may have several outputs.

        `whole` refuses preprocessing that crops, and for a map (it has a `shape`) such that pads. Raises InvalidInput,
        and what onnxruntime raises.
        """
        data = (folder / ONNX_NAME).read_bytes()
        model = check_onnx(data)
        operators = {output.name: _last_operator(model, output.name) for output in model.graph.output}
        self._folder, self._names = folder, _names_in_metadata(model)
        self.metadata = {entry.key: entry.value for entry in model.metadata_props}
        del model  # it is as large as the file
        self._session = _session(data, device)
        self._prepare, self.layout = _preparation(folder, description, whole, pads=not shape)
        prepared = self._prepare([_sample_image()]).shape
        self._input, self._type, self._batch = _input(self._session, self.layout, prepared)
        self._outputs = [item.name for item in self._session.get_outputs()]
        self._shape = shape
        if shape:
            self._outputs = [output_name(self._outputs)]
            self.last_operator = operators[self._outputs[0]]
            self.sample = self.rows([_sample_image()])

    def names(self) -> list[str] | None:
        """The names of its outputs, from `config.json` beside it or else its metadata, if one of them has any."""
        return _own_names(self._folder) or self._names

    def rows(self, images: Sequence[Pixels]) -> NDArray[np.floating]:
        """The outputs for RGB images of any sizes, images first. Raises InvalidInput for another shape."""
        inputs = self._prepare(images).astype(self._type)
        size = self._batch or len(inputs)
        return np.concatenate([self._rows(chunk, size) for chunk in chunks(inputs, size)])

    def tensors(self, images: Sequence[Pixels]) -> Iterator[tuple[Sequence[Pixels], tuple[int, int], Tensors]]:
        """Batches of the images with height and width of the model's input, and all its outputs by name.

        Images whose inputs differ in size run one at a time.
        """
        each = [self._prepare([image]).astype(self._type) for image in images]
        size = 1 if self.varies else self._batch or len(each)
        for batch, inputs in zip(chunks(images, size), chunks(each, size), strict=True):
            sides = inputs[0].shape[2:] if self.layout == "nchw" else inputs[0].shape[1:3]
            yield batch, (sides[0], sides[1]), self._run(np.concatenate(inputs), self._batch or len(inputs))

    @cached_property
    def varies(self) -> bool:
        """Whether the model's input has the size of the image, or its proportions."""
        return (
            len({self._prepare([image]).shape for image in (_sample_image(), _sample_image()[: _SAMPLE_SIDE // 2])}) > 1
        )

    def _run(self, inputs: NDArray[np.floating], size: int) -> Tensors:
        """Run a batch, padded with its last image if the model has a fixed batch size."""
        padded = np.concatenate([inputs, np.repeat(inputs[-1:], size - len(inputs), axis=0)])
        outputs = self._session.run(self._outputs, {self._input: padded})
        return {name: np.asarray(array) for name, array in zip(self._outputs, outputs, strict=True)}

    def _rows(self, inputs: NDArray[np.floating], size: int) -> NDArray[np.floating]:
        """The one output for a batch; see `_run`."""
        (rows,) = self._run(inputs, size).values()
        if rows.ndim != len(self._shape) or len(rows) != size or not np.issubdtype(rows.dtype, np.floating):
            raise InvalidInput(
                f"the model returns {rows.dtype} of shape {rows.shape} for {size} images; it must return floats, "
                f'{" × ".join(self._shape)} ("kind" says what the model does)'
            )
        return rows[: len(inputs)]


def _sample_image() -> Pixels:
    """A grey image of odd size."""
    return np.full((_SAMPLE_SIDE, _SAMPLE_SIDE, 3), 127, np.uint8)


def trial_images() -> list[Pixels]:
    """The image of `OnnxFile.sample`, noise, noise of much contrast, and dark noise."""
    noise = np.random.default_rng(0).integers(0, 256, (_SAMPLE_SIDE, _SAMPLE_SIDE, 3), dtype=np.uint8)
    return [_sample_image(), noise, 255 * (noise // 128), noise // 8]


def _session(data: bytes, device: str) -> Any:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = _ERRORS_ONLY
    options.intra_op_num_threads = torch.get_num_threads()
    options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(data, options, providers=_providers(device))


def _providers(device: str) -> list[str]:
    preferred = [_PROVIDERS["cuda"], _PROVIDERS["cpu"]] if device.startswith("cuda") else [_PROVIDERS["cpu"]]
    available = onnxruntime.get_available_providers()
    return [name for name in preferred if name in available]


def onnx_provider(device: str) -> str:
    """onnxruntime's name of the provider that runs ONNX models on `device` (torch's name), found by running a model.

    onnxruntime's plain package computes on CPUs; its GPU package does so too if its CUDA libraries do not load.
    """
    value = onnx.helper.make_tensor_value_info("value", TensorProto.FLOAT, [1])
    result = onnx.helper.make_tensor_value_info("result", TensorProto.FLOAT, [1])
    graph = onnx.helper.make_graph([onnx.helper.make_node("Relu", ["value"], ["result"])], "probe", [value], [result])
    opset = onnx.helper.make_opsetid("", _PROBE_OPSET)
    model = onnx.helper.make_model(graph, opset_imports=[opset], ir_version=_PROBE_IR)
    return str(_session(model.SerializeToString(), device).get_providers()[0])


def _own_names(folder: Path) -> list[str] | None:
    """The names in the `config.json` that exporters write beside the file, if there is one."""
    path = folder / CONFIG_NAME
    labels = json.loads(path.read_bytes()).get("id2label") if path.is_file() else None
    return None if labels is None else names_by_index(labels)


def _names_in_metadata(model: ModelProto) -> list[str] | None:
    """The names of classes that Ultralytics' exports keep in the file: `names`, a dict by index, in Python's syntax."""
    text = next((entry.value for entry in model.metadata_props if entry.key == "names"), "")
    try:
        names = dict(ast.literal_eval(text))
        return [str(names[index]) for index in range(len(names))] or None
    except (SyntaxError, ValueError, TypeError, LookupError, MemoryError, RecursionError):  # another exporter's
        return None


def _preparation(
    folder: Path, description: ModelDescription, whole: bool, *, pads: bool = False
) -> tuple[Prepare, str]:
    """The model's preprocessing and the layout that it produces; `whole` refuses preprocessing that crops."""
    if description.preprocessing is not None:
        fit = description.preprocessing.fit
        if whole and fit != "stretch" and not (pads and fit.startswith("letterbox")):
            raise InvalidInput(
                'the model needs the whole image; set "fit": "stretch" in its preprocessing (a detector may also have '
                '"letterbox")'
            )
        return from_description(description.preprocessing), description.preprocessing.layout
    if (folder / PROCESSOR_NAME).is_file():
        return processors(str(folder), whole=whole, pads=pads), "nchw"
    raise InvalidInput(
        "the preprocessing of this model's input is missing; give `preprocessing` in the spec or in "
        f"{DESCRIPTION_NAME}, or put the {PROCESSOR_NAME} of its image processor beside the file"
    )


def _input(session: Any, layout: str, prepared: Sequence[int]) -> tuple[str, type[np.floating], int]:
    """Name and type of the one input, and its fixed batch size (0: any). `prepared`: the shape of a batch for it."""
    inputs = session.get_inputs()
    if len(inputs) != 1 or inputs[0].type not in _FLOATS or len(inputs[0].shape) != 4:
        actual = ", ".join(f"{item.name} {item.type} {item.shape}" for item in inputs)
        raise InvalidInput(f"the model must have one input, a batch of float pictures of 4 dimensions; it has {actual}")
    place, sides = (1, (2, 3)) if layout == "nchw" else (3, (1, 2))
    batch, channels = inputs[0].shape[0], inputs[0].shape[place]
    if isinstance(channels, int) and channels != prepared[place]:
        remedy = {
            1: 'give its `preprocessing` with "channels": "grey"',
            3: 'give its `preprocessing` with "channels": "rgb" or "bgr"',
        }.get(channels, "check the layout in its `preprocessing`, or export a model that takes RGB or grey images")
        raise InvalidInput(
            f"the model's input {inputs[0].shape} has {channels} channels in layout {layout}, and its images have "
            f"{prepared[place]}; {remedy}"
        )
    taken, made = ([shape[side] for side in sides] for shape in (inputs[0].shape, prepared))
    if any(isinstance(fixed, int) and fixed != size for fixed, size in zip(taken, made, strict=True)):
        raise InvalidInput(
            f"the model takes images of {taken[0]} × {taken[1]} pixels (height × width), and its preprocessing makes "
            f"{made[0]} × {made[1]}; correct the height and width there"
        )
    return inputs[0].name, _FLOATS[inputs[0].type], batch if isinstance(batch, int) else 0


def output_name(outputs: Iterable[str]) -> str:
    """The output to read: the only one, or the one with a known name. Raises InvalidInput."""
    names = list(outputs)
    readable = names if len(names) == 1 else [name for name in names if name in _OUTPUT_NAMES]
    if len(readable) != 1:
        raise InvalidInput(f"the model has the outputs {', '.join(names)}; keep one, or name it `logits`")
    return readable[0]


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


def _last_operator(model: ModelProto, output: str) -> str:
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


@dataclass(frozen=True, slots=True)
class TensorBound:
    """No tensor may take more than `max_bytes` for a batch of `max_batch` images."""

    max_batch: int
    max_bytes: int


def refuse_large_tensors(folder: Path, description: ModelDescription, bound: TensorBound) -> None:
    """Infer the shapes of the ONNX model in a folder.

    Raises OutOfMemory for a tensor beyond the bound, and what `check_onnx` and `_preparation` raise.
    """
    data = (folder / ONNX_NAME).read_bytes()
    model = check_onnx(data)
    prepare, _ = _preparation(folder, description, whole=False)
    shape = (bound.max_batch, *prepare([_sample_image()]).shape[1:])
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
