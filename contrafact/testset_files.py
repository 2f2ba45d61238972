"""A test set on this machine: its images, what is left out of it, and where its labels or boxes come from."""

from __future__ import annotations

import os
import stat
import unicodedata
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from shared.characters import visible
from shared.media.archives import is_archive_file
from shared.media.box_formats import has_class_names, have_boxes, is_box_file, is_instance_mask
from shared.media.manifests import ManifestRow, shared_folder
from shared.media.testsets import (
    HEAD_BYTES,
    HIDDEN,
    MAX_CLASS_FILE_BYTES,
    MAX_TABLE_BYTES,
    Part,
    TestSet,
    is_hidden,
    is_manifest,
    is_spreadsheet,
    label_images,
    part_of,
    why_no_image,
)

NO_TARGET = "a link to nothing (fetch its file, for example with `dvc pull` or `git annex get`)"
ARCHIVE = "an archive, which is given alone or unpacked"
LOOP = "a link to a folder that it lies in"
LINKED = "a link to a folder whose images are used already"
NamedPath = tuple[str, Path]  # the file's name in the job, and where it is


@dataclass(frozen=True, slots=True)
class LocalSet:
    """The images of a test set, and its other files.

    `aside`: where the tables and class files are; `beside`: where files are that may have boxes, by their names.
    """

    images: list[NamedPath]
    test_set: TestSet
    aside: list[NamedPath]
    beside: list[NamedPath]

    def has_boxes(self, labels: Path | None) -> bool:
        """Whether there seem to be boxes beside the images, or in the manifest. Raises Malformed."""
        manifests = [path for name, path in self.aside if is_manifest(name)] if labels is None else [labels]
        if any(b'"boxes"' in path.read_bytes() for path in manifests):
            return True
        files = {name: path.read_bytes for name, path in self.beside}
        return have_boxes(files, [name for name, _ in self.images if not is_instance_mask(name)])

    def take_boxes(self, paths: Sequence[Path]) -> None:
        """Use the boxes of these files and folders instead of those beside the images, whose class names may stay.

        Files of a folder are named as if they were beside the images. Raises ValueError if there are none.
        """
        root = shared_folder([name for name, _ in self.images])
        chosen: list[NamedPath] = []
        for path in paths:
            folder = path if path.is_dir() else path.parent
            files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
            chosen += [(f"{root}{_below(str(folder), file)}", file) for file in files]
        chosen = [(name, path) for name, path in chosen if is_box_file(name) and not is_hidden(name)]
        if not chosen:
            raise ValueError(
                f"there are no boxes in {', '.join(map(str, paths))}; give COCO JSON, YOLO's label files and "
                "data.yaml, or Pascal VOC XML, and a manifest with boxes as --labels"
            )
        class_names = [file for file in self.beside if has_class_names(file[0])]
        self.beside[:] = [*class_names, *chosen]
        self.aside[:] = [(name, path) for name, path in self.aside if not is_box_file(name)]

    def label(
        self, labels: Path | None, known_classes: Collection[str], *, questions: bool = False
    ) -> list[ManifestRow]:
        """The row of each image; `labels` is a manifest, with `questions` or not. Raises InvalidInput and Malformed."""
        names = [name for name, _ in self.images]
        if labels is None:
            return label_images(self.test_set, names, known_classes, questions=questions)
        for name, path in self.aside:
            if path.samefile(labels):  # it is named and lies in the folder
                self.test_set.tables.pop(name, None)
        table = (str(labels), labels.read_bytes())
        return label_images(self.test_set, names, known_classes, table, questions=questions)


