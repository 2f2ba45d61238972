"""The caller's test set as images with their truth: files, an archive, pairs, a data set of torch, Hugging Face, MAITE.

Images are read one at a time. MAITE and Hugging Face data sets are recognised by their attributes, so that neither
library has to be installed.
"""

from __future__ import annotations

import math
import os
import tempfile
import warnings
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral
from pathlib import Path
from typing import Any, NamedTuple, Protocol, cast

from pydantic import TypeAdapter, ValidationError

from contrafact.arrays import as_array
from contrafact.testset_files import gather
from gateway.context import intake_limits
from gateway.intake.intake import take_in
from gateway.intake.sources import NamedFile
from gateway.settings import Settings
from shared.media.archives import is_archive_file
from shared.media.storage import DirectoryStore, image_key
from shared.media.testsets import TestSet
from shared.schemas.boxes import TrueBox
from shared.schemas.masks import Label
from shared.schemas.questions import ImageQuestion

LABEL = "label"
CLASS_LABEL = "ClassLabel"  # the kind of a Hugging Face column with the indices of classes and their names
LABEL_TYPE: TypeAdapter[str | None] = TypeAdapter(Label | None)
LIKELY_LABELS = (LABEL, "labels", "class", "target", "category")  # in any case: "Label"


class Indexed(Protocol):
    """A data set with a length, whose items are read by position."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> object: ...


@dataclass(frozen=True)
class LabelledImage:
    """A source image: a file, PIL image, array or tensor, its ground truth if there is one, and its name in results."""

    image: object
    label: str | None
    name: str
    group: str | None = None
    channels_first: bool | None = None
    boxes: tuple[TrueBox, ...] | None = None
    questions: tuple[ImageQuestion, ...] | None = None


@dataclass(frozen=True)
class ImageSet:
    """`length` images, each read by `read(position)`; `classes` in the order of the data set's own indices, if any.

    `test_set`: what is left out of a folder, and where labels come from.
    """

    length: int
    read: Callable[[int], LabelledImage]
    classes: list[str] | None = None
    test_set: TestSet = field(default_factory=TestSet)


Columns = Mapping[str, object]  # of a Hugging Face data set: name → feature
WithTruth = Callable[[LabelledImage, object, Sequence[str] | None], LabelledImage]


class Truths(NamedTuple):
    """How the ground truth of a kind of task is read from each form of a data set; `note` says where it is from.

    `pair` and `maite` add the truth of a target to its image, given the names of the classes.
    """

    files: Callable[[Sequence[Path], Collection[str], Path | None], ImageSet]
    pair: WithTruth
    maite: WithTruth
    hugging_face: Callable[[Indexed, Columns, Sequence[str] | None, str | None], ImageSet]
    note: str


def read_dataset(
    dataset: object,
    classes: Sequence[str] | None,
    labels: Path | None,
    label_column: str | None = None,
    known_classes: Collection[str] = (),
    truths: Truths | None = None,
) -> ImageSet:
    """The images of a data set. `classes` gives integer labels their names; `labels` is a manifest for files.

    `known_classes` helps to tell class folders from others. `label_column` is the column of a Hugging Face data set
    with the ground truth; it is found without it if only one can be meant. `truths`: labels, unless given. Raises
    ValueError for a data set that it cannot read, or an empty one, and for an archive what intake raises.
    """
    truths = truths or LABELS
    features = getattr(dataset, "features", None) if hasattr(dataset, "column_names") else None
    if label_column is not None and features is None:
        raise ValueError("`label_column` is a column of a Hugging Face data set; leave it out for other data sets")
    paths = [dataset] if isinstance(dataset, str | Path) else dataset
    if isinstance(paths, list | tuple) and paths and all(isinstance(path, str | Path) for path in paths):
        files = [Path(path) for path in paths]
        if missing := [str(path) for path in files if not path.exists()]:
            raise ValueError(
                f"there is no folder or file {', '.join(missing)}; give images, folders, or one zip or tar"
            )
        return truths.files(files, {*(classes or ()), *known_classes}, labels)
    if labels is not None:
        raise ValueError("`labels` is the manifest of files; give labels with the images, or leave it out")
    if isinstance(dataset, Mapping):
        raise ValueError(f"the data set has the splits {', '.join(map(repr, dataset))}; give one of them")
    if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        raise ValueError(f"a {type(dataset).__name__} is no data set; give a folder, a list, or a data set with len()")
    indexed = cast(Indexed, dataset)
    if len(indexed) == 0:
        raise ValueError("the data set is empty; give at least one image")
    if is_maite(dataset):
        return _maite(indexed, classes, truths)
    if features is not None:
        return truths.hugging_face(indexed, cast(Columns, features), classes, label_column)
    return _pairs(indexed, names_of_indices(classes, _own_classes(dataset)), truths)


def is_maite(candidate: object) -> bool:
    """Whether an object has the metadata that MAITE's protocols require of data sets and models."""
    metadata = getattr(candidate, "metadata", None)
    return isinstance(metadata, Mapping) and "id" in metadata


