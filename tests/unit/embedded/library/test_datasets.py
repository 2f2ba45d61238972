"""Data sets of a caller: folders, lists, and those of torch, Hugging Face and MAITE."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, ClassVar

import datasets
import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import TensorDataset

from embedded.library.datasets import ImageSet, read_dataset
from embedded.library.images import pixels_of
from shared.media.testsets import HIDDEN
from shared.problems import InvalidInput

IMAGES = np.random.default_rng(7).integers(0, 256, (4, 6, 5, 3), dtype=np.uint8)
LABELS = ["car", "bus", "car", "bus"]
INDICES = [0, 1, 0, 1]
CLASSES = ["car", "bus"]


class MaiteImages:
    """A data set as MAITE's protocol has it."""

    metadata: ClassVar[dict[str, Any]] = {"id": "four", "index2label": {0: "car", 1: "bus"}}

    def __len__(self) -> int:
        return len(IMAGES)

    def __getitem__(self, index: int, /) -> tuple[Any, Any, dict[str, Any]]:
        return np.moveaxis(IMAGES[index], -1, 0), np.eye(2)[INDICES[index]], {"id": f"datum-{index}"}


def folder_of(directory: Path) -> Path:
    for position, (image, label) in enumerate(zip(IMAGES, LABELS, strict=True)):
        (directory / label).mkdir(exist_ok=True)
        Image.fromarray(image).save(directory / label / f"{position}.png")
    return directory


def hugging_face() -> datasets.Dataset:
    features = datasets.Features({"photo": datasets.Image(), "kind": datasets.ClassLabel(names=CLASSES)})
    columns = {"photo": [Image.fromarray(image) for image in IMAGES], "kind": INDICES}
    return datasets.Dataset.from_dict(columns, features=features)


def labelled(labels: list[Any], feature: Any, column: str = "label") -> datasets.Dataset:
    """A Hugging Face data set with a column of labels that is not of kind ClassLabel."""
    features = datasets.Features({"photo": datasets.Image(), column: feature})
    columns = {"photo": [Image.fromarray(image) for image in IMAGES[: len(labels)]], column: labels}
    return datasets.Dataset.from_dict(columns, features=features)


def two_class_labels() -> datasets.Dataset:
    weather = datasets.Dataset.from_dict(
        {"weather": [1, 1, 0, 0]},
        features=datasets.Features({"weather": datasets.ClassLabel(names=["snow", "sun"])}),
    )
    return datasets.concatenate_datasets([hugging_face(), weather], axis=1)


def pairs(image_set: ImageSet) -> list[tuple[bytes, str | None]]:
    rows = [image_set.read(position) for position in range(image_set.length)]
    return [(pixels_of(row.image, channels_first=row.channels_first).tobytes(), row.label) for row in rows]


EXPECTED = [(image.tobytes(), label) for image, label in zip(IMAGES, LABELS, strict=True)]


def test_every_kind_of_data_set_gives_the_same_images_and_labels(tmp_path: Path) -> None:
    tensors = torch.from_numpy(np.moveaxis(IMAGES, -1, 1).copy())
    kinds = [
        list(zip(IMAGES, LABELS, strict=True)),
        list(zip(IMAGES, INDICES, strict=True)),
        TensorDataset(tensors, torch.tensor(INDICES)),
        hugging_face(),
        labelled(LABELS, datasets.Value("string")),
        labelled(LABELS, datasets.Value("large_string")),
        labelled(INDICES, datasets.Value("int64")),
        labelled(INDICES, datasets.Value("uint8")),
        MaiteImages(),
    ]
    for dataset in kinds:
        assert pairs(read_dataset(dataset, CLASSES, None)) == EXPECTED, type(dataset)
    assert sorted(pairs(read_dataset(folder_of(tmp_path), None, None))) == sorted(EXPECTED)


def test_a_data_set_names_its_classes_itself() -> None:
    for dataset in (hugging_face(), MaiteImages()):
        assert read_dataset(dataset, None, None).classes == CLASSES
    assert read_dataset([(IMAGES[0], "car")], None, None).classes is None


def test_a_hugging_face_data_set_may_have_no_labels() -> None:
    dataset = labelled(["a.png"], datasets.Value("string"), "file_name")
    with pytest.warns(UserWarning, match=r"ignored: file_name\..* give `label_column`"):
        assert read_dataset(dataset, CLASSES, None).read(0).label is None
    assert read_dataset(dataset.select_columns(["photo"]), CLASSES, None).read(0).label is None  # without a warning
    assert read_dataset(labelled([None, "bus"], datasets.Value("string")), None, None).read(0).label is None


