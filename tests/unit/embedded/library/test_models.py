"""Models of a caller as models under test: the same probabilities, whatever the object is."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import onnx
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from transformers import ResNetConfig, ResNetForImageClassification, ViTImageProcessor, pipeline

from contrafact.testing import InProcessOptions
from embedded.library.datasets import ImageSet, read_dataset
from embedded.library.models import Alias, Upload, prepare_model
from evaluator_service.models_under_test.in_process import InProcessModel
from evaluator_service.models_under_test.kinds.classification import OnnxClassifier
from evaluator_service.models_under_test.loading import load_folder
from shared.media.images import Pixels
from shared.problems import InvalidInput
from shared.schemas.models import ModelDescription
from tests.support.jatic_metadata import write_jatic_metadata
from tests.support.model_folders import written

IMAGES = list(np.random.default_rng(3).integers(0, 256, (3, 8, 8, 3), dtype=np.uint8))
CLASSES = ["dark", "bright"]
DATASET = read_dataset([(image, "dark") for image in IMAGES], None, None)


def options(**changes: Any) -> InProcessOptions:
    values: dict[str, Any] = {
        **dict.fromkeys(InProcessOptions.__dataclass_fields__),
        "task": "tell dark from bright",
        "label_map": {},
        "inputs": "arrays",
        "kind": "classification",
        "name": "model",
        "classes": CLASSES,
    }
    return InProcessOptions(**{**values, **changes})


def bright(image: Pixels) -> float:
    return float(image.mean() / 255)


EXPECTED = np.array([[1 - bright(image), bright(image)] for image in IMAGES])


def in_process(model: object, images: ImageSet = DATASET, **changes: Any) -> InProcessModel:
    prepared = prepare_model(model, images, options(**changes))
    assert isinstance(prepared, InProcessModel)
    return prepared


def by_arrays(images: Sequence[Pixels]) -> NDArray[np.float64]:
    return np.array([[1 - bright(image), bright(image)] for image in images])


def by_pictures(pictures: Sequence[Image.Image]) -> list[list[float]]:
    rows: list[list[float]] = by_arrays([np.asarray(picture) for picture in pictures]).tolist()
    return rows


class Brightness(torch.nn.Module):
    """Logits of dark and bright, of images from 0 to 1; it counts how often it was in training mode."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(1))
        self.trained = 0

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self.trained += self.training
        mean = images.mean(dim=(1, 2, 3)) * self.scale
        return torch.stack([1 - mean, mean], dim=1).log()


class MaiteModel:
    """A model as MAITE's protocol has it."""

    metadata: ClassVar[dict[str, Any]] = {"id": "brightness", "index2label": {0: "dark", 1: "bright"}}

    def __init__(self) -> None:
        self.dtypes: set[str] = set()

    def __call__(self, batch: Sequence[Any]) -> list[NDArray[np.float64]]:
        self.dtypes |= {str(image.dtype) for image in batch}
        unit = [image if "float" in str(image.dtype) else image / 255 for image in batch]
        return [np.array([1 - float(image.mean()), float(image.mean())]) for image in unit]


class MaiteModule(Brightness):
    """A MAITE model that is a module as well: rows of probabilities, as a list of tensors."""

    metadata: ClassVar[dict[str, Any]] = MaiteModel.metadata

    def forward(self, batch: Sequence[Any]) -> list[torch.Tensor]:  # type: ignore[override]
        return list(super().forward(torch.stack([torch.as_tensor(image) for image in batch]) / 255).exp())


@pytest.mark.parametrize(
    ("model", "changes"),
    [
        (by_arrays, {}),
        (by_pictures, {"inputs": "pil"}),
        (lambda images: np.log(by_arrays(images)), {"output": "logits"}),
        (lambda images: torch.from_numpy(by_arrays(images)), {}),
        (lambda images: list(torch.from_numpy(by_arrays(images)).requires_grad_()), {}),
        (Brightness(), {}),
        (MaiteModel(), {"classes": None}),
        (MaiteModule(), {"classes": None}),
        (MaiteModule(), {}),
    ],
)
def test_every_kind_of_model_gives_its_probabilities(model: object, changes: dict[str, Any]) -> None:
    prepared = in_process(model, **changes)
    assert prepared.classes == CLASSES
    assert np.allclose(prepared.run(IMAGES), EXPECTED, atol=1e-5)


def answer_always(label: str | int, images: Sequence[Pixels]) -> list[str | int]:
    return [label] * len(images)


def test_labels_are_certain_predictions() -> None:
    for label in ("bright", 1):
        model = partial(answer_always, label)
        assert np.array_equal(in_process(model).run(IMAGES), [[0, 1]] * 3)