def index_names(candidate: object) -> list[str] | None:
    """MAITE's `index2label` in the order of its indices, or None. Raises ValueError for indices with gaps."""
    names = cast(Mapping[str, Mapping[int, str]], getattr(candidate, "metadata", {})).get("index2label")
    if names is None:
        return None
    if sorted(names) != list(range(len(names))):
        raise ValueError("index2label skips indices; name every output of the model from 0 on")
    return [names[index] for index in range(len(names))]


def _files(paths: Sequence[Path], known_classes: Collection[str], labels: Path | None) -> ImageSet:
    """The images of files and folders, or of one archive."""
    if len(paths) == 1 and is_archive_file(paths[0]):
        return archive_set(paths[0], known_classes, labels)
    local = gather(paths)
    rows = local.label(labels, known_classes)

    def read(position: int) -> LabelledImage:
        name, path = local.images[position]
        return LabelledImage(path, rows[position].label, name, rows[position].group)

    return ImageSet(len(local.images), read, test_set=local.test_set)


def archive_set(
    path: Path, known_classes: Collection[str], labels: Path | None, *, boxes: bool = False, questions: bool = False
) -> ImageSet:
    """The images of an archive, as the gateway takes them in. They are kept in a folder for as long as the result."""
    folder = tempfile.TemporaryDirectory(prefix="contrafact-")
    store = DirectoryStore(Path(folder.name))

    def read(position: int) -> LabelledImage:
        source = kept[position]
        assert source.image is not None
        data = store.get(image_key(source.image.digest))
        name, label, group = source.name, source.label, source.group
        return LabelledImage(data, label, name, group, boxes=source.boxes, questions=source.questions)

    weakref.finalize(read, folder.cleanup)
    manifest, limits = None if labels is None else labels.read_bytes(), intake_limits(Settings.model_construct())
    with path.open("rb") as file:
        files = [NamedFile(path.name, file)]
        sources, test_set = take_in(files, manifest, known_classes, store, limits, boxes=boxes, questions=questions)
    test_set.left_out |= {source.name: source.failure for source in sources if source.failure}
    kept = [source for source in sources if source.image is not None]
    return ImageSet(len(kept), read, test_set.classes or None, test_set)


def _pairs(dataset: Indexed, classes: list[str] | None, truths: Truths) -> ImageSet:
    folder = _common_folder(dataset) if isinstance(dataset, list | tuple) else None

    def read(position: int) -> LabelledImage:
        item = dataset[position]
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise ValueError(
                f"item {position} of the data set is {described(item)}; each must be a pair (image, label), whose "
                "label may be None"
            )
        image, label = item
        name = _path_name(image, folder) if isinstance(image, str | Path) else position_name(position)
        return truths.pair(LabelledImage(image, None, name), label, classes)

    return ImageSet(len(dataset), read, classes, TestSet(labels_from=truths.note))


