"""Finds file names that look like frames of sequences, and images that a job has more than once.

Such images are not independent. A plan warns of them, because the tests would count each as a source image of its own.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from gateway.analysis.limits import LEAST_SOURCES

_NUMBER = re.compile(r"[0-9]{9,20}\.[0-9]{1,9}|[0-9]{1,20}")  # a timestamp in seconds, or a number
_SEQUENCE = 3  # frames of a run
_NEAR = 0.2  # relative difference of a regular step from the median step
_REGULAR = 2 / 3  # share of regular steps in a run
_MIXED = 1 / 3  # share of images whose class is not that of the image before
_NEARLY_ALL = 0.9  # share of the images in a single run: a few other files do not make a drive a test set
_TIMESTAMP = 1e8  # larger numbers are moments
_OF_SEQUENCES = re.compile(
    "cam|camera|clip|dashcam|drive|frames?|front|gopro|rear|recording|ride|route|seq|sequence|track|trip|vid|video"
)
_OF_PARTS = re.compile(  # of a test set: splits, and conditions in which images were taken
    "train|training|trainval|val|valid|validation|test|testing|dev|eval|day|night|dawn|dusk|twilight|morning|evening|"
    "clear|cloudy|foggy|fog|overcast|rainy|rain|snowy|snow|sunny|sun|spring|summer|autumn|fall|winter"
)


@dataclass(frozen=True, slots=True)
class PlannedImage:
    """A usable source image.

    `truths`: the classes in its ground truth. `side`: its longer one in pixels; None if it is not uploaded yet.
    `labelled`: it has a ground truth, which may say that there is no object. `questions`: how many a model that is
    asked gets about it.
    """

    name: str
    truths: Sequence[str]
    group: str | None
    side: int | None
    labelled: bool
    questions: int = 1


@dataclass(frozen=True, slots=True)
class _Run:
    """The positions of images whose numbers have regular steps; the words around the number; whether it is a moment."""

    positions: frozenset[int]
    words: frozenset[str]
    is_moment: bool

    @property
    def is_named(self) -> bool:
        """Whether the names are those of a sequence: "drive1/0005.png", a timestamp."""
        return self.is_moment or any(map(_OF_SEQUENCES.fullmatch, self.words))

    @property
    def is_part(self) -> bool:
        """Whether the names are those of a part of a test set instead: "val/0005.png", "night_0005.png"."""
        return not self.is_named and any(map(_OF_PARTS.fullmatch, self.words))


def look_like_sequences(images: Sequence[PlannedImage], classes: Collection[str]) -> bool:
    """Whether at least half of the names are in runs of three or more numbers with regular steps.

    A run has one folder and the same text around its number, which may be a frame or a timestamp:
    "drive1/0005_front.png", "drive1/0010_front.png", … Files that are numbered class by class are no sequences, so a
    run counts if it has images of several classes, or if its class has another run. Splits and conditions do not count.
    A single run of nearly all images counts if its names say so: "drive", a timestamp. The class of an image without
    ground truth is its folder, if that is one of `classes`.
    """
    runs = [run for run in _runs(images, classes) if not run.is_part]
    owners = [{_class_of(images[position], classes) for position in run.positions} for run in runs]
    of_class = Counter(next(iter(owner)) for owner in owners if len(owner) == 1)
    counted = [
        run for run, owner in zip(runs, owners, strict=True) if len(owner) > 1 or of_class[next(iter(owner))] > 1
    ]
    positions = frozenset[int]().union(*(run.positions for run in counted))
    alone = any(run.is_named for run in runs if _has_nearly_all(run, images))
    return alone or (len(counted) > 1 and 2 * len(positions) >= len(images))


def may_be_one_sequence(images: Sequence[PlannedImage], classes: Collection[str]) -> bool:
    """Whether nearly all of 12 or more images are one run whose names do not say what it is: "scene_1/0001.png".

    It may be a video, or a test set that is numbered. A run whose names say that it is a class or a part of a test set
    does not count, nor one whose classes change too often for a video.
    """
    if len(images) < LEAST_SOURCES:
        return False
    whole = [run for run in _runs(images, classes) if _has_nearly_all(run, images) and not run.is_part]
    whole = [run for run in whole if not _is_mixed([images[position] for position in sorted(run.positions)])]
    labels = [words for words in map(_words, classes) if words]
    names = [_words(images[min(run.positions)].name) for run in whole]
    return any(not any(label <= name for label in labels) for name in names)


def _has_nearly_all(run: _Run, images: Sequence[PlannedImage]) -> bool:
    return len(run.positions) >= _NEARLY_ALL * len(images)


def _is_mixed(images: Sequence[PlannedImage]) -> bool:
    """Whether an image often has another class than the image before it."""
    changes = sum(
        len(before.truths) == len(image.truths) == 1 and before.truths != image.truths
        for before, image in pairwise(images)
    )
    return changes > _MIXED * len(images)


def folders_suffice(images: Sequence[PlannedImage]) -> bool:
    """Whether folders as groups give each class of 12 or more images at least 12 groups."""
    sizes: Counter[tuple[str, ...]] = Counter()
    folders: dict[tuple[str, ...], set[str]] = defaultdict(set)
    for image in images:
        keys: list[tuple[str, ...]] = [(label,) for label in image.truths] or [()]
        for key in keys:
            sizes[key] += 1
            folders[key].add(_split(image.name)[0])
    large = [key for key, size in sizes.items() if size >= LEAST_SOURCES]
    return bool(large) and all(len(folders[key]) >= LEAST_SOURCES for key in large)


def _runs(images: Sequence[PlannedImage], classes: Collection[str]) -> list[_Run]:
    """Each regular run. An image may be in several. The names of classes do not count as words."""
    frames: dict[tuple[str, str], list[tuple[float, int]]] = defaultdict(list)
    for position, image in enumerate(images):
        for surroundings, number in _numbers(image.name):
            frames[surroundings].append((number, position))
    named = _words(" ".join(classes))
    return [
        _Run(
            frozenset(position for _, position in run),
            _words(" ".join(surroundings)) - named,
            min(run)[0] >= _TIMESTAMP,
        )
        for surroundings, run in frames.items()
        if len(run) >= _SEQUENCE and _is_regular(sorted({number for number, _ in run}))
    ]


def _words(text: str) -> frozenset[str]:
    return frozenset(re.findall("[a-z]+", text.lower()))


def _numbers(name: str) -> Iterator[tuple[tuple[str, str], float]]:
    """The first number and the last two of a file's name, each with the text before (folders too) and after it."""
    folder, file = _split(name)
    stem = file.rpartition(".")[0] or file
    matches = list(_NUMBER.finditer(stem))
    for match in {match.start(): match for match in matches[:1] + matches[-2:]}.values():
        yield (f"{folder}/{stem[: match.start()]}", stem[match.end() :]), float(match[0])


def _is_regular(numbers: Sequence[float]) -> bool:
    steps = [after - before for before, after in pairwise(numbers)]
    if len(numbers) < _SEQUENCE:
        return False
    usual = median(steps)
    return sum(abs(step - usual) <= _NEAR * usual for step in steps) >= _REGULAR * len(steps)


def _class_of(image: PlannedImage, classes: Collection[str]) -> tuple[str, ...]:
    folder = _split(image.name)[0].rpartition("/")[2]
    return tuple(image.truths) or ((folder,) if folder in classes else ())


def _split(name: str) -> tuple[str, str]:
    """The folder of a file, and its name in it."""
    folder, _, file = name.rpartition("/")
    return folder, file
