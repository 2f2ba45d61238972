"""Image classifiers and semantic segmenters as one ONNX file, run by onnxruntime."""

from __future__ import annotations

import ast
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import onnx
import onnxruntime
import torch
from numpy.typing import NDArray

from evaluator_service.models_under_test.hub import names_by_index
from evaluator_service.models_under_test.onnx_check import check_onnx, last_operator
from evaluator_service.models_under_test.outputs import NamedOutputs, output_of, softmax
from evaluator_service.models_under_test.preprocessing import Prepare, from_description, processors
from evaluator_service.models_under_test.segmentation import MAX_CLASSES, label_maps_of
from shared.chunks import chunks
from shared.images import Pixels
from shared.problems import InvalidInput
from shared.schemas.base import Kind
from shared.schemas.models import CONFIG_NAME, DESCRIPTION_NAME, ONNX_NAME, PROCESSOR_NAME, ModelDescription

_FLOATS: dict[str, type[np.floating]] = {"tensor(float)": np.float32, "tensor(float16)": np.float16}
_PROVIDERS = {"cuda": "CUDAExecutionProvider", "cpu": "CPUExecutionProvider"}
_ERRORS_ONLY = 3
_PROBE_OPSET, _PROBE_IR = 17, 8  # old enough for every onnxruntime
_OUTPUT_NAMES = ("logits", "probabilities", "out")  # torchvision's segmenters have "out" and "aux"
_CLASSIFIED = ("pictures", "classes")
_SEGMENTED = ("pictures", "classes", "height", "width")
_SAMPLE_SIDE = 97  # odd, and not the native size of any model


class OnnxClassifier:
    """An ONNX classifier under test: a batch of images in, one row of logits or probabilities per image out."""

    kind: ClassVar[Kind] = "classification"

    def __init__(self, folder: Path, description: ModelDescription, *, device: str) -> None:
        """Check and load `model.onnx` of a folder. Raises InvalidInput, and what onnxruntime raises."""
        self._file = _OnnxFile(folder, description, _CLASSIFIED, device)
        rows = np.concatenate([self._file.sample, self._file.rows(_trial_images())])
        self._output = output_of(rows, description.output, self._file.last_operator)
        names = _own_names(folder) or self._file.names
        self._outputs = NamedOutputs(rows.shape[1], names, description.classes)
        self.classes = self._outputs.classes

    def probabilities(self, images: Sequence[Pixels]) -> NDArray[np.float64]:
        """Images × classes, of RGB images of any sizes (height × width × 3)."""
        rows = self._file.rows(images)
        return self._outputs.merge(softmax(rows) if self._output == "logits" else rows.astype(np.float64))


class OnnxSegmenter:
    """An ONNX segmenter under test: logits (or probabilities) of each class, over the image at any resolution."""

    kind: ClassVar[Kind] = "segmentation"

    def __init__(self, folder: Path, description: ModelDescription, *, device: str) -> None:
        """As `OnnxClassifier`; preprocessing that crops is refused."""
        self._file = _OnnxFile(folder, description, _SEGMENTED, device)
        outputs = self._file.sample.shape[1]
        if outputs > MAX_CLASSES:
            raise InvalidInput(f"the segmenter has {outputs} classes; at most {MAX_CLASSES} are supported")
        self._outputs = NamedOutputs(outputs, _own_names(folder) or self._file.names, description.classes)
        self.classes = self._outputs.classes

    def label_maps(self, images: Sequence[Pixels]) -> list[NDArray[np.uint8]]:
        """Per image (height × width × 3) the index in `classes` of every pixel; see `ImageSegmenter.label_maps`."""
        logits = torch.from_numpy(self._file.rows(images)).float()
        return label_maps_of(logits, images, self._outputs.index_map())


