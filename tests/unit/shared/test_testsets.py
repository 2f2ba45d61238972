"""What a test set is: which files are images, what is left out, and where labels come from."""

from __future__ import annotations

import unicodedata

import pytest

from shared.media.testsets import (
    EQUAL,
    EQUAL_UNLIKE,
    HIDDEN,
    NO_IMAGE,
    TestSet,
    distinct,
    folder_labels,
    label_images,
    part_of,
)
from shared.problems import InvalidInput

PNG = b"\x89PNG\r\n\x1a\n"
NFC, NFD = (unicodedata.normalize(form, "bus_é.png") for form in ("NFC", "NFD"))


def labelled(
    images: list[str], others: dict[str, str] | None = None, known: tuple[str, ...] = ("bus", "car")
) -> tuple[list[str | None], list[str]]:
    """The labels of these images beside other files, and what is said of them."""
    test_set = TestSet()
    for name, text in (others or {}).items():
        test_set.take_aside(name, part_of(name), text.encode())
    labels = [row.label for row in label_images(test_set, images, known)]
    return labels, test_set.lines(len(images), len(labels) - labels.count(None))


def test_an_image_is_known_by_its_suffix_or_its_first_bytes() -> None:
    for name in ("a.jfif", "a.JPG", "a.tif", "a.avif", "a.heic"):
        assert part_of(name) == "image", name
    assert part_of("store/0a1b", PNG) == "image"
    assert part_of("LICENSE", b"MIT") == ""
    assert part_of("README.md", b"# Set") == ""


def test_what_is_left_out_and_where_labels_come_from_is_said() -> None:
    labels, lines = labelled(["set/bus/1.png", "set/car/1.png"], {"set/README.txt": "hello"})
    assert labels == ["bus", "car"]
    assert lines[0] == "2 images used, 2 with ground truth"
    assert "1 left out" in lines[1]
    assert "set/README.txt" in lines[1]
    assert "class folders 'bus', 'car'" in lines[2]


def test_an_image_beside_the_class_folders_takes_no_label_from_the_others() -> None:
    labels, lines = labelled(["set/bus/1.png", "set/car/1.png", "set/cover.png"])
    assert labels == ["bus", "car", None]
    assert "'set/cover.png'" in lines[-1]
    labels, lines = labelled(["set/x/1.png", "set/y/1.png", "set/cover.png"])
    assert labels == [None] * 3
    assert "no labels: 'set/cover.png'" in lines[-1]


def test_parts_that_models_are_trained_on_are_not_tested_without_a_word() -> None:
    """The pictures of `train` were tested with the others, where a model is right because it knows them."""
    names = [f"{part}/{label}/{part}.png" for part in ("train", "val", "test") for label in ("bus", "car")]
    labels, lines = labelled(names)
    assert labels == ["bus", "car"] * 3
    assert "'test', 'train', 'val' are tested together" in lines[-1]
    for others in (["val/bus/1.png", "test/car/2.png"], ["train/1.png", "bus/2.png"], ["train/bus/1.png"]):
        assert "together" not in labelled(others, known=("bus", "car", "train"))[1][-1]


def test_a_table_that_is_not_used_is_called_one() -> None:
    """It was called "no image", beside a table whose labels are others."""
    images = ["1.png", "2.png"]
    tables = {"metadata.csv": "file_name,label\n1.png,bus\n2.png,car", "labels.csv": "file,label\n1.png,car\n2.png,bus"}
    labels, lines = labelled(images, tables)
    assert labels == ["bus", "car"]
    assert "a table that is not used: 'labels.csv'" in lines[1]


