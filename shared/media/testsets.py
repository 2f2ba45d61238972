"""What a test set is, in a folder, an archive, a form or a list: which files are images, and where labels come from.

    files ── part_of ──► image
                         table        manifest.csv, metadata.csv, labels.csv …   ─┐ label_images: the label of each
                         class file   0001.cls or 0001.json beside 0001.jpg      ─┘ image, or from its folders
                         all others are left out, with a reason

Every way into the system asks here, so that a folder, its zip and its list have the same images and labels. The module
reads no image: what cannot be decoded is found later, and left out or failed with its reason.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from pydantic import TypeAdapter

from shared.media.manifests import (
    PREDICTED,
    SEVERAL,
    Manifest,
    ManifestRow,
    clean_name,
    match_rows,
    parse_manifest,
    refuse_masks,
)
from shared.problems import InvalidInput, Problem, quote
from shared.schemas.base import MAX_IMAGES_PER_MESSAGE
from shared.schemas.masks import Label

Part = Literal["image", "table", "class file", ""]
MaskKind = Literal["none", "truth", "objects"]  # what the masks of a job are: none, its ground truth, or objects

MAX_TABLES = 100
MAX_TABLE_BYTES = 32 * 1024**2
MAX_CLASS_FILE_BYTES = 64 * 1024
MANIFEST_NAMES = ("manifest.csv", "manifest.jsonl")
HUB_NAMES = ("metadata.csv", "metadata.jsonl")  # each holds for the images below its folder
LABEL_NAMES = re.compile(r"(labels|annotations|_annotations|loc_val_solution|val_annotations)\.(csv|tsv|jsonl|txt)")
# Those that Contrafact decodes, and others that are images without doubt, whose refusal says what to do.
_DECODED = ("png", "apng", "jpg", "jpeg", "jpe", "jfif", "pjpeg", "webp", "bmp", "dib", "tif", "tiff", "avif")
_OTHERS = ("gif", "heic", "heif", "jp2", "jxl", "psd", "ico", "ppm", "pgm", "tga", "exr", "dng", "cr2", "nef", "arw")
IMAGE_SUFFIXES = frozenset((*_DECODED, *_OTHERS))
NO_IMAGE = "no image"
OTHER_TABLE = "a table that is not used"
SPREADSHEET = "a spreadsheet; save it as CSV with the columns file and label"
UNWANTED = "no labels, as the spec says"
EQUAL = "equal to an image that is used"
EQUAL_UNLIKE = "equal to an image with another label"
HIDDEN = "hidden, or kept by the operating system"
TABLE_SUFFIXES = (".csv", ".tsv", ".jsonl")
_LISTS = ("train.txt", "val.txt", "test.txt")  # Caffe's: a file and the index of its class on each line
JUNK = {"__macosx", "thumbs.db", "desktop.ini", "@eadir"}
_IMAGE_HEADS = (
    re.compile(
        rb"\x89PNG|\xff\xd8\xff|GIF8|BM.{4}\0{4}|II\*\0|MM\0\*|RIFF.{4}WEBP|8BPS|\xff\x0a|\0{3}\x0c(JXL |jP  )", re.S
    ),
    re.compile(rb".{4}ftyp(avif|avis|heic|heix|heim|hevc|mif1|msf1)", re.S),
)
HEAD_BYTES = 32  # of a file, which `part_of` needs
_SYNSET = re.compile(r"n\d{8}")  # WordNet's id of a class, as ImageNet names folders
_SPLITS = {"train", "training", "val", "valid", "validation", "test", "testing", "eval"}
_MASK_FOLDERS = frozenset({"masks", "mask", "annotations", "annotation", "labels", "label", "gt", "seg", "trimaps"})
_MASK_FOLDERS |= {"segmentation", "segmentations", "segmentationclass", "segmentationobject", "ground_truth"}
_IMAGE_FOLDERS = frozenset({"images", "image", "imgs", "img", "jpegimages", "rgb", ""})
_CITYSCAPES_MASKS = frozenset({"gtfine", "gtcoarse"})
_LABEL_KEYS = ("label", "cls", "class", "class_name")  # of a JSON file beside an image
_LABEL: TypeAdapter[str] = TypeAdapter(Label)
_PREDICTIONS = re.compile(r"(.*[ _-])?(submission|prediction|pred|output|result)s?([ _-].*)?\.\w+")  # names of tables
_LISTED = 3


def images_to_look_at(digests: Collection[str]) -> list[str]:
    """The digests of the images that are compared with the profile's domain: the lowest 16, a random sample."""
    return sorted(set(digests))[:MAX_IMAGES_PER_MESSAGE]


