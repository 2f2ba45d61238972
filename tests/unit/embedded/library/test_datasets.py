"""Data sets of a caller: folders, lists, and those of torch, Hugging Face and MAITE."""

from __future__ import annotations

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
        MaiteImages(),
    ]
    for dataset in kinds:
        assert pairs(read_dataset(dataset, CLASSES, None)) == EXPECTED, type(dataset)
    assert sorted(pairs(read_dataset(folder_of(tmp_path), None, None))) == sorted(EXPECTED)


def test_a_data_set_names_its_classes_itself() -> None:
    for dataset in (hugging_face(), MaiteImages()):
        assert read_dataset(dataset, None, None).classes == CLASSES
    assert read_dataset([(IMAGES[0], "car")], None, None).classes is None


def test_a_manifest_labels_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "images"
    folder.mkdir()
    Image.fromarray(IMAGES[0]).save(folder / "a.png")
    (tmp_path / "labels.csv").write_text("file,label\na.png,bus\n")
    assert read_dataset(folder, None, tmp_path / "labels.csv").read(0).label == "bus"


def test_names_are_those_of_the_files_and_data(tmp_path: Path) -> None:
    Image.fromarray(IMAGES[0]).save(tmp_path / "a.png")
    assert read_dataset([(tmp_path / "a.png", None)], None, None).read(0).name == "a.png"
    assert read_dataset(MaiteImages(), None, None).read(2).name == "datum-2"


@pytest.mark.parametrize(
    ("dataset", "words"),
    [
        ([], "empty"),
        ([(IMAGES[0], 1)], "classes"),
        ([IMAGES[0]], "pair"),
        (datasets.DatasetDict({"train": hugging_face()}), "'train'"),
        ("no-such-folder", "no folder"),
        (7, "no data set"),
    ],
)
def test_what_is_no_data_set_is_refused_with_what_to_change(dataset: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        read_dataset(dataset, None, None).read(0)