@pytest.mark.parametrize(
    ("names", "labels"),
    [
        (["s/train/n01443537/images/a.JPEG", "s/train/n02085620/images/b.JPEG"], ["n01443537", "n02085620"]),
        (["s/bus/day/1.png", "s/car/night/2.png"], ["bus", "car"]),
        (["s/train/1.png", "s/val/2.png"], [None, None]),
        (["bus/1.png", "tram/2.png"], ["bus", "tram"]),
    ],
)
def test_a_class_folder_may_have_folders(names: list[str], labels: list[str | None]) -> None:
    assert folder_labels(names, ("bus", "car"))[0] == labels


@pytest.mark.parametrize(
    ("table", "text", "labels"),
    [
        ("s/metadata.csv", "file_name,label,text\nx/a.png,bus,one\nx/b.png,car,two\n", ["bus", "car"]),
        ("s/x/metadata.jsonl", '{"file_name": "a.png", "label": 1}\n{"file_name": "b.png"}', ["1", None]),
        ("s/labels.csv", "id;class\na;bus\nb;car\n", ["bus", "car"]),
        ("s/labels.csv", ",file,label\n0,x/a.png,bus\n1,x/b.png,car\n", ["bus", "car"]),  # pandas' index
        ("s/labels.csv", "filename, label\na.png, bus\na.png, bus\nb.png, car \n", ["bus", "car"]),
        ("s/labels.xlsx", "PK", [None, None]),
        ("s/LOC_val_solution.csv", "ImageId,PredictionString\na,n01443537 1 2 3 4\n", ["n01443537", None]),
        ("s/val_annotations.txt", "a.png\tn01443537\t0\t32\t44\t62\n", ["n01443537", None]),
        ("s/val.txt", "a.png 65\nb.png 3\n", ["65", "3"]),
        ("s/manifest.csv", "file,label\nx\\a.png,bus\n./x//B.png,car\n", ["bus", "car"]),
        ("s/manifest.csv", "file,label\nC:\\old\\x\\a.png,bus\nC:\\old\\x\\b.png,car\n", ["bus", "car"]),
        ("s/x/a.json", '{"label": "bus"}', ["bus", None]),
        ("s/x/b.cls", "7\n", [None, "7"]),
        ("s/coco.json", '{"images": []}', [None, None]),
        ("s/metadata.csv", "file_name,text\nx/a.png,bus\n", [None, None]),
    ],
)
def test_tables_and_class_files_as_others_write_them(table: str, text: str, labels: list[str | None]) -> None:
    read, lines = labelled(["s/x/a.png", "s/x/b.png"], {table: text})
    assert read == labels
    assert any(table in line or table.rpartition(".")[2] in line for line in lines[1:])


def test_names_in_two_normal_forms_are_one_name() -> None:
    assert labelled([NFD], {"manifest.csv": f"file,label\n{NFC},bus\n"})[0] == ["bus"]


def test_a_table_of_predictions_does_not_replace_class_folders() -> None:
    predictions = {"predictions.csv": "file,label\nbus/1.png,car\ncar/1.png,bus\n"}
    assert labelled(["bus/1.png", "car/1.png"], predictions)[0] == ["bus", "car"]


@pytest.mark.parametrize(
    ("table", "header"),
    [
        ("submission.csv", "id,label"),
        ("resnet_predictions.csv", "id,class"),
        ("run.csv", "image,label,score"),
        ("run.csv", "image,pred"),
        ("labels.csv", "image,prediction"),
    ],
)
def test_predictions_are_no_ground_truth(table: str, header: str) -> None:
    text = f"{header}\na.png,bus{',.9' * (header.count(',') - 1)}\n"
    labels, lines = labelled(["a.png"], {table: text})
    assert labels == [None]
    assert any(table in line and "prediction" in line for line in lines)
    if header == "image,pred":
        with pytest.raises(InvalidInput, match=r"'pred'.*no ground truth"):
            label_images(TestSet(), ["a.png"], (), (table, text.encode()))


def test_two_columns_of_labels_are_refused_by_name() -> None:
    with pytest.raises(InvalidInput, match=r"'s/metadata\.csv'.*'label', 'class'.*part `manifest`"):
        labelled(["s/a.png"], {"s/metadata.csv": "file_name,label,class\na.png,1,bus\n"})


