"""Test sets on this machine: links, hidden folders, formats, broken files, and names of files given one by one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from PIL import Image

from contrafact.testset_files import LINKED, LOOP, NO_TARGET, gather
from shared.media.testsets import HIDDEN, NO_IMAGE


def draw(*files: Path) -> None:
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8)).save(file)


def test_links_are_followed_and_named_as_they_lie(tmp_path: Path) -> None:
    """Labels came from the link's target, and linked folders were left out."""
    draw(tmp_path / "store" / "one.png", tmp_path / "cars" / "1.png")
    folder = tmp_path / "deep" / "set"
    (folder / "bus").mkdir(parents=True)
    (tmp_path / "store" / "one.png").rename(tmp_path / "store" / "0a1b")
    (folder / "bus" / "1.png").symlink_to(tmp_path / "store" / "0a1b")
    (folder / "car").symlink_to(tmp_path / "cars")
    (folder / "bus" / "2.png").symlink_to(tmp_path / "nowhere")
    (folder / "bus" / "again").symlink_to(folder)
    local = gather([folder])
    assert [name for name, _ in local.images] == ["set/bus/1.png", "set/car/1.png"]
    assert [row.label for row in local.label(None, ())] == ["bus", "car"]
    assert local.test_set.left_out == {"set/bus/2.png": NO_TARGET, "set/bus/again": LOOP}


def test_a_linked_folder_is_searched_once(tmp_path: Path) -> None:
    """Links to other folders of the set doubled its images."""
    draw(tmp_path / "set" / "car" / "1.png", tmp_path / "away" / "2.png")
    (tmp_path / "set" / "automobile").symlink_to(tmp_path / "set" / "car")
    for name in ("bus", "coach"):
        (tmp_path / "set" / name).symlink_to(tmp_path / "away")
    local = gather([tmp_path / "set"])
    assert [name for name, _ in local.images] == ["set/bus/2.png", "set/car/1.png"]
    assert local.test_set.left_out == {"set/automobile": LINKED, "set/coach": LINKED}


def test_every_file_that_is_left_out_is_named(tmp_path: Path) -> None:
    draw(*(tmp_path / "set" / name for name in ("bus/1.png", "bus/.x/2.png", "car/1.bmp", "car/2.tif")))
    (tmp_path / "set" / "car" / "1.bmp").rename(tmp_path / "set" / "car" / "1")  # no suffix, but a BMP
    (tmp_path / "set" / "notes.md").write_text("notes")
    (tmp_path / "set" / "car" / "3.jfif").write_bytes(b"broken")  # found when it is decoded
    os.mkfifo(tmp_path / "set" / "pipe")
    local = gather([tmp_path / "set"])
    assert [name for name, _ in local.images] == ["set/bus/1.png", "set/car/1", "set/car/2.tif", "set/car/3.jfif"]
    assert local.test_set.left_out == {"set/bus/.x": HIDDEN, "set/notes.md": NO_IMAGE, "set/pipe": NO_IMAGE}
    draw(tmp_path / "set" / "._1.png")
    hidden = gather([tmp_path / "set" / "._1.png", tmp_path / "set" / "car" / "1"])
    assert hidden.test_set.left_out == {"._1.png": HIDDEN}
    with pytest.raises(ValueError, match=r"no images in .*notes\.md.*'notes\.md'"):
        gather([tmp_path / "set" / "notes.md"])


def test_files_of_several_folders_keep_their_class_folders(tmp_path: Path) -> None:
    """`submit set/*/*.png` lost all labels."""
    files = [tmp_path / "set" / name for name in ("bus/1.png", "car/1.png")]
    draw(*files)
    local = gather(files)
    assert [(name, row.label) for (name, _), row in zip(local.images, local.label(None, ()), strict=True)] == [
        ("bus/1.png", "bus"),
        ("car/1.png", "car"),
    ]