def test_a_function_may_change_its_images_and_reuse_its_array() -> None:
    """The next batch overwrote the answers of this one, and an image that was drawn on was tested so."""
    answers = np.zeros((len(IMAGES), 2))

    def predict(images: list[Pixels]) -> NDArray[np.float64]:
        for row, image in zip(answers, images, strict=False):
            row[:] = [1 - bright(image), bright(image)]
            image[:] = 0
        return answers[: len(images)]

    model, images = in_process(predict), [image.copy() for image in IMAGES]
    first = model.predict(images)
    model.predict([255 - image for image in images])
    assert np.array_equal(first, EXPECTED)
    assert np.array_equal(images, IMAGES)


def test_a_module_predicts_in_evaluation_mode_and_keeps_its_own() -> None:
    for module in (Brightness().train(), MaiteModule().train()):
        frozen = torch.nn.BatchNorm2d(3).eval()
        module.add_module("frozen", frozen)
        in_process(module).run(IMAGES)
        assert module.trained == 0
        assert module.training
        assert not frozen.training


class StackingModel(Brightness):
    """A MAITE model that stacks tensors, as most do: rows of probabilities in bfloat16."""

    metadata: ClassVar[dict[str, Any]] = MaiteModel.metadata

    def forward(self, batch: Sequence[torch.Tensor]) -> torch.Tensor:  # type: ignore[override]
        images = torch.stack(list(batch))
        unit = images / 255 if images.dtype == torch.uint8 else images.float()
        return super().forward(unit).exp().bfloat16()


def test_a_maite_model_gets_images_as_its_data_set_has_them(tmp_path: Path) -> None:
    Image.fromarray(IMAGES[0]).save(tmp_path / "a.png")
    unit = torch.from_numpy(IMAGES[0]).permute(2, 0, 1) / 255
    for image, dtype in (
        (tmp_path / "a.png", "uint8"),
        (Image.fromarray(IMAGES[0]), "uint8"),
        (IMAGES[0], "uint8"),
        (IMAGES[0] / 255, "float64"),
        ((IMAGES[0] / 255).astype(np.float32), "float32"),
        (torch.from_numpy(IMAGES[0]).permute(2, 0, 1), "torch.uint8"),
        (unit, "torch.float32"),
        (unit.bfloat16(), "torch.bfloat16"),
    ):
        model = MaiteModel()
        in_process(model, read_dataset([(image, "dark")], None, None)).run(IMAGES)
        assert model.dtypes == {dtype}


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.bfloat16])
def test_a_maite_model_that_stacks_tensors_gets_them_from_a_data_set_of_tensors(dtype: torch.dtype) -> None:
    tensors = [torch.from_numpy(image).permute(2, 0, 1) for image in IMAGES]
    tensors = [tensor if dtype == torch.uint8 else (tensor / 255).to(dtype) for tensor in tensors]
    prepared = in_process(StackingModel(), read_dataset([(tensor, "dark") for tensor in tensors], None, None))
    assert np.allclose(prepared.run(IMAGES), EXPECTED, atol=0.01)  # bfloat16 has 8 bits


def small_resnet(names: Sequence[str] = CLASSES) -> ResNetForImageClassification:
    torch.manual_seed(0)
    config = ResNetConfig(
        embedding_size=8, hidden_sizes=[8], depths=[1], layer_type="basic", id2label=dict(enumerate(names))
    )
    return ResNetForImageClassification(config).eval()


def test_a_pipeline_and_its_model_agree() -> None:
    model, processor = small_resnet(), ViTImageProcessor(size={"height": 16, "width": 16})
    by_model = in_process(model, preprocess=processor, classes=None)
    of_pipeline = in_process(
        pipeline("image-classification", model=model, image_processor=processor, device="cpu"), classes=None
    )
    assert by_model.classes == of_pipeline.classes == CLASSES
    assert np.allclose(by_model.run(IMAGES), of_pipeline.run(IMAGES), atol=1e-5)


def test_a_model_s_own_names_in_another_order_are_refused() -> None:
    """Every prediction got the name of another output."""
    with pytest.raises(InvalidInput, match="another order"):
        in_process(small_resnet(), classes=CLASSES[::-1])


def test_a_model_without_an_image_processor_needs_preprocess() -> None:
    with pytest.raises(ValueError, match="preprocess"):
        in_process(small_resnet(), classes=None)


def test_a_module_that_ends_in_softmax_is_not_normalised_twice() -> None:
    module = torch.nn.Sequential(Brightness(), torch.nn.Softmax(dim=1))
    for output in (None, "probabilities"):
        assert np.allclose(in_process(module, output=output).run(IMAGES), EXPECTED, atol=1e-5)
    with pytest.raises(InvalidInput, match="probabilities, not logits"):
        in_process(module, output="logits")


def test_a_broken_first_image_is_passed_over(tmp_path: Path) -> None:
    """`contrafact.test` of a module ended on it."""
    (tmp_path / "a.png").write_bytes(b"broken")
    images = read_dataset([(tmp_path / "a.png", None), *((image, None) for image in IMAGES)], CLASSES, None)
    module = torch.nn.Sequential(Brightness(), torch.nn.Softmax(dim=1))
    assert np.allclose(in_process(module, images).run(IMAGES), EXPECTED, atol=1e-5)