def gather(paths: Sequence[Path]) -> LocalSet:
    """The files of a test set, sorted by name: files and folders, which are searched, links included.

    Of files named one by one, those in several folders are named from the folder that they share. Raises ValueError if
    there are no images.
    """
    found = LocalSet([], TestSet(), [], [])
    loose = [path for path in paths if not path.is_dir()]
    root = _common_folder([path for path in loose if _is_image(path)])
    for path in paths:
        if not path.is_dir() and is_hidden(path.name):
            found.test_set.left_out[path.name] = HIDDEN
        elif not path.is_dir():
            _take(found, _below(root, path) if _is_image(path) else path.name, path)
        else:
            _take_folder(found, path)
    if not found.images:
        left_out = "; ".join(found.test_set.lines(0, 0)[1:])
        raise ValueError(f"there are no images in {', '.join(map(str, paths))}" + (f": {left_out}" if left_out else ""))
    return found


def _take_folder(found: LocalSet, folder: Path) -> None:
    """Sort the files of a folder into the test set."""
    name, place = os.path.basename(os.path.abspath(folder)), os.path.realpath(folder)
    for below, file, problem in _walk(folder, f"{name}/" if name else "", frozenset(), [Path(place)]):
        if problem:
            found.test_set.left_out[below] = problem
        else:
            _take(found, below, file)


def _walk(folder: Path, name: str, above: frozenset[str], searched: list[Path]) -> Iterator[tuple[str, Path, str]]:
    """Name, place and "" of each file below a folder; or a problem, also of whole folders that are left out.

    `above`: the folders that it lies in. `searched`: the folders whose files are found without links.
    """
    above |= {os.path.realpath(folder)}
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError as error:
        yield name, folder, f"it cannot be read ({error.strerror})"
        return
    for entry in entries:
        below, path = visible(unicodedata.normalize("NFC", name + entry.name)), Path(entry.path)
        if is_hidden(entry.name):
            yield below, path, HIDDEN
        elif entry.is_dir():
            place = Path(os.path.realpath(path))
            if str(place) in above:
                yield below, path, LOOP
            elif entry.is_symlink() and any(_is_searched(place, other) for other in searched):
                yield below, path, LINKED
            else:
                searched += [place] if entry.is_symlink() else []
                yield from _walk(path, f"{below}/", above, searched)
        else:
            yield below, path, ""


def _is_searched(place: Path, folder: Path) -> bool:
    """Whether a folder is searched when another one is: it lies in it, and not in a hidden folder of it."""
    return place.is_relative_to(folder) and not is_hidden("/".join(place.relative_to(folder).parts))


def _take(found: LocalSet, name: str, path: Path) -> None:
    """Sort one file into the test set."""
    name, test_set = visible(unicodedata.normalize("NFC", name)), found.test_set
    try:
        part = _part(name, path)
        if (part != "image" or is_instance_mask(name)) and is_box_file(name) and path.is_file():
            found.beside.append((name, path))
        if part == "image":
            found.images.append((name, path))
        elif part and path.stat().st_size <= (MAX_TABLE_BYTES if part == "table" else MAX_CLASS_FILE_BYTES):
            test_set.take_aside(name, part, path.read_bytes())
            found.aside.append((name, path))
        else:
            archive = is_archive_file(path) and not is_spreadsheet(name)
            test_set.left_out[name] = ARCHIVE if archive else why_no_image(name)
    except FileNotFoundError:
        test_set.left_out[name] = NO_TARGET
    except OSError as error:
        test_set.left_out[name] = f"it cannot be read ({error.strerror})"


def _part(name: str, path: Path) -> Part:
    """What a file is. Raises OSError for one that cannot be read, and for links to nothing."""
    if not stat.S_ISREG(path.stat().st_mode):
        return ""
    if part := part_of(name):
        return part
    with path.open("rb") as file:
        return part_of(name, file.read(HEAD_BYTES))


def _is_image(path: Path) -> bool:
    try:
        return _part(path.name, path) == "image"
    except OSError:
        return False


def _common_folder(files: Sequence[Path]) -> str:
    return os.path.commonpath([os.path.dirname(os.path.abspath(file)) for file in files]) if files else ""


def _below(root: str, file: Path) -> str:
    return Path(os.path.relpath(os.path.abspath(file), root)).as_posix()