def _common_folder(items: Sequence[object]) -> str | None:
    """The folder below which all files of a list of pairs are, or None for a list without files."""
    images = [item[0] for item in items if isinstance(item, tuple | list) and len(item) == 2]
    files = [os.path.abspath(image) for image in images if isinstance(image, str | Path)]
    return os.path.commonpath([os.path.dirname(file) for file in files]) if files else None


def _path_name(file: str | Path, folder: str | None) -> str:
    """The file's path below the folder, which tells `a/0.png` from `b/0.png`; without a folder the path as given."""
    return Path(file if folder is None else os.path.relpath(file, folder)).as_posix()


def _maite(dataset: Indexed, classes: Sequence[str] | None, truths: Truths) -> ImageSet:
    names = names_of_indices(classes, index_names(dataset))

    def read(position: int) -> LabelledImage:
        image, target, metadata = cast(tuple[object, object, Mapping[str, object]], dataset[position])
        name = str(metadata["id"])
        return truths.maite(LabelledImage(image, None, name, channels_first=True), target, names)

    return ImageSet(len(dataset), read, names, TestSet(labels_from=truths.note))


def _maite_label(target: object, names: Sequence[str] | None, image: str) -> str | None:
    """The class of a target, which has a score for each class; no class has a positive score without ground truth."""
    scores = as_array(target)
    if scores.ndim != 1 or scores.dtype.kind not in "biuf":
        raise ValueError(f"{image!r}: a target is {described(target)}; give one score for each class")
    return _label(int(scores.argmax()), names, image) if scores.size and scores.max() > 0 else None


def _hugging_face(
    dataset: Indexed, features: Mapping[str, object], classes: Sequence[str] | None, chosen: str | None
) -> ImageSet:
    image_column = find_image_column(features)
    label_column = _label_column(features, image_column, chosen)
    if label_column is not None:
        _refuse_unreadable_labels(label_column, features[label_column], classes)
    declared = getattr(features.get(label_column or ""), "names", None)
    names = names_of_indices(classes, declared)

    def read(position: int) -> LabelledImage:
        row = cast(Mapping[str, object], dataset[position])
        name = position_name(position)
        label = _label(row[label_column], names, name) if label_column is not None else None
        return LabelledImage(row[image_column], label, name)

    source = f"labels are read from the column {label_column}" if label_column else "no labels: no column has them"
    return ImageSet(len(dataset), read, names, TestSet(labels_from=source))


def find_image_column(features: Mapping[str, object]) -> str:
    """The column of kind Image. Raises ValueError unless there is exactly one, whose images are decoded."""
    columns = [name for name, feature in features.items() if type(feature).__name__ == "Image"]
    if not columns:
        raise ValueError(f"no column of the data set has images; its columns are {', '.join(features)}")
    if len(columns) > 1:
        raise ValueError(f"columns {', '.join(columns)} of the data set are of kind Image; keep one (select_columns)")
    (column,) = columns
    if getattr(features[column], "decode", True) is False:
        raise ValueError(
            f"column {column} of the data set has Image(decode=False); give it decoded: "
            f"dataset.cast_column({column!r}, datasets.Image())"
        )
    return column


def _label_column(features: Mapping[str, object], image_column: str, chosen: str | None) -> str | None:
    """The column with the ground truth: the chosen one, else the only one that can be meant, else None with a warning.

    Candidates are columns of kind ClassLabel and those with a usual name. Raises ValueError if several are, or one is
    neither of kind ClassLabel nor named `label`.
    """
    if chosen is not None:
        if chosen not in features:
            raise ValueError(f"the data set has no column {chosen}, the `label_column`; it has {', '.join(features)}")
        return chosen
    declared = [name for name, feature in features.items() if type(feature).__name__ == CLASS_LABEL]
    candidates = [name for name in features if name in declared or name.lower() in LIKELY_LABELS]
    if len(candidates) > 1:
        raise ValueError(
            f"columns {', '.join(candidates)} of the data set may all be its labels; name one as `label_column`"
        )
    if not candidates:
        _warn_of_ignored([name for name in features if name != image_column])
        return None
    (column,) = candidates
    if column not in declared and column != LABEL:
        raise ValueError(
            f"column {column} of the data set may be its labels, and is not of kind {CLASS_LABEL}; give "
            f"label_column={column!r}, or leave it out (remove_columns)"
        )
    return column