def part_of(name: str, head: bytes = b"") -> Part:
    """What a file of a test set is, by its name and first bytes; "" for one that is left out."""
    base = name.rpartition("/")[2].lower()
    suffix = base.rpartition(".")[2] if "." in base else ""
    if suffix in IMAGE_SUFFIXES:
        return "image"
    if base.endswith(TABLE_SUFFIXES) or LABEL_NAMES.fullmatch(base) or base in _LISTS:
        return "table"
    if any(pattern.match(head) for pattern in _IMAGE_HEADS):
        return "image"
    return "class file" if suffix in ("cls", "json") else ""


def is_hidden(name: str) -> bool:
    """Whether a file is hidden, lies in a hidden folder, or is one that operating systems leave behind."""
    return any((part.startswith(".") and part.strip(".")) or part.lower() in JUNK for part in name.split("/"))


def is_manifest(name: str) -> bool:
    """Whether a file is our own manifest, by its name; it may lie in subfolders."""
    return name.rpartition("/")[2].lower() in MANIFEST_NAMES


@dataclass(slots=True)
class TestSet:
    """The files of a test set other than its images, as they are gathered, and what becomes of all of them.

    `left_out`: name → why. `labels_from`: a sentence, once `label_images` has run. `classes`: those that were
    annotated, where they are known.
    """

    tables: dict[str, bytes] = field(default_factory=dict)
    class_files: dict[str, bytes] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    labels_from: str = ""
    classes: list[str] = field(default_factory=list)

    __test__ = False  # no class of tests

    def take_aside(self, name: str, part: Part, data: bytes) -> None:
        """Keep a table or class file; leave out what is neither. Raises InvalidInput for very many tables."""
        if part == "table":
            if len(self.tables) == MAX_TABLES:
                raise InvalidInput(f"there are more than {MAX_TABLES} tables; keep the one with the labels")
            self.tables[name] = data
        elif part == "class file" and len(data) <= MAX_CLASS_FILE_BYTES:
            self.class_files[name] = data
        else:
            self.left_out[name] = why_no_image(name)

    def lines(self, used: int, labelled: int) -> list[str]:
        """One line each: what is used, what is left out and why, and where labels come from."""
        reasons: dict[str, list[str]] = {}
        for name, why in self.left_out.items():
            reasons.setdefault(why, []).append(name)
        return [
            f"{used:,} image{'' if used == 1 else 's'} used, {labelled:,} with ground truth",
            *(f"{len(names):,} left out, {why}: {quote(names, _LISTED)}" for why, names in reasons.items()),
            *([self.labels_from] if self.labels_from else []),
        ]


def is_spreadsheet(name: str) -> bool:
    """Whether a file is a spreadsheet by its name; most are zips inside."""
    return name.lower().endswith((".xlsx", ".xlsm", ".xls", ".ods", ".numbers"))


def why_no_image(name: str) -> str:
    """Why a file is left out that is neither image nor table."""
    return SPREADSHEET if is_spreadsheet(name) else NO_IMAGE