TWO_CRANES = ["crane", "dark", "crane"]  # as ImageNet has a bird and a machine of that name


def test_outputs_of_one_name_are_one_class() -> None:
    probabilities = np.array([[0.3, 0.3, 0.4]])
    for model in (lambda images: probabilities, lambda images: [2]):
        prepared = in_process(model, classes=TWO_CRANES)
        assert prepared.classes == ["crane", "dark"]
        assert np.argmax(prepared.run(IMAGES[:1])) == 0
    assert np.allclose(in_process(lambda images: probabilities, classes=TWO_CRANES).run(IMAGES[:1]), [0.7, 0.3])


def test_a_pipeline_with_two_outputs_of_one_name() -> None:
    model = small_resnet(TWO_CRANES)
    processor = ViTImageProcessor(size={"height": 16, "width": 16})
    cranes = pipeline("image-classification", model=model, image_processor=processor, device="cpu")
    by_model = in_process(model, preprocess=processor, classes=None)
    assert np.allclose(by_model.run(IMAGES), in_process(cranes, classes=None).run(IMAGES), atol=1e-5)
    with pytest.raises(ValueError, match=r"pipeline\.model"):
        in_process(cranes, classes=["crane bird", "dark", "crane machine"])


def test_two_calls_never_share_recorded_predictions() -> None:
    assert in_process(by_arrays).revision != in_process(by_arrays).revision


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (lambda images: np.log(by_arrays(images)), "logits"),
        (lambda images: by_arrays(images)[:1], "shape"),
        (lambda images: 1 / 0, "ZeroDivisionError"),
        (lambda images: ["grey"] * len(images), "grey"),
        (lambda images: [[True, True]] * len(images), "not probabilities"),
        (lambda images: [[70.0, 30.0]] * len(images), "sums to 100"),
        (lambda images: np.array([bright(image) for image in images]), "1 − p and p"),
        (lambda images: {"out": by_arrays(images)}, "a dict of 'out'"),
        (lambda images: (by_arrays(images), [0.5]), "a tuple that is no array"),
    ],
)
def test_a_model_that_answers_nonsense_is_refused(model: object, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        in_process(model).run(IMAGES)


@pytest.mark.parametrize(
    ("model", "changes", "words"),
    [
        (7, {}, "no model"),
        (by_arrays, {"classes": None}, "give `classes`"),
        ("missing.onnx", {}, "no model at"),
    ],
)
def test_what_is_no_model_is_refused_with_what_to_change(model: object, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        prepare_model(model, DATASET, options(**changes))


def test_files_are_uploaded_and_names_are_aliases(tmp_path: Path) -> None:
    small_resnet().save_pretrained(tmp_path / "hub")
    folder = prepare_model(tmp_path / "hub", DATASET, options(classes=None))
    assert isinstance(folder, Upload)
    assert {path.name for path in folder.files} == {"config.json", "model.safetensors"}
    assert prepare_model("street-classifier", DATASET, options()) == Alias("street-classifier")


def brightness_network() -> bytes:
    """An ONNX network with the interface of JATIC_ONNX: the scores of dark and bright."""
    float_type = onnx.TensorProto.FLOAT
    nodes = [
        onnx.helper.make_node("GlobalAveragePool", ["image"], ["means"]),
        onnx.helper.make_node("Flatten", ["means"], ["flat"]),
        onnx.helper.make_node("Gemm", ["flat", "weights", "start"], ["scores"]),
    ]
    weights = onnx.numpy_helper.from_array(np.array([[-1, 1]] * 3, np.float32) / 3, "weights")
    start = onnx.numpy_helper.from_array(np.array([1, 0], np.float32), "start")
    image = onnx.helper.make_tensor_value_info("image", float_type, ["batch", 3, 8, 8])
    scores = onnx.helper.make_tensor_value_info("scores", float_type, ["batch", 2])
    graph = onnx.helper.make_graph(nodes, "brightness", [image], [scores], [weights, start])
    opset = onnx.helper.make_opsetid("", 17)
    return bytes(onnx.helper.make_model(graph, opset_imports=[opset], ir_version=8).SerializeToString())


def test_a_jatic_model_brings_its_own_description(tmp_path: Path) -> None:
    (tmp_path / "net.onnx").write_bytes(brightness_network())
    write_jatic_metadata(tmp_path / "net.json", CLASSES, 8, 8)
    upload = prepare_model(tmp_path / "net.onnx", DATASET, options(classes=None))
    assert isinstance(upload, Upload)
    assert (upload.spec.classes, upload.spec.output) == (CLASSES, "probabilities")
    description = upload.spec.model_dump(include=set(ModelDescription.model_fields), mode="json")
    folder = written(tmp_path / "package", {"model.onnx": upload.files[0].read_bytes()}, **description)
    classifier = load_folder(folder, device="cpu")
    assert isinstance(classifier, OnnxClassifier)
    assert np.allclose(classifier.run(IMAGES), EXPECTED, atol=1e-5)