def _warn_of_ignored(columns: Sequence[str]) -> None:
    if columns:
        warnings.warn(
            f"no column of the data set is known to be its labels; ignored: {', '.join(columns)}. The test finds out "
            "whether predictions change, not whether they are right. If one is the ground truth, give `label_column`",
            stacklevel=2,
        )


def _refuse_unreadable_labels(column: str, feature: object, classes: Sequence[str] | None) -> None:
    """Raise ValueError unless a column has names of classes, or indices that have names."""
    if type(feature).__name__ == CLASS_LABEL:
        return
    kind = str(getattr(feature, "dtype", "")) if type(feature).__name__ == "Value" else type(feature).__name__
    if kind.startswith(("int", "uint")):
        if classes is None:
            raise ValueError(
                f"column {column} of the data set has integers; give `classes`, in the order of the labels"
            )
    elif not kind.startswith(("string", "large_string")):
        raise ValueError(
            f"column {column} of the data set has values of kind {kind}; give names of classes (strings), or their "
            "indices (integers) and `classes`"
        )


def names_of_indices(given: Sequence[str] | None, own: Sequence[str] | None) -> list[str] | None:
    """The names of a data set's indices: those given, unless they are its `own` in the order of the model's outputs."""
    chosen = own if given is None or (own is not None and set(given) == set(own)) else given
    return None if chosen is None else list(chosen)


def _own_classes(dataset: object) -> list[str] | None:
    """The `classes` of torchvision's data sets."""
    classes = getattr(dataset, "classes", None)
    return [str(name) for name in classes] if isinstance(classes, list | tuple) else None


def _label(label: object, classes: Sequence[str] | None, image: str) -> str | None:
    """The name of an image's label; -1 is none. Raises ValueError for an index without names, and for odd labels."""
    if hasattr(label, "item") and math.prod(getattr(label, "shape", ())) == 1:
        label = cast(Any, label).item()  # a number of NumPy or torch
    if label is None or isinstance(label, str):
        return _usable(label, image)
    if not isinstance(label, Integral):
        raise ValueError(f"{image!r}: a label is {described(label)}; give the name of a class, its index, or None")
    index = int(label)
    if index == -1:
        return None
    if classes is None or not 0 <= index < len(classes):
        raise ValueError(f"{image!r}: label {index} has no name; give `classes`, in the order of the labels")
    return classes[index]


def _usable(label: str | None, image: str) -> str | None:
    """The label. Raises ValueError for one that the system refuses, such as an empty one."""
    try:
        return LABEL_TYPE.validate_python(label)
    except ValidationError as error:
        reason = str(error.errors()[0]["msg"]).removeprefix("Value error, ")
        raise ValueError(
            f"{image!r}: the label {str(label)[:100]!r} cannot be used: {reason}; the label may be None"
        ) from error


def described(value: object) -> str:
    """A short description of what was given: a number itself, else its type with shape, length or keys."""
    kind = type(value).__name__
    if isinstance(value, bool | int | float):
        return repr(value)
    if hasattr(value, "shape"):
        return f"a {kind} of shape {tuple(value.shape)}"
    if isinstance(value, Mapping):
        return f"a {kind} with {', '.join(map(repr, list(value)[:5]))}"
    return f"a {kind} of {len(value)}" if isinstance(value, list | tuple | set | bytes) else f"a {kind}"


def position_name(position: int) -> str:
    """The name of an image without one."""
    return f"{position:06}"


LABELS = Truths(
    _files,
    lambda image, target, classes: replace(image, label=_label(target, classes, image.name)),
    lambda image, target, classes: replace(image, label=_maite_label(target, classes, image.name)),
    _hugging_face,
    "labels are those of the data set",
)