def label_images(
    test_set: TestSet,
    names: Sequence[str],
    known_classes: Collection[str],
    manifest: tuple[str, bytes] | None = None,
    masks: MaskKind = "none",
    *,
    questions: bool = False,
) -> list[ManifestRow]:
    """The label, mask and group of each image: from the first of these that there is.

    1. `manifest` (its name and content), or our own manifest among the tables;
    2. `metadata.csv` or `metadata.jsonl` of the Hub, or a table called `labels`, `annotations` and the like;
    3. class files beside the images, as in WebDataset;
    4. class folders (`folder_labels`);
    5. the only other table that names images and their labels.

    Beside class folders, 2 and 3 count only if they label most of the images. Where `masks` are the ground truth, only
    1 counts; where `questions` are, 1, 2 and 5. What was read, and tables that were not, are noted in `test_set`.
    Raises InvalidInput and Malformed for a manifest that does not fit, and for masks if there are to be none.
    """
    if masks == "none":
        _refuse_folders_of_masks(names)
    own = [(name, data) for name, data in test_set.tables.items() if is_manifest(name)]
    chosen = [*([manifest] if manifest else []), *own]
    if len(chosen) > 1:
        raise InvalidInput(f"there is more than one manifest: {quote([name for name, _ in chosen])}; keep one")
    rows = None
    if chosen:
        name, data = chosen[0]
        table = parse_manifest(data)
        rows = _noted(test_set, names, match_rows(table, names, [*test_set.left_out]), [(name, table)])
    elif masks == "truth":
        rows = [_row(name, None) for name in names]
    elif questions:
        rows = _from_tables(test_set, names, 1) or _from_other_table(test_set, names)
        rows = rows or [_row(name, None) for name in names]
    if rows is None:
        labels, folders = folder_labels(names, known_classes)
        test_set.labels_from = folders
        needed = len(names) // 2 + 1 if any(labels) else 1
        rows = _from_tables(test_set, names, needed) or _from_class_files(test_set, names, needed)
        rows = rows or (None if any(labels) else _from_other_table(test_set, names))
        if rows and any(labels) and not any(row.label or row.questions for row in rows):  # a table of groups
            rows = [row.model_copy(update={"label": label}) for row, label in zip(rows, labels, strict=True)]
            test_set.labels_from = f"{folders}; {test_set.labels_from}"
        rows = rows or [_row(name, label) for name, label in zip(names, labels, strict=True)]
    for name in (*test_set.tables, *test_set.class_files):
        test_set.left_out.setdefault(name, OTHER_TABLE if name in test_set.tables else NO_IMAGE)
    test_set.labels_from += _on_splits(names, known_classes)
    if masks == "none" and not questions:
        refuse_masks(rows)
    return rows


def distinct(
    test_set: TestSet, names: Sequence[str], digests: Sequence[str | None], labels: Sequence[str | None]
) -> list[int]:
    """The positions of the images without those that are equal to another one, which `test_set` notes.

    Equal images are no independent ones. The first is kept, or the first with a label; if their labels differ, none is.
    Images without a digest are kept. Raises InvalidInput if no image is left.
    """
    alike: dict[str, list[int]] = {}
    for position, digest in enumerate(digests):
        alike.setdefault(digest or f"no digest {position}", []).append(position)
    kept: list[int] = []
    for positions in alike.values():
        labelled = [position for position in positions if labels[position] is not None]
        unlike = len({labels[position] for position in labelled}) > 1
        first = None if unlike else (labelled or positions)[0]
        kept += [] if first is None else [first]
        others = [names[position] for position in positions if position != first]
        test_set.left_out |= dict.fromkeys(others, EQUAL_UNLIKE if unlike else EQUAL)
    if not kept:
        raise InvalidInput(f"no image is left: each is {EQUAL_UNLIKE}; correct the labels")
    return sorted(kept)


