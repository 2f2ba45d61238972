"""Classifiers under test in the evaluator: ONNX files, preprocessing, names of outputs, incomplete models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from evaluator_service.models_under_test.kinds import KINDS
from evaluator_service.models_under_test.kinds.classification import ImageClassifier, OnnxClassifier
from evaluator_service.models_under_test.loading import load_folder, try_out
from evaluator_service.models_under_test.onnx_file import check_onnx
from evaluator_service.models_under_test.outputs import NamedOutputs
from evaluator_service.models_under_test.preprocessing import from_description, processors
from shared.problems import InvalidInput
from shared.schemas.base import Kind
from shared.schemas.models import Preprocessing
from tests.support.model_folders import PICTURES, RANDOM, written
from tests.support.small_evaluator import CLASSES
from tests.support.small_packages import changed, exported, onnx_files


def classifier(folder: Path) -> ImageClassifier | OnnxClassifier:
    model = load_folder(folder, device="cpu")
    assert isinstance(model, ImageClassifier | OnnxClassifier)
    try_out(model)
    return model


def tiny(
    nodes: list[onnx.NodeProto], *, weights: onnx.TensorProto | None = None, channels: int = 3, **more: Any
) -> bytes:
    """pixels (batch × channels × 4 × 4) → `logits`, by these nodes."""
    weight = weights or numpy_helper.from_array(np.ones((16 * channels, 3), np.float32), "weight")
    graph = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info("pixels", TensorProto.FLOAT, ["batch", channels, 4, 4])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 3])],
        [weight],
    )
    return bytes(helper.make_model(graph, ir_version=10, **more).SerializeToString())


FLATTEN = helper.make_node("Flatten", ["pixels"], ["flat"])
GEMM = helper.make_node("Gemm", ["flat", "weight"], ["logits"])
OPSETS = [helper.make_opsetid("", 17)]


def test_every_kind_has_its_file() -> None:
    assert set(KINDS) == set(get_args(Kind))


def test_an_onnx_export_predicts_what_the_model_predicts(resnet: Path, tmp_path: Path) -> None:
    names = {"classes": CLASSES}
    model = load_folder(resnet, device="cpu")
    assert isinstance(model, ImageClassifier)
    expected = model.run(PICTURES)
    with_processor = classifier(written(tmp_path / "a", onnx_files(resnet), **names))
    assert np.allclose(with_processor.run(PICTURES), expected, atol=1e-6)
    fixed = {
        "model.onnx": exported(resnet, batch=2),
        "preprocessor_config.json": onnx_files(resnet)["preprocessor_config.json"],
    }
    in_pairs = classifier(written(tmp_path / "b", fixed, **names))
    assert np.allclose(in_pairs.run(PICTURES), expected, atol=1e-6), "three pictures in batches of two"
    config = json.loads((resnet / "preprocessor_config.json").read_text())
    how = {"height": 64, "width": 64, "fit": "crop", "mean": config["image_mean"], "std": config["image_std"]}
    resample = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic"}[config["resample"]]
    sidecar = {"preprocessing": {**how, "resample": resample}, **names}
    described_model = classifier(written(tmp_path / "c", {"model.onnx": exported(resnet)}, **sidecar))
    assert np.allclose(described_model.run(PICTURES[2:]), expected[2:], atol=1e-5), "64 × 64: nothing is cut"


def test_preprocessing_follows_its_description() -> None:
    image = RANDOM.integers(0, 256, (20, 40, 3), dtype=np.uint8)
    how = Preprocessing(height=20, width=40, mean=(0.5, 0.25, 0), std=(0.5, 1, 2), channels="bgr", layout="nhwc")
    (row,) = from_description(how)([image])
    expected = (image[..., ::-1] / 255 - np.array([0.5, 0.25, 0])) / np.array([0.5, 1, 2])
    assert np.allclose(row, expected, atol=1e-6)
    cut = from_description(Preprocessing(height=20, width=20, fit="crop"))([image])[0]
    assert np.allclose(cut.transpose(1, 2, 0), image[:, 10:30] / 255, atol=1e-6), "the middle, unscaled"
    assert from_description(Preprocessing(height=7, width=9))([image, image[:5]]).shape == (2, 3, 7, 9)
    thin = np.zeros((2, 100, 3), np.uint8)
    with pytest.raises(InvalidInput, match="too long and thin"):
        from_description(Preprocessing(height=4000, width=4000, fit="crop"))([thin])


def test_an_image_processor_that_makes_huge_images_is_refused(resnet: Path, tmp_path: Path) -> None:
    config = changed((resnet / "preprocessor_config.json").read_bytes(), size={"shortest_edge": 100_000})
    folder = written(tmp_path / "huge", {"preprocessor_config.json": config})
    with pytest.raises(InvalidInput, match="at most 4,096"):
        processors(str(folder))


def test_names_of_outputs() -> None:
    rows = np.array([[0.1, 0.2, 0.3, 0.4]])
    assert NamedOutputs(4, list("abcd"), None).classes == list("abcd")
    assert NamedOutputs(4, list("abcd"), list("wxyz")).classes == list("wxyz")
    merging = NamedOutputs(4, list("abcd"), {"car": [1, 3], "dog": 0})
    assert merging.classes == ["dog", "car", "c"]
    assert np.allclose(merging.merge(rows), [[0.1, 0.6, 0.3]])
    assert NamedOutputs(2, None, {"car": 1}).classes == ["output 0", "car"]
    refused: list[tuple[int, list[str] | None, Any, str]] = [
        (4, None, None, "without names"),
        (4, list("abcd"), ["a", "b"], "has 4 outputs, but `classes` names 2"),
        (4, list("abc"), None, "names 3 of them"),
        (4, list("abcd"), {"car": 4}, "outputs 0 to 3"),
        (4, list("abcd"), {"car": [1, 2], "bus": 2}, "to both 'car' and 'bus'"),
        (2, list("ab"), {"x": [0, 1]}, "only one class"),
    ]
    for outputs, names, classes, words in refused:
        with pytest.raises(InvalidInput, match=words):
            NamedOutputs(outputs, names, classes)
    merged = merging.merge(np.array([[np.nan, 0, 0, 1], [0.1, 0.2, 0.3, 0.4]]))
    assert np.isfinite(merged).all(axis=1).tolist() == [False, True], "NaN stays in its row"


def ending_in(operator: str, then: tuple[str, Any] = ("", 0.0), **attributes: Any) -> bytes:
    """Three outputs that differ, through this operator, and `then` perhaps another one with its second input."""
    weight = np.repeat(np.array([[0.1, -0.1, 0.05]], np.float32), 48, axis=0)
    columns: dict[str, Any] = {"axis": 1} if then[0] == "Gather" else {}
    nodes = [
        FLATTEN,
        helper.make_node("Gemm", ["flat", "weight"], ["scores"]),
        helper.make_node(operator, ["scores"], ["copied"], **attributes),
        helper.make_node("Constant", [], ["second"], value=numpy_helper.from_array(np.asarray(then[1]))),
        helper.make_node(then[0] or "Identity", ["copied", "second"][: 1 + bool(then[0])], ["logits"], **columns),
    ]
    return tiny(nodes, weights=numpy_helper.from_array(weight, "weight"), opset_imports=OPSETS)


def test_what_an_onnx_file_returns_is_seen_and_never_contradicted(tmp_path: Path) -> None:
    """A model that ends in Softmax was taken as one that returns logits: no probability was above 0.58."""
    three = {"classes": list("abc"), "preprocessing": {"height": 4, "width": 4}}
    white = [np.full((4, 4, 3), 255, np.uint8)]
    expected = np.exp([4.8, -4.8, 2.4]) / np.exp([4.8, -4.8, 2.4]).sum()
    for number, operator in enumerate(("Softmax", "LogSoftmax", "Identity")):
        model = classifier(written(tmp_path / str(number), {"model.onnx": ending_in(operator)}, **three))
        assert np.allclose(model.run(white), expected, atol=1e-5), operator
    refused: list[tuple[bytes, dict[str, Any], str]] = [
        (ending_in("Softmax"), {"output": "logits"}, "ends in Softmax.*to probabilities"),
        (ending_in("Identity"), {"output": "probabilities"}, "do not sum to 1.*to logits"),
        (ending_in("Softmax", axis=0), {}, "axis of Softmax"),
        (ending_in("Sigmoid"), {}, "ends in Sigmoid"),
        (ending_in("Softmax", then=("Gather", np.array([0, 2]))), {"classes": ["a", "c"]}, "all of its outputs"),
        (ending_in("Softmax", then=("Mul", np.float32(100))), {}, "sum to 100 .*without the factor"),
        (ending_in("Identity", then=("Gather", np.array([0]))), {}, "one output"),
        (ending_in("Identity", then=("Pow", np.float32(0))), {}, "answers 1 for each class"),
        (ending_in("LpNormalization", axis=0), {}, "beside another image"),
    ]
    for number, (data, description, words) in enumerate(refused):
        with pytest.raises(InvalidInput, match=words):
            classifier(written(tmp_path / f"refused {number}", {"model.onnx": data}, **{**three, **description}))


def test_models_of_grey_images(resnet: Path, tmp_path: Path) -> None:
    data = tiny([FLATTEN, GEMM], channels=1, opset_imports=OPSETS)
    how = {"height": 4, "width": 4, "mean": [0.5] * 3}
    with pytest.raises(InvalidInput, match='"channels": "grey"'):
        classifier(written(tmp_path / "rgb", {"model.onnx": data}, classes=list("abc"), preprocessing=how))
    grey = {**how, "channels": "grey"}
    classifier(written(tmp_path / "grey", {"model.onnx": data}, classes=list("abc"), preprocessing=grey))
    row = from_description(Preprocessing.model_validate(grey))([np.full((9, 9, 3), 255, np.uint8)])
    assert np.array_equal(row, np.full((1, 1, 4, 4), 0.5))
    with pytest.raises(ValueError, match="three times"):
        Preprocessing.model_validate({**grey, "std": [1, 2, 3]})
    config = (resnet / "preprocessor_config.json").read_bytes()
    written(tmp_path / "one", {"preprocessor_config.json": changed(config, image_mean=[0.5], image_std=[0.5])})
    assert processors(str(tmp_path / "one"), channels=1)(PICTURES[2:]).shape[:2] == (1, 1)
    with pytest.raises(InvalidInput, match="num_channels"):
        processors(str(resnet), channels=1)


def test_a_file_names_its_own_classes(tmp_path: Path) -> None:
    model = onnx.load_model_from_string(tiny([FLATTEN, GEMM], opset_imports=OPSETS))
    helper.set_model_props(model, {"names": "{0: 'car', 1: 'bus', 2: 'truck'}", "task": "classify"})
    files = {"model.onnx": model.SerializeToString()}
    how = {"preprocessing": {"height": 4, "width": 4}}
    assert classifier(written(tmp_path / "own", files, **how)).classes == ["car", "bus", "truck"]
    assert classifier(written(tmp_path / "given", files, classes=list("abc"), **how)).classes == list("abc")


def test_a_model_of_several_true_classes_is_refused(resnet: Path, tmp_path: Path) -> None:
    files = {path.name: path.read_bytes() for path in resnet.iterdir()}
    files["config.json"] = changed(files["config.json"], problem_type="multi_label_classification")
    with pytest.raises(InvalidInput, match="single_label_classification"):
        classifier(written(tmp_path, files))


def external() -> onnx.TensorProto:
    tensor = numpy_helper.from_array(np.ones((48, 3), np.float32), "weight")
    onnx.external_data_helper.set_external_data(tensor, "/etc/passwd")
    tensor.ClearField("raw_data")
    return tensor


def branching(inner: onnx.NodeProto) -> list[onnx.NodeProto]:
    """A branch with an operator inside."""
    out = [helper.make_tensor_value_info("inside", TensorProto.FLOAT, None)]
    graph = helper.make_graph([inner], "branch", [], out)
    yes = helper.make_node("Constant", [], ["yes"], value=numpy_helper.from_array(np.array(True), "yes"))
    return [yes, helper.make_node("If", ["yes"], ["unused"], then_branch=graph, else_branch=graph), FLATTEN, GEMM]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\x80\x04\x95nonsense", "not an ONNX file"),
        (b"", "no operators"),
        (tiny([FLATTEN, GEMM], weights=external()), "another file"),
        (tiny([helper.make_node("Evil", ["pixels"], ["logits"], domain="evil.ops")]), "'Evil' of 'evil.ops'"),
        (tiny([helper.make_node("Gelu", ["pixels"], ["logits"], domain="com.microsoft")]), "com.microsoft"),
        (tiny(branching(helper.make_node("Evil", [], ["inside"], domain="evil.ops"))), "'Evil' of 'evil.ops'"),
        (tiny(branching(helper.make_node("Constant", [], ["inside"], value=external()))), "in another file"),
        (tiny([helper.make_node("Loop", ["", ""], ["logits"])]), "'Loop' may run for ever"),
    ],
)
def test_onnx_files_that_reach_out_or_never_end_are_refused(data: bytes, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        check_onnx(data)


def test_functions_are_counted_as_they_expand() -> None:
    """2.2 kB with 2^33 calls cost 240 seconds before a limit ended them."""

    def function(name: str, called: list[str]) -> onnx.FunctionProto:
        domains = ["" if operator == "Identity" else "own" for operator in called]
        nodes = [
            helper.make_node(operator, ["x"], ["y" if not place else f"y{place}"], domain=domain)
            for place, (operator, domain) in enumerate(zip(called, domains, strict=True))
        ]
        return helper.make_function("own", name, ["x"], ["y"], nodes, [OPSETS[0], helper.make_opsetid("own", 1)])

    def calling(functions: list[onnx.FunctionProto]) -> bytes:
        nodes = [FLATTEN, GEMM, helper.make_node(functions[-1].name, ["flat"], ["unused"], domain="own")]
        return tiny(nodes, functions=functions, opset_imports=[*OPSETS, helper.make_opsetid("own", 1)])

    def nested(depth: int) -> list[onnx.FunctionProto]:
        return [function("f0", ["Identity"] * 2), *(function(f"f{n}", [f"f{n - 1}"] * 2) for n in range(1, depth))]

    assert len(calling(nested(33))) < 5_000
    check_onnx(calling(nested(10)))
    for functions, words in ((nested(33), "more than 100,000"), ([function("f0", ["f0"])], "calls itself")):
        with pytest.raises(InvalidInput, match=words):
            check_onnx(calling(functions))


def test_an_onnx_file_is_a_classifier_of_pictures_or_refused(tmp_path: Path) -> None:
    prepared = {"preprocessing": {"height": 4, "width": 4}}
    fine = tiny([FLATTEN, GEMM], opset_imports=OPSETS)
    model = classifier(written(tmp_path / "fine", {"model.onnx": fine}, classes=list("abc"), **prepared))
    assert np.allclose(model.run(PICTURES).sum(axis=1), 1)
    cases: list[tuple[bytes, dict[str, Any], str]] = [
        (fine, {"classes": ["a", "b"], **prepared}, "has 3 outputs, but `classes` names 2"),
        (fine, prepared, "without names"),
        (fine, {"classes": list("abc")}, "the preprocessing"),
        (fine, {"classes": list("abc"), "preprocessing": {"height": 9, "width": 4}}, "4 × 4 pixels .* makes 9 × 4"),
        (fine, {"classes": list("abc"), "output": "probabilities", **prepared}, "do not sum to 1"),
        (fine, {"classes": list("abc"), "preprocessing": {"height": 4, "width": 4, "layout": "nhwc"}}, "4 channels"),
        (
            tiny([helper.make_node("Identity", ["pixels"], ["logits"])], opset_imports=OPSETS),
            prepared,
            "cannot be loaded|classes",
        ),
        (fine[:200], {"classes": list("abc"), **prepared}, "ONNX file|cannot be loaded"),
    ]
    for number, (data, description, words) in enumerate(cases):
        with pytest.raises(InvalidInput, match=words):
            classifier(written(tmp_path / str(number), {"model.onnx": data}, **description))


def test_an_incomplete_hub_model_is_refused_rather_than_initialised_at_random(resnet: Path, tmp_path: Path) -> None:
    files = {path.name: path.read_bytes() for path in resnet.iterdir()}
    deeper = changed(files["config.json"], depths=[1, 2])
    with pytest.raises(InvalidInput, match="another shape"):
        load_folder(written(tmp_path / "deeper", {**files, "config.json": deeper}), device="cpu")
    timm = json.dumps({"architecture": "resnet18", "pretrained_cfg": {"input_size": [3, 64, 64]}}).encode()
    with pytest.raises(InvalidInput, match=r"contrafact\[timm\]"):
        load_folder(written(tmp_path / "timm", {**files, "config.json": timm}), device="cpu")
    llama = changed(files["config.json"], model_type="llama", architectures=["LlamaForCausalLM"])
    with pytest.raises(InvalidInput, match="cannot be loaded") as caught:
        load_folder(written(tmp_path / "llama", {**files, "config.json": llama}), device="cpu")
    assert str(tmp_path) not in caught.value.detail, "no path of this machine"
    with pytest.raises(InvalidInput, match=r"contrafact\.json: .*klasses"):
        load_folder(written(tmp_path / "unknown", files, klasses=["a"]), device="cpu")