@pytest.mark.parametrize(
    ("dataset", "words"),
    [
        (labelled(INDICES, datasets.Value("int64")), "column label .* integers; give `classes`"),
        (labelled([0.5], datasets.Value("float32")), "column label .* kind float32; give names of classes"),
        (labelled([["car"]], datasets.List(datasets.Value("string"))), "column label .* kind List; give names"),
        (labelled(LABELS, datasets.Value("string"), "Label"), r"column Label .*label_column='Label'"),
        (labelled(LABELS, datasets.Value("string"), "class"), r"column class .*label_column='class'"),
        (hugging_face().add_column("label", LABELS), "columns kind, label .* name one as `label_column`"),
        (hugging_face().add_column("Class", LABELS), "columns kind, Class .* name one as `label_column`"),
        (two_class_labels(), "columns kind, weather .* name one as `label_column`"),
        (hugging_face().cast_column("photo", datasets.Image(decode=False)), r"cast_column\('photo', datasets.Image"),
    ],
)
def test_labels_that_cannot_be_read_are_refused_rather_than_left_out(dataset: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        read_dataset(dataset, None, None)


@pytest.mark.parametrize(
    ("dataset", "column"),
    [
        (labelled(LABELS, datasets.Value("string"), "species"), "species"),
        (labelled(LABELS, datasets.Value("string"), "class"), "class"),
        (labelled(INDICES, datasets.Value("int64"), "breed"), "breed"),
        (two_class_labels(), "kind"),
        (hugging_face().add_column("class", LABELS[::-1]), "kind"),
        (labelled(LABELS, datasets.Value("string")).add_column("class", LABELS[::-1]), "label"),
    ],
)
def test_any_column_may_be_named_as_the_labels(dataset: object, column: str) -> None:
    assert pairs(read_dataset(dataset, CLASSES, None, column)) == EXPECTED


@pytest.mark.parametrize(
    ("dataset", "column", "words"),
    [
        (hugging_face(), "species", "no column species, the `label_column`; it has photo, kind"),
        (labelled(INDICES, datasets.Value("int64"), "breed"), "breed", "column breed .* integers; give `classes`"),
        (labelled([0.5], datasets.Value("float32"), "score"), "score", "column score .* kind float32"),
        ([(IMAGES[0], "car")], "label", "leave it out for other data sets"),
    ],
)
def test_a_column_that_holds_no_labels_is_refused(dataset: object, column: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        read_dataset(dataset, None, None, column)


def test_a_manifest_labels_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "images"
    folder.mkdir()
    Image.fromarray(IMAGES[0]).save(folder / "a.png")
    (tmp_path / "labels.csv").write_text("file,label\na.png,bus\n")
    assert read_dataset(folder, None, tmp_path / "labels.csv").read(0).label == "bus"


def test_a_manifest_in_a_folder_overrides_class_folders(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    manifest = folder / "manifest.jsonl"
    names = [read_dataset(folder, CLASSES, None).read(position).name for position in range(len(IMAGES))]
    manifest.write_text("".join(json.dumps({"file": name, "label": "truck"}) + "\n" for name in names))
    images = read_dataset(folder, CLASSES, None)
    assert [label for _, label in pairs(images)] == ["truck"] * len(IMAGES)
    assert f"{folder.name}/manifest.jsonl" in images.test_set.labels_from
    (folder / ".hidden").mkdir()
    (folder / ".hidden" / "manifest.csv").write_text("")
    assert read_dataset(folder, CLASSES, manifest).test_set.left_out == {f"{folder.name}/.hidden": HIDDEN}
    (folder / "bus" / "manifest.csv").write_text("")
    with pytest.raises(InvalidInput, match="more than one manifest"):
        read_dataset(folder, CLASSES, None)


def test_archives_and_lists_of_files_are_read_as_folders(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    folder = folder_of(tmp_path / "set")
    archive = Path(shutil.make_archive(str(tmp_path / "set"), "zip", tmp_path, folder.name))
    folders = read_dataset(folder, None, None)
    for dataset in (archive, [archive], sorted(folder.rglob("*.png"))):
        images = read_dataset(dataset, None, None)
        assert sorted(pairs(images)) == sorted(EXPECTED)
        assert images.test_set.labels_from == folders.test_set.labels_from
    (tmp_path / "one" / "car").mkdir(parents=True)
    Image.fromarray(IMAGES[0]).save(tmp_path / "one" / "car" / "a.png")
    assert read_dataset(tmp_path / "one", None, None).read(0).label is None
    assert read_dataset(tmp_path / "one", None, None, known_classes=["car"]).read(0).label == "car"


def test_names_are_those_of_the_files_and_data(tmp_path: Path) -> None:
    Image.fromarray(IMAGES[0]).save(tmp_path / "a.png")
    assert read_dataset([(tmp_path / "a.png", None)], None, None).read(0).name == "a.png"
    files = [(tmp_path / "a" / "0.png", None), (str(tmp_path / "b" / "c" / "0.png"), None), (IMAGES[0], None)]
    listed = read_dataset(files, None, None)
    assert [listed.read(position).name for position in range(3)] == ["a/0.png", "b/c/0.png", "000002"]
    assert read_dataset(MaiteImages(), None, None).read(2).name == "datum-2"


@pytest.mark.parametrize(
    ("dataset", "words"),
    [
        ([], "empty"),
        ([(IMAGES[0], 1)], "classes"),
        ([IMAGES[0]], "item 0 .* pair"),
        ([{"image": IMAGES[0], "label": "car"}], "item 0 .* a dict with 'image', 'label'"),
        ([(IMAGES[0], [0, 1])], "'000000': a label is a list of 2"),
        ([(IMAGES[0], torch.eye(2)[1])], "'000000': a label is a Tensor of shape"),
        ([(IMAGES[0], float("nan"))], "'000000': a label is nan"),
        ([(IMAGES[0], "")], "'000000': the label ''"),
        (datasets.DatasetDict({"train": hugging_face()}), "'train'"),
        ("no-such-folder", "no folder"),
        (7, "no data set"),
    ],
)
def test_what_is_no_data_set_is_refused_with_what_to_change(dataset: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        read_dataset(dataset, None, None).read(0)


def test_labels_keep_the_data_set_s_own_names_where_the_model_has_them_in_another_order() -> None:
    """`classes`, in the order of the model's outputs, exchanged the labels."""
    assert pairs(read_dataset(hugging_face(), CLASSES[::-1], None)) == EXPECTED
    assert pairs(read_dataset(MaiteImages(), CLASSES[::-1], None)) == EXPECTED
    renamed = read_dataset(hugging_face(), ["Auto", "Omnibus"], None)
    assert [renamed.read(place).label for place in range(2)] == ["Auto", "Omnibus"]