class _OnnxFile:
    """A loaded file with its preprocessing; `sample` is its output for a grey image.

    `last_operator` computes its output; `names` are those of its classes in its metadata, if it has any.
    """

    def __init__(self, folder: Path, description: ModelDescription, shape: Sequence[str], device: str) -> None:
        """`shape` names the dimensions of its output."""
        data = (folder / ONNX_NAME).read_bytes()
        model = check_onnx(data)
        operators = {output.name: last_operator(model, output.name) for output in model.graph.output}
        self.names = _names_in_metadata(model)
        del model  # it is as large as the file
        self._session = _session(data, device)
        self._prepare, layout = preparation(folder, description, whole=shape == _SEGMENTED)
        prepared = self._prepare([sample_image()]).shape
        self._input, self._type, self._batch = _input(self._session, layout, prepared)
        self._output = _output_name(self._session)
        self.last_operator = operators[self._output]
        self._shape = shape
        self.sample = self.rows([sample_image()])

    def rows(self, images: Sequence[Pixels]) -> NDArray[np.floating]:
        """The outputs for RGB images of any sizes, images first. Raises InvalidInput for another shape."""
        inputs = self._prepare(images).astype(self._type)
        size = self._batch or len(inputs)
        return np.concatenate([self._run(chunk, size) for chunk in chunks(inputs, size)])

    def _run(self, inputs: NDArray[np.floating], size: int) -> NDArray[np.floating]:
        """Run a batch, padded with its last image if the model has a fixed batch size."""
        padded = np.concatenate([inputs, np.repeat(inputs[-1:], size - len(inputs), axis=0)])
        (rows,) = self._session.run([self._output], {self._input: padded})
        rows = np.asarray(rows)
        if rows.ndim != len(self._shape) or len(rows) != size or not np.issubdtype(rows.dtype, np.floating):
            raise InvalidInput(
                f"the model returns {rows.dtype} of shape {rows.shape} for {size} images; it must return floats, "
                f'{" × ".join(self._shape)} ("kind" says whether it classifies or segments)'
            )
        return rows[: len(inputs)]


def sample_image() -> Pixels:
    """A grey image of odd size."""
    return np.full((_SAMPLE_SIDE, _SAMPLE_SIDE, 3), 127, np.uint8)


def _trial_images() -> list[Pixels]:
    """Noise, noise of much contrast, and dark noise, which are tried beside a grey image."""
    noise = np.random.default_rng(0).integers(0, 256, (_SAMPLE_SIDE, _SAMPLE_SIDE, 3), dtype=np.uint8)
    return [noise, 255 * (noise // 128), noise // 8]


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
    value = onnx.helper.make_tensor_value_info("value", onnx.TensorProto.FLOAT, [1])
    result = onnx.helper.make_tensor_value_info("result", onnx.TensorProto.FLOAT, [1])
    graph = onnx.helper.make_graph([onnx.helper.make_node("Relu", ["value"], ["result"])], "probe", [value], [result])
    opset = onnx.helper.make_opsetid("", _PROBE_OPSET)
    model = onnx.helper.make_model(graph, opset_imports=[opset], ir_version=_PROBE_IR)
    return str(_session(model.SerializeToString(), device).get_providers()[0])


def _own_names(folder: Path) -> list[str] | None:
    """The names in the `config.json` that exporters write beside the file, if there is one."""
    path = folder / CONFIG_NAME
    labels = json.loads(path.read_bytes()).get("id2label") if path.is_file() else None
    return None if labels is None else names_by_index(labels)


def _names_in_metadata(model: onnx.ModelProto) -> list[str] | None:
    """The names of classes that Ultralytics' exports keep in the file: `names`, a dict by index, in Python's syntax."""
    text = next((entry.value for entry in model.metadata_props if entry.key == "names"), "")
    try:
        names = dict(ast.literal_eval(text))
        return [str(names[index]) for index in range(len(names))] or None
    except (SyntaxError, ValueError, TypeError, LookupError, MemoryError, RecursionError):  # another exporter's
        return None


def preparation(folder: Path, description: ModelDescription, whole: bool) -> tuple[Prepare, str]:
    """The model's preprocessing and the layout that it produces; `whole` refuses preprocessing that crops."""
    if description.preprocessing is not None:
        if whole and description.preprocessing.fit == "crop":
            raise InvalidInput('a segmenter needs the whole image; set "fit": "stretch" in its preprocessing')
        return from_description(description.preprocessing), description.preprocessing.layout
    if (folder / PROCESSOR_NAME).is_file():
        return processors(str(folder), whole=whole), "nchw"
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


def _output_name(session: Any) -> str:
    """The output to read: the only one, or the one with a known name."""
    names = [item.name for item in session.get_outputs()]
    readable = names if len(names) == 1 else [name for name in names if name in _OUTPUT_NAMES]
    if len(readable) != 1:
        raise InvalidInput(f"the model has the outputs {', '.join(names)}; keep one, or name it `logits`")
    return str(readable[0])