def folder_labels(names: Sequence[str], known_classes: Collection[str]) -> tuple[list[str | None], str]:
    """The label of each image from the folders that it lies in, and a sentence on where labels come from or why not."""
    paths = [clean_name(name).split("/")[:-1] for name in names]
    known = {unicodedata.normalize("NFC", name) for name in known_classes}
    deepest = [
        next((part for part in reversed(path) if part in known or _SYNSET.fullmatch(part)), None) for path in paths
    ]
    beside = [len(path) <= len(_common(paths)) for path in paths]
    if any(deepest) and all(label or alone for label, alone in zip(deepest, beside, strict=True)):
        return _said(deepest, names)
    leaves = [path[-1] if path else None for path in paths]
    folders = {leaf for leaf, alone in zip(leaves, beside, strict=True) if leaf and not alone}
    if len(folders) > 1 and not any(beside) and not all(folder.lower() in _SPLITS for folder in folders):
        return _said(leaves, names)
    none: list[str | None] = [None] * len(names)
    if len(folders) > 1 and not any(beside):
        return none, f"no labels: the folders {quote(sorted(folders))} are parts of a data set, not classes"
    if len(folders) > 1:
        strays = [name for name, alone in zip(names, beside, strict=True) if alone]
        return none, (
            f"no labels: {quote(strays, _LISTED)} lie{'s' if len(strays) == 1 else ''} beside the folders "
            f"{quote(sorted(folders), _LISTED)}, which would be the classes; move it away, or give a manifest"
        )
    if len(set(leaves)) == 1 and leaves[0]:
        return none, (
            f"no labels: all images lie in one folder, {leaves[0]!r}, which is no class of the models; put them into a "
            "folder for each class, or give a manifest (file,label)"
        )
    return none, "no labels: there is no manifest (file,label), and the images lie in no class folders"


def _said(labels: Sequence[str | None], names: Sequence[str]) -> tuple[list[str | None], str]:
    classes = sorted({label for label in labels if label})
    without = [name for name, label in zip(names, labels, strict=True) if label is None]
    rest = f"; without one: {quote(without, _LISTED)}" if without else ""
    return list(labels), f"labels from the class folders {quote(classes)}{rest}"


def _on_splits(names: Sequence[str], known_classes: Collection[str]) -> str:
    """What to say of images that a model may have been trained on, beside others."""
    parts = {part for name in names for part in clean_name(name).split("/")[:-1]} - {*known_classes}
    splits = {part for part in parts if part.lower() in _SPLITS}
    if len(splits) < 2 or not any(part.lower().startswith("train") for part in splits):
        return ""
    return f"; the parts {quote(sorted(splits))} are tested together: leave out what the models were trained on"


def _common(paths: Sequence[list[str]]) -> list[str]:
    """The folders that all paths share."""
    first, last = min(paths), max(paths)
    same = next((n for n, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))
    return first[:same]


def _refuse_folders_of_masks(names: Sequence[str]) -> None:
    """Raise InvalidInput for images beside a folder of masks: the two would be classes."""
    paths = [clean_name(name).split("/")[:-1] for name in names]
    root = len(_common(paths)) if paths else 0
    paths = [["", *path[root:]] for path in paths]
    known = (_IMAGE_FOLDERS | _MASK_FOLDERS) - {""}
    folders = {next((part for part in path if part.lower() in known), path[-1]) for path in paths}
    masks = {folder for folder in folders if folder.lower() in _MASK_FOLDERS}
    images = {folder.lower() for folder in folders} - _MASK_FOLDERS
    if not (masks and images and images <= _IMAGE_FOLDERS):
        masks = {part for path in paths for part in path if part.lower() in _CITYSCAPES_MASKS}
    if masks:
        raise InvalidInput(
            f"there are images and a folder {quote(sorted(masks))}, but the spec does not say what the masks mean: "
            'give `masks`, for example {"classes": [{"name": "road", "index": 0}, {"name": "car", "index": 1}]}, with '
            "the masks in a folder `masks`, or leave that folder out"
        )


