"""The papers' data sets on disk: labels, masks and sequences from folder layouts, nested samples, clear refusals."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from research.papers.folders import SourceFile, imagenet, read_class_list, sample, shift

CLASS_LIST = "n00000001 tench, Tinca tinca\nn00000002 crane\nn00000003 crane, construction crane\n"


@pytest.fixture
def classes(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "classes.txt").write_text(CLASS_LIST)
    return read_class_list(tmp_path / "classes.txt")


def _image(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (4, 4)).save(path)


def test_a_class_is_named_by_its_first_synonym_unless_another_class_has_the_same(classes: dict[str, str]) -> None:
    assert classes == {"n00000001": "tench", "n00000002": "crane", "n00000003": "crane, construction crane"}
    assert len(set(classes.values())) == len(classes)


@pytest.mark.parametrize("line", ["tench", "n00000001", "n1 tench", "n00000002 crane again"])
def test_a_line_that_is_no_new_synset_with_names_is_refused_by_its_number(tmp_path: Path, line: str) -> None:
    (tmp_path / "classes.txt").write_text(f"n00000002 crane\n{line}\n")
    with pytest.raises(ValueError, match="line 2"):
        read_class_list(tmp_path / "classes.txt")


def test_imagenet_images_have_the_class_of_their_folder(tmp_path: Path, classes: dict[str, str]) -> None:
    _image(tmp_path / "val/n00000002/a.JPEG")
    _image(tmp_path / "val/n00000001/b.JPEG")
    _image(tmp_path / "val/n99999999/c.JPEG")  # not in the class list
    (tmp_path / "val/n00000001/notes.txt").write_text("no image")
    files = imagenet(tmp_path / "val", classes)
    assert [(file.name, file.label) for file in files] == [("n00000001/b.JPEG", "tench"), ("n00000002/a.JPEG", "crane")]


def test_hard_imagenet_takes_the_images_that_have_a_mask(tmp_path: Path, classes: dict[str, str]) -> None:
    for name in ("n00000001/a.JPEG", "n00000001/b.JPEG"):
        _image(tmp_path / "val" / name)
    _image(tmp_path / "masks/n00000001_b.JPEG")
    assert [file.path.name for file in imagenet(tmp_path / "val", classes, tmp_path / "masks")] == ["b.JPEG"]


def test_shift_images_have_their_mask_and_sequence(tmp_path: Path) -> None:
    for number in ("00000000", "00000010"):
        _image(tmp_path / f"img/007b-4e72/{number}_img_front.jpg")
    _image(tmp_path / "semseg/007b-4e72/00000010_semseg_front.png")
    (file,) = shift(tmp_path)
    assert (file.group, file.path.name) == ("007b-4e72", "00000010_img_front.jpg")
    assert file.mask == tmp_path / "semseg/007b-4e72/00000010_semseg_front.png"


def test_a_folder_of_another_layout_is_refused(tmp_path: Path, classes: dict[str, str]) -> None:
    _image(tmp_path / "a.png")
    with pytest.raises(ValueError, match="synset"):
        imagenet(tmp_path, classes)
    with pytest.raises(ValueError, match="semseg"):
        shift(tmp_path)


@given(st.lists(st.integers(0, 3), max_size=40), st.integers(1, 6), st.integers(0, 5))
def test_samples_are_nested_and_have_at_most_so_many_of_each_class(labels: list[int], most: int, seed: int) -> None:
    files = [SourceFile(Path(f"n/{place}.png"), label=str(label)) for place, label in enumerate(labels)]
    small, large = sample(files, most, seed), sample(files, most + 1, seed)
    assert set(small) <= set(large) <= set(files)
    for label in set(labels):
        chosen = [file for file in small if file.label == str(label)]
        assert len(chosen) == min(most, labels.count(label))
