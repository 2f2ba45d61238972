"""File names of frames look like sequences under any pattern; numbered files of classes do not."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.jobs.sequences import (
    PlannedImage,
    folders_suffice,
    look_like_sequences,
    may_be_one_sequence,
)

CLASSES = ["bus", "car"]
PATTERNS = (
    "drive{run}_{frame:04}.png",  # the number last
    "{frame:04}_drive{run}.png",  # first
    "drive{run}/{frame}.png",
    "0c{run}-af1/{frame:08}_img_front.jpg",  # as SHIFT
    "n015-2018__CAM{run}__15324029{frame:08}.jpg",  # as nuScenes
    "rgb{run}/1305031{frame:05}.175304.png",  # as TUM RGB-D
)


def image(name: str, *truths: str, group: str | None = None) -> PlannedImage:
    return PlannedImage(name, truths, group, None, bool(truths))


def images(names: Sequence[str]) -> list[PlannedImage]:
    return [image(name) for name in names]


@given(
    pattern=st.sampled_from(PATTERNS),
    runs=st.lists(st.integers(0, 500), min_size=2, max_size=4),
    step=st.sampled_from([1, 5, 10, 100]),
    length=st.integers(3, 20),
)
def test_frames_at_regular_steps_look_like_sequences(pattern: str, runs: list[int], step: int, length: int) -> None:
    names = [
        pattern.format(run=run, frame=first + step * number)
        for run, first in enumerate(runs)
        for number in range(length)
    ]
    assert look_like_sequences(images(names), CLASSES)
    labelled = [image(name, CLASSES[number % 2]) for number, name in enumerate(names)]
    assert look_like_sequences(labelled, CLASSES)


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("labels", [[], ["bus"], ["bus", "car"]])
def test_a_single_drive_looks_like_a_sequence(pattern: str, labels: list[str]) -> None:
    names = [pattern.format(run=7, frame=5 * number) for number in range(40)]
    planned = [image(name, *labels[number % 2 : number % 2 + 1]) for number, name in enumerate(names)]
    assert look_like_sequences(planned, CLASSES)
    with_few_others = [*planned, *images([f"portrait {letter}.png" for letter in "abcd"])]
    assert look_like_sequences(with_few_others, CLASSES), "one more file once silenced the warning"
    with_many_others = [*planned, *images([f"portrait {letter}.png" for letter in "abcde"])]
    assert not look_like_sequences(with_many_others, CLASSES), "most images are of the drive, and a tenth is not"


@pytest.mark.parametrize(
    "patterns",
    [
        ["{0:05}.png"],
        ["IMG_{0}.png"],
        ["train/{0}.png"],
        ["train/{0}.png", "val/{0}.png"],
        ["bus/night_{0:03}.png", "bus/day_{0:03}.png"],
        ["bus/train/{0}.png", "bus/val/{0}.png", "car/train/{0}.png", "car/val/{0}.png"],
    ],
)
@pytest.mark.parametrize("labels", [[], ["bus"], ["bus", "car"]])
def test_numbered_splits_and_conditions_are_no_sequences(patterns: list[str], labels: list[str]) -> None:
    names = [pattern.format(number) for pattern in patterns for number in range(20)]
    planned = [image(name, *labels[number % 2 : number % 2 + 1]) for number, name in enumerate(names)]
    assert not look_like_sequences(planned, CLASSES)


UNNAMED = (
    "image_02/data/{0:010}.png",  # as KITTI
    "stuttgart_00_000000_{0:06}_leftImg8bit.png",  # as Cityscapes
    "scene_1/{0:04}.png",
    "{0:04}.png",
    "IMG_{0}.jpg",
    "{0}.5.png",
)


@given(
    pattern=st.sampled_from(UNNAMED),
    first=st.integers(0, 500),
    step=st.sampled_from([1, 5, 10]),
    length=st.integers(12, 60),
    share=st.floats(0, 1 / 9),
    labels=st.sampled_from([[], ["bus"], ["bus", "car"]]),
)
def test_one_numbered_run_may_be_a_video(
    pattern: str, first: int, step: int, length: int, share: float, labels: list[str]
) -> None:
    names = [pattern.format(first + step * number) for number in range(length)]
    planned = [image(name, *labels[2 * number // length :][:1]) for number, name in enumerate(names)]
    planned += images([f"portrait {'x' * number}.png" for number in range(int(share * length))])
    assert may_be_one_sequence(planned, CLASSES)
    assert not look_like_sequences(planned, CLASSES)


def test_numbered_files_of_mixed_classes_are_not_asked_about() -> None:
    """As in the images of the demo: the object of a video does not change from frame to frame."""
    labels = ["bus", "car", "car", "bus", "bus", "car"] * 5
    assert not may_be_one_sequence([image(f"{number:04}.png", label) for number, label in enumerate(labels)], CLASSES)
    segmented = [image(f"{number:04}.png", label, "road") for number, label in enumerate(labels)]
    assert may_be_one_sequence(segmented, CLASSES), "the things in a picture come and go"


@pytest.mark.parametrize(
    "names",
    [
        [f"{part}/{number:05}.png" for part in ("train",) for number in range(40)],
        [f"ILSVRC2012_val_{number:08}.JPEG" for number in range(40)],
        [f"training/image_2/{number:06}.png" for number in range(40)],  # as KITTI's single images
        [f"night_{number:03}.png" for number in range(40)],
        [f"bus/{number:03}.png" for number in range(40)],
        [f"bus ({number}).jpg" for number in range(40)],
        [f"data/school bus/{number}.jpg" for number in range(40)],
        [f"{label}/{number:03}.png" for label in ("bus", "car") for number in range(20)],
        [f"{number:05}.png" for number in range(11)],  # fewer are not tested
        [f"{number:05}.png" for number in (3, 188, 512, 9_000, 9_001, 12_000, 40_000, 41_007, 50_000, 90_000, 1, 77)],
        [f"{number:05}.png" for number in range(34)] + [f"portrait {letter}.png" for letter in "abcd"],
        [],
    ],
)
def test_classes_splits_and_irregular_numbers_are_not_asked_about(names: list[str]) -> None:
    assert not may_be_one_sequence(images(names), [*CLASSES, "school bus"])


def test_a_class_whose_name_is_a_word_of_sequences_is_no_sequence() -> None:
    assert not look_like_sequences(images([f"camera/{number}.png" for number in range(20)]), ["camera", "phone"])


@given(jitter=st.lists(st.integers(-2_000_000, 2_000_000), min_size=20, max_size=20))
def test_timestamps_that_are_nearly_regular_look_like_sequences(jitter: list[int]) -> None:
    moments = [1403636579763555584 + 50_000_000 * number + late for number, late in enumerate(jitter)]
    names = [f"cam{camera}/{moment}.png" for camera in (0, 1) for moment in moments]
    assert look_like_sequences(images(names), [])


@given(
    sizes=st.lists(st.integers(0, 40), min_size=2, max_size=4),
    first=st.integers(0, 1_000),
    step=st.sampled_from([1, 2, 5]),
    name=st.sampled_from(["{0}.png", "{1}_{0:04}.png", "{1} ({0}).jpg", "img{0}.png"]),
    labelled=st.booleans(),
)
def test_numbered_files_of_class_folders_are_no_sequences(
    sizes: list[int], first: int, step: int, name: str, labelled: bool
) -> None:
    classes = [f"class {place}" for place in "abcd"[: len(sizes)]]
    planned = [
        image(f"{label}/" + name.format(first + step * number, label), *([label] if labelled else []))
        for label, size in zip(classes, sizes, strict=True)
        for number in range(size)
    ]
    assert not look_like_sequences(planned, classes)


def test_folders_whose_labels_are_mapped_to_other_classes_are_no_sequences() -> None:
    names = [
        (f"{folder}/{number}.png", label)
        for folder, label in (("omnibus", "bus"), ("auto", "car"))
        for number in range(9)
    ]
    assert not look_like_sequences([image(name, label) for name, label in names], CLASSES)


@pytest.mark.parametrize(
    "names",
    [
        [f"car/{number}.png" for number in range(40)],
        [f"img_{number}.png" for number in (3, 188, 512, 9_000)] * 2,
        [f"{folder}/n01440764_{number}.JPEG" for folder in "ab" for number in (3, 10_026, 12_021, 293, 777, 4_000)],
        ["a.png"],
        [],
    ],
)
def test_other_numbers_are_no_sequences(names: list[str]) -> None:
    assert not look_like_sequences(images(names), CLASSES)


def test_long_names_of_many_numbers_are_read() -> None:
    assert not look_like_sequences(images([f"{'1_' * 400}{'9' * 90}{letter}.png" for letter in "abcde"]), [])


@pytest.mark.parametrize(
    ("folders", "frames", "label", "enough"),
    [(12, 5, None, True), (11, 50, None, False), (1, 60, "bus", False), (24, 5, "bus", True)],
)
def test_folders_suffice_as_groups_if_each_class_has_twelve(
    folders: int, frames: int, label: str | None, enough: bool
) -> None:
    truths = [] if label is None else [label]
    planned = [image(f"drive{drive}/{frame}.png", *truths) for drive in range(folders) for frame in range(frames)]
    assert folders_suffice(planned) is enough
    others = [image(f"car/{frame}.png", "car") for frame in range(30)]
    assert not folders_suffice([*planned, *others])