def _row(name: str, label: str | None) -> ManifestRow:
    return ManifestRow.model_construct(file=name, label=label, mask=None, group=None)


def _from_tables(test_set: TestSet, names: Sequence[str], needed: int) -> list[ManifestRow] | None:
    """Rows from `metadata.csv` of each folder, or else from the only table whose name says that it has labels."""
    bases = {name: name.rpartition("/")[2].lower() for name in test_set.tables}
    hub = _readable(test_set, [name for name in bases if bases[name] in HUB_NAMES])
    merged = {f"{_folder(name)}{file}": row for name, table in hub for file, row in table.rows.items()}
    rows = match_rows(Manifest(merged, ours=False), names) if hub else []
    if hub and _count(test_set, [name for name, _ in hub], rows, needed):
        return _noted(test_set, names, rows, hub)
    tables = _matching(test_set, names, [name for name in bases if LABEL_NAMES.fullmatch(bases[name])], needed)
    if len(tables) > 1:
        raise InvalidInput(
            f"{quote([name for name, _, _ in tables])} may each hold the labels; give the right one as the manifest"
        )
    return _noted(test_set, names, tables[0][2], [tables[0][:2]]) if tables else None


def _from_other_table(test_set: TestSet, names: Sequence[str]) -> list[ManifestRow] | None:
    """Rows from the only other table that names at least one of the images, and has no predictions."""
    tables = _matching(test_set, names, [name for name in test_set.tables if name not in test_set.left_out], 1)
    predictions = {
        name
        for name, table, _ in tables
        if _PREDICTIONS.fullmatch(name.rpartition("/")[2].lower()) or any(map(PREDICTED.fullmatch, table.ignored))
    }
    why = "a table of predictions; if it has the labels, name it manifest.csv"
    test_set.left_out |= dict.fromkeys(predictions, why)
    tables = [table for table in tables if table[0] not in predictions]
    if len(tables) > 1:
        test_set.labels_from += f"; {quote([name for name, _, _ in tables])} may each hold them: name one manifest.csv"
    return _noted(test_set, names, tables[0][2], [tables[0][:2]]) if len(tables) == 1 else None


def _matching(
    test_set: TestSet, names: Sequence[str], tables: Sequence[str], needed: int
) -> list[tuple[str, Manifest, list[ManifestRow | None]]]:
    """Those tables with labels that name at least `needed` of the images, with the row of each image."""
    matching = []
    for name, table in _readable(test_set, tables):
        rows = match_rows(replace(table, ours=False), names)
        if _count(test_set, [name], rows, needed):
            matching.append((name, table, rows))
    return matching


def _count(test_set: TestSet, sources: Sequence[str], rows: Sequence[ManifestRow | None], needed: int) -> bool:
    """Whether the `sources` of these rows name enough images to have the labels; they are left out otherwise."""
    named = sum(row is not None and bool(row.label or row.group or row.questions) for row in rows)
    why = f"labels of {named:,} of {len(rows):,} images only; the others' are from their folders"
    if named < needed:
        test_set.left_out |= dict.fromkeys(sources, why if named else "a table that names none of the images")
    return named >= needed


def _readable(test_set: TestSet, tables: Sequence[str]) -> list[tuple[str, Manifest]]:
    """The tables that have labels. The others are left out with a reason.

    Raises InvalidInput if one that should have them has several columns of labels.
    """
    readable = []
    for name in tables:
        try:
            table = parse_manifest(test_set.tables[name])
        except Problem as problem:
            base = name.rpartition("/")[2].lower()
            if SEVERAL in problem.members and (base in HUB_NAMES or LABEL_NAMES.fullmatch(base)):
                raise problem.about(name) from problem
            test_set.left_out[name] = f"no table of labels ({problem.detail})"
            continue
        if any(row.label or row.group or row.questions for row in table.rows.values()):
            readable.append((name, table))
        else:
            columns = f"; its other columns are {quote(table.ignored)}" if table.ignored else ""
            test_set.left_out[name] = f"a table without a column of labels, such as `label`{columns}"
    return readable