def test_a_manifest_of_other_folders_is_not_taken_for_this_one() -> None:
    with pytest.raises(InvalidInput, match=r"not sent: '/x/bus/1\.png'"):
        labelled(["set/car/1.png"], {"manifest.csv": "file,label\n/x/bus/1.png,bus\n"})
    with pytest.raises(InvalidInput, match=r"labels\.csv.* may each hold the labels"):
        labelled(["a.png"], {"labels.csv": "file,label\na.png,bus\n", "annotations.csv": "file,label\na.png,car\n"})


def test_names_with_several_dots_keep_their_own_class_files() -> None:
    """`a.1.png` and `a.2.png` shared the label of one file."""
    images = ["s/a.1.png", "s/a.2.png", "s/b.png", "s/c.left.jpg"]
    files = {"s/a.1.cls": "bus", "s/a.2.cls": "car", "s/b.png.cls": "bus", "s/c.cls": "car"}
    assert labelled(images, files)[0] == ["bus", "car", "bus", "car"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("s/bus/1.cls", "car"),
        ("s/bus/metadata.csv", "file_name,label\n1.png,car\n"),
        ("s/labels.csv", "file_name,label\nbus/1.png,car\n"),
    ],
)
def test_one_stray_source_of_labels_leaves_those_of_the_folders(name: str, text: str) -> None:
    labels, lines = labelled(["s/bus/1.png", "s/bus/2.png", "s/car/1.png"], {name: text})
    assert labels == ["bus", "bus", "car"]
    assert any(name in line and "1 of 3 images" in line for line in lines)
    assert labelled(["s/x/1.png", "s/x/2.png", "s/x/3.png"], {name.replace("bus", "x"): text.replace("bus", "x")})[
        0
    ] == ["car", None, None]


def test_a_manifest_is_read_beside_the_files_that_a_mac_adds() -> None:
    test_set = TestSet({"set/manifest.csv": b"file,label\na.png,bus\n"})
    test_set.left_out |= {"__MACOSX/set/._a.png": HIDDEN, "README.md": NO_IMAGE}
    assert [row.label for row in label_images(test_set, ["set/a.png"], ())] == ["bus"]


@pytest.mark.parametrize(
    "folders",
    [
        ("s/images", "s/masks"),
        ("s", "s/masks"),
        ("JPEGImages", "SegmentationClass"),
        ("images/val", "annotations/val"),
        ("img", "gt"),
    ],
)
def test_images_and_masks_are_not_two_classes(folders: tuple[str, str]) -> None:
    with pytest.raises(InvalidInput, match="what the masks mean"):
        labelled([f"{folder}/1.png" for folder in folders])


def test_a_table_of_groups_leaves_the_labels_of_the_folders() -> None:
    test_set = TestSet({"s/metadata.csv": b"file_name,group\nbus/1.png,a\ncar/1.png,a\n"})
    rows = label_images(test_set, ["s/bus/1.png", "s/car/1.png"], ())
    assert [(row.label, row.group) for row in rows] == [("bus", "a"), ("car", "a")]
    assert "groups are read from 's/metadata.csv'" in test_set.labels_from


def test_of_equal_images_one_is_kept_unless_their_labels_differ() -> None:
    test_set = TestSet()
    labels = [None, "bus", "bus", "bus", "car", None, None]
    assert distinct(test_set, list("abcdefg"), ["1", "1", "1", "2", "2", None, None], labels) == [1, 5, 6]
    assert test_set.left_out == {"a": EQUAL, "c": EQUAL, "d": EQUAL_UNLIKE, "e": EQUAL_UNLIKE}
    with pytest.raises(InvalidInput, match="correct the labels"):
        distinct(test_set, ["a", "b"], ["1", "1"], ["bus", "car"])