def _folder(name: str) -> str:
    return "".join(name.rpartition("/")[:2])


def _noted(
    test_set: TestSet, names: Sequence[str], rows: Sequence[ManifestRow | None], tables: Sequence[tuple[str, Manifest]]
) -> list[ManifestRow]:
    """The rows of the images. Notes in the test set which tables they are from and what of these was not used."""
    first = tables[0][1]
    column = f", column `{first.label_column}`" if first.label_column not in ("", "label") else ""
    ignored = f"; ignored columns: {', '.join(first.ignored)}" if first.ignored else ""
    without = [name for name, row in zip(names, rows, strict=True) if row is None]
    missing = f"; no row for {quote(without, _LISTED)}" if without else ""
    spare = sum(len(table.rows) for _, table in tables) - (len(names) - len(without))
    more = f"; {spare:,} rows for files that are not here" if spare > 0 and not first.ours else ""
    for name, _ in tables:
        test_set.tables.pop(name, None)
    others = "groups are" if any(row and row.group for row in rows) else "no labels: none are"
    words = "labels are" if any(row and (row.label or row.mask) for row in rows) else others
    words = "questions are" if any(row and row.questions for row in rows) else words
    test_set.labels_from = (
        f"{words} read from {quote([name for name, _ in tables], _LISTED)}{column}{ignored}{missing}{more}"
    )
    return [row or _row(name, None) for name, row in zip(names, rows, strict=True)]


def _from_class_files(test_set: TestSet, names: Sequence[str], needed: int) -> list[ManifestRow] | None:
    """Rows from `0001.cls` or `0001.json` beside `0001.jpg`, as in WebDataset."""
    for suffix in ("cls", "json"):
        files: dict[str, tuple[str, str]] = {}  # what is before the suffix → the file and its label
        for name, data in test_set.class_files.items():
            if name.lower().endswith(f".{suffix}") and (label := _label_in(data, suffix)) is not None:
                files[clean_name(name).rpartition(".")[0]] = (name, label)
        of_images = [files.get(key) for key in _keys_of_class_files(names, files)]
        rows = [None if file is None else _row(name, file[1]) for name, file in zip(names, of_images, strict=True)]
        used = {file[0] for file in of_images if file is not None}
        if used and _count(test_set, [*used], rows, needed):
            test_set.class_files = {name: data for name, data in test_set.class_files.items() if name not in used}
            test_set.labels_from = f"labels are read from the .{suffix} file beside each image"
            return [row or _row(name, None) for name, row in zip(names, rows, strict=True)]
    return None


def _keys_of_class_files(names: Sequence[str], files: Collection[str]) -> list[str]:
    """What the class file of each image is called, without its suffix: as the image, with or without its own suffix.

    If there is none, WebDataset's sample, the name up to the first dot, where only one image belongs to it.
    """
    clean = [clean_name(name) for name in names]
    exact = [next((key for key in (name.rpartition(".")[0], name) if key in files), "") for name in clean]
    samples = ["".join((*name.rpartition("/")[:2], name.rpartition("/")[2].partition(".")[0])) for name in clean]
    count = Counter(samples)
    return [key or (sample if count[sample] == 1 else "") for key, sample in zip(exact, samples, strict=True)]


def _label_in(data: bytes, suffix: str) -> str | None:
    """The label in a class file: the text of a .cls, or the member `label` or the like of a JSON object."""
    try:
        text = data.decode("utf-8-sig").strip()
        value = text if suffix == "cls" else json.loads(text)
        if isinstance(value, dict):
            value = next((value[key] for key in _LABEL_KEYS if key in value), None)
        return _LABEL.validate_python(str(value) if type(value) is int else value)
    except (ValueError, RecursionError):
        return None
