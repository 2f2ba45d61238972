"""Read the table that names the label or mask of each file, and match its names with those of the files.

Ours is CSV (`file,label` or `file,mask`) or JSON Lines (`{"file": …, "label": …}`); a column `group` names images that
belong together, such as the frames of one sequence. Questions have columns of their own, `file,question,answer` and
perhaps `type`, `options` and `key`, a row for each (`shared.schemas.questions`); several options or answers stand
between `|`. In JSON Lines they are a list `questions`, or one `question` with its `answer`. Read as well:
`metadata.csv` and `metadata.jsonl` of the Hub (`file_name`), other tables with a column of files and one of labels or
questions, and lists without a header (`a.png,bus`).
"""

from __future__ import annotations

import codecs
import csv
import io
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, ValidationError, model_validator
from pydantic_core import from_json

from shared.problems import InvalidInput, Malformed, quote, validation_sentence
from shared.schemas.base import Contract
from shared.schemas.boxes import TrueBoxes
from shared.schemas.jobs import GroupName
from shared.schemas.masks import Label
from shared.schemas.questions import MAX_QUESTIONS, ImageQuestions

if TYPE_CHECKING:
    from _csv import Reader

COLUMNS = ("file", "label", "mask", "group")
QUESTION = "question"
QUESTION_COLUMNS = {  # of a table with a column `question`
    QUESTION: QUESTION,
    "answer": "answers",
    "answers": "answers",
    "type": "type",
    "options": "options",
    "choices": "options",
    "tolerance": "tolerance",
    "key": "key",
    "becomes": "becomes",
}
_SEVERAL_IN_CELL = {"options", "answers"}
# Of other people's tables, in the order in which they count; Kaggle's ImageNet has `ImageId,PredictionString`.
FILE_COLUMNS = ("file_name", "filename", "image", "image_path", "path", "filepath", "img", "image_id", "imageid", "id")
LABEL_COLUMNS = ("label", "labels", "class", "class_name", "category", "target", "predictionstring")
PREDICTED = re.compile(
    r"pred(s|icted|iction|ictions)?([ _-].*)?|.*[ _-]pred(icted|iction)?|score|prob|probability|confidence"
)
_INDEX_COLUMNS = {"", "unnamed: 0"}  # of a table that pandas wrote with its index
_TWO_WORDS = "predictionstring"  # a class, then the boxes of its objects
SEVERAL = "label_columns"  # the member of a refusal of several columns of labels
ANNOUNCE_QUESTIONS = "but the spec does not say how to compare answers; give `questions` in it"
_DELIMITERS = ",;\t"
_IMAGE_NAME = re.compile(r".\.(png|jpe?g|jfif|webp|bmp|tiff?|avif)$", re.IGNORECASE)
_ABSOLUTE = re.compile(r"(/|[A-Za-z]:)")


class ManifestRow(Contract):
    """One line: the name of an uploaded file and its ground truth (a label, a mask file, boxes, or nothing)."""

    file: Annotated[str, Field(min_length=1, max_length=1_000)]
    label: Label | None = None
    mask: Annotated[str | None, Field(min_length=1, max_length=1_000)] = None
    group: GroupName | None = None
    boxes: TrueBoxes | None = None  # in pixels of the upright image
    questions: ImageQuestions | None = None

    @model_validator(mode="before")
    @classmethod
    def _one_question(cls, value: Any) -> Any:
        """A row with a column `question` has one of the `questions`."""
        if not isinstance(value, dict) or QUESTION not in value:
            return value
        question = {QUESTION_COLUMNS[name]: part for name, part in value.items() if name in QUESTION_COLUMNS}
        return {**{name: part for name, part in value.items() if name not in QUESTION_COLUMNS}, "questions": [question]}


@dataclass(frozen=True, slots=True)
class Manifest:
    """The rows by file name. `label_column` has the labels, "" if none does; `ignored` are columns of no meaning here.

    `ours`: the table has our own column `file`, so it must name exactly the files that there are.
    """

    rows: dict[str, ManifestRow]
    label_column: str = "label"
    ignored: tuple[str, ...] = ()
    ours: bool = True


def parse_manifest(data: bytes) -> Manifest:
    """A manifest: JSON Lines if the first character is `{`, CSV with a header otherwise.

    Raises `Malformed` or `InvalidInput` with the number of the line.
    """
    text = decode_text(data, "the manifest")
    if "\0" in text or "\\u0000" in text:
        raise InvalidInput("the manifest contains the character U+0000; leave it out")
    manifest = _json_lines(text) if text.lstrip().startswith("{") else _table(text)
    if not manifest.rows:
        raise InvalidInput("the manifest has no rows; give one per image, or leave the manifest out")
    return manifest


def decode_text(data: bytes, what: str) -> str:
    """UTF-8, with or without a byte order mark, or UTF-16 with one. Raises Malformed, which names `what`."""
    utf_16 = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    try:
        return data.decode("utf-16" if utf_16 else "utf-8-sig")
    except UnicodeDecodeError as error:
        raise Malformed(f"{what} is not UTF-8 text; save it as UTF-8") from error


def refuse_masks(rows: Sequence[ManifestRow]) -> None:
    """Raise InvalidInput if a manifest names masks, boxes or questions, for jobs whose ground truth is labels."""
    if any(row.mask for row in rows):
        raise InvalidInput("the manifest names masks, but the spec does not say what they mean; give `masks` in it")
    if any(row.boxes is not None for row in rows):
        raise InvalidInput("the manifest has boxes, but the spec does not say how to count them; give `boxes` in it")
    if any(row.questions for row in rows):
        raise InvalidInput(f"the manifest has questions, {ANNOUNCE_QUESTIONS}")


def match_rows(manifest: Manifest, names: Sequence[str], left_out: Sequence[str] = ()) -> list[ManifestRow | None]:
    """The row of each name, in order.

    Names are the same in NFC and NFD, with `/` and `\\`, with and without `./`, and in another case where only one is
    meant; a folder that all names share, and the one that an absolute path lies in, may be left out or be another.
    Our own manifest and the images must name exactly the same files, each once; its rows may name files that are
    `left_out`, too. A table of other people may have other rows, and images without a row then have None.
    """
    if repeated := sorted(name for name, count in Counter(names).items() if count > 1):
        raise InvalidInput(f"with a manifest, file names must be distinct; sent more than once: {quote(repeated)}")
    keys = _keys(list(manifest.rows), names, left_out)
    if manifest.ours:
        _refuse_other_files(manifest.rows, names, keys)
    return [None if key is None else manifest.rows[key] for key in keys[: len(names)]]


def _refuse_other_files(rows: Mapping[str, ManifestRow], names: Sequence[str], keys: Sequence[str | None]) -> None:
    if missing := sorted(set(rows) - set(keys)):
        raise InvalidInput(f"the manifest names files that were not sent: {quote(missing)}; send them or drop the rows")
    if unlisted := [name for name, key in zip(names, keys, strict=False) if key is None]:
        root = shared_folder(names)
        without_root = sorted(name.removeprefix(root) for name in unlisted)
        raise InvalidInput(f"the manifest has no row for {quote(without_root)}; add one (its label may be empty)")


def shared_folder(names: Sequence[str]) -> str:
    """The top folder that all names lie in, with its slash; empty if there is none."""
    folders = {name.partition("/")[0] if "/" in name else "" for name in names}
    folder = folders.pop() if len(folders) == 1 else ""
    return f"{folder}/" if folder else ""


def clean_name(name: str) -> str:
    """A name as names are compared: NFC, with `/`, without `./` and doubled slashes."""
    parts = unicodedata.normalize("NFC", name).replace("\\", "/").split("/")
    return "/".join(part for position, part in enumerate(parts) if part != "." and (part or position == 0))


def _keys(rows: Sequence[str], names: Sequence[str], left_out: Sequence[str]) -> list[str | None]:
    """The row that each name means, or None: of several ways to read the names, that which finds most rows."""
    best: list[str | None] = [None] * (len(names) + len(left_out))
    cleaned = [[clean_name(name) for name in part] for part in (rows, names, left_out)]
    for of_rows, of_names in _readings(*cleaned):
        found = _equal(rows, of_rows, of_names)
        if found.count(None) < best.count(None):
            best = found
        if None not in best:
            break
    return best


def _equal(rows: Sequence[str], of_rows: Sequence[str], of_names: Sequence[tuple[str, ...]]) -> list[str | None]:
    """For each name the row with an equal key. In another case only where one row and one name are meant."""
    exact = dict(zip(of_rows, rows, strict=True))
    if len(exact) < len(rows):
        twice = sorted(key for key, count in Counter(of_rows).items() if count > 1)
        raise InvalidInput(f"the manifest names {quote(twice)} in two ways; name each file once")
    found = [next((exact[key] for key in keys if key in exact), None) for keys in of_names]
    folded = Counter(key.casefold() for key in of_rows)
    names = Counter(key.casefold() for keys in of_names for key in set(keys))
    by_case = {key.casefold(): row for key, row in exact.items() if folded[key.casefold()] == 1}
    for position, keys in enumerate(of_names):
        if found[position] is None:
            alone = (by_case[fold] for key in keys if names[fold := key.casefold()] == 1 and fold in by_case)
            found[position] = next(alone, None)
    return found


def _readings(
    rows: Sequence[str], names: Sequence[str], left_out: Sequence[str]
) -> Iterator[tuple[Sequence[str], Sequence[tuple[str, ...]]]]:
    """Keys of rows and of all names that may be equal: whole names, then without the folders that all `names` share.

    Files that are left out may lie anywhere, such as in the folder `__MACOSX` that a Mac adds to an archive.
    """
    root, everything = shared_folder(names), [*names, *left_out]
    yield rows, [(name, name.removeprefix(root)) for name in everything]
    of_rows, of_names = _common_folder(rows), _common_folder(names)
    if _same_place(of_rows, of_names):
        yield [row.removeprefix(of_rows) for row in rows], [(name.removeprefix(of_names),) for name in everything]
    if not any("/" in row for row in rows):
        bases = Counter(base := [name.rpartition("/")[2] for name in everything])
        yield rows, [(name,) if bases[name] == 1 else () for name in base]
        if not any(map(_IMAGE_NAME.search, rows)):  # Kaggle's tables name files without their suffixes
            stems = [name.rpartition(".")[0] for name in base]
            count = Counter(stems)
            yield rows, [(stem,) if count[stem] == 1 else () for stem in stems]


def _common_folder(paths: Sequence[str]) -> str:
    """The deepest folder that all paths lie in, with its slash; empty if there is none."""
    first, last = min(paths).split("/")[:-1], max(paths).split("/")[:-1]
    shared = next((n for n, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))
    return "".join(f"{part}/" for part in first[:shared])


def _same_place(of_rows: str, of_names: str) -> bool:
    """Whether the common folder of the rows may be that of the names, so that files of two folders are not mixed up."""
    if _ABSOLUTE.match(of_rows):  # of another machine, or from before the folder was renamed or moved
        return f"/{of_rows}".endswith(f"/{of_names.partition('/')[2]}")
    return f"/{of_rows}".endswith(f"/{of_names}") or f"/{of_names}".endswith(f"/{of_rows}")


def _table(text: str) -> Manifest:
    """A table whose first line is a header, or names an image. Its cells are separated as that line's are."""
    first = text.partition("\n")[0]
    delimiter = max(_DELIMITERS, key=first.count) if any(map(first.count, _DELIMITERS)) else ","
    if (delimiter == "," and "," not in first) and _IMAGE_NAME.search(first.strip().partition(" ")[0]):
        return _of_rows(_list_rows(text), "label")
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    try:
        cells = next(reader, [])
        header = [column.strip().lower() for column in cells]
        if len(cells) > 1 and _IMAGE_NAME.search(cells[0].strip()):
            return _of_rows(_list_rows(text, delimiter), "label")
        named = [name for name in header if name not in _INDEX_COLUMNS]
        columns = _columns(named)
        rows = _of_rows(_csv_rows(reader, header, columns), next((c for c in columns if columns[c] == "label"), ""))
    except csv.Error as error:
        raise Malformed(f"line {reader.line_num} of the manifest is not CSV: {error}") from error
    ours = "file" in header
    return Manifest(rows.rows, rows.label_column, tuple(name for name in named if name not in columns), ours)


def _columns(header: Sequence[str]) -> dict[str, str]:
    """What each column of a table means to us: `file`, `label`, `mask`, `group` or a part of a question.

    Others are left out. Those of a question mean something only beside a column `question`, and labels only without.

    Raises InvalidInput without a column of files, for unknown columns beside our own, several of labels, and if only
    predictions are left.
    """
    asked = {name: QUESTION_COLUMNS[name] for name in header if QUESTION in header and name in QUESTION_COLUMNS}
    known = {*COLUMNS, *asked}
    if "file" in header and not set(header) - known and len(set(header)) == len(header):
        return {name: asked.get(name, name) for name in header}
    files = [name for name in FILE_COLUMNS if name in header]
    if "file" in header or not files or len(set(header)) < len(header):
        raise InvalidInput(
            f"the manifest's first line is {','.join(header)[:200]!r}; it must be 'file,label' or 'file,mask', and "
            "may have a column 'group'"
        )
    labels = [] if asked else [name for name in header if name in LABEL_COLUMNS]
    if len(labels) > 1:
        raise InvalidInput(
            f"the columns {quote(labels)} of the manifest may all be its labels; keep one of them, or write a table "
            "`file,label` and send it as the part `manifest`",
            members={SEVERAL: [*labels]},
        )
    named = {name: name for name in ("mask", "group") if name in header} | asked
    if not (labels or named) and (predicted := [name for name in header if PREDICTED.fullmatch(name)]):
        raise InvalidInput(
            f"the column {predicted[0]!r} of the manifest has predictions, which are no ground truth; labels are read "
            "from a column such as `label`"
        )
    return {files[0]: "file", **dict.fromkeys(labels, "label"), **named}


def _csv_rows(reader: Reader, header: Sequence[str], columns: Mapping[str, str]) -> Iterator[tuple[int, ManifestRow]]:
    for cells in reader:
        if not cells:
            continue
        if len(cells) != len(header):
            raise InvalidInput(f"line {reader.line_num} of the manifest has {len(cells)} columns, not {len(header)}")
        values: dict[str, object] = {}
        for column, cell in zip(header, cells, strict=True):
            if columns.get(column) == "label" and "file" not in header:  # our own says every character
                cell = cell.strip()
            if column in columns and (cell or columns[column] == "file"):
                several = columns[column] in _SEVERAL_IN_CELL
                one = cell.partition(" ")[0] if column == _TWO_WORDS else cell
                values[columns[column]] = [part.strip() for part in cell.split("|")] if several else one
        yield reader.line_num, _row(values, reader.line_num)


def _list_rows(text: str, delimiter: str | None = None) -> Iterator[tuple[int, ManifestRow]]:
    """The rows of a list without a header: a file, its label, and perhaps more. `delimiter` None: spaces."""
    for number, line in enumerate(text.splitlines(), start=1):
        cells = [cell.strip() for cell in (line.rsplit(None, 1) if delimiter is None else line.split(delimiter))]
        if any(cells):
            label = cells[1] if len(cells) > 1 else ""
            yield number, _row({"file": cells[0], **({"label": label} if label else {})}, number)


def _json_lines(text: str) -> Manifest:
    lines = [(number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]
    try:
        first = from_json(lines[0][1])
        keys = [key for key in first if isinstance(key, str)] if isinstance(first, dict) else []
    except ValueError:
        keys = []
    if "file" in keys or not any(name in keys for name in FILE_COLUMNS):
        return _of_rows(((number, _row(line, number)) for number, line in lines), "label")
    columns = _columns([key.lower() for key in keys])
    rows = _of_rows(((n, _row(_renamed(line, columns), n)) for n, line in lines), "")
    label = next((name for name, meaning in columns.items() if meaning == "label"), "")
    return Manifest(rows.rows, label, tuple(key for key in keys if key.lower() not in columns), ours=False)


def _renamed(line: str, columns: Mapping[str, str]) -> str | dict[str, object]:
    """A row of other people's JSON Lines in our columns; the line itself if it is no object. Numbers become text."""
    try:
        row = from_json(line)
    except ValueError:
        return line
    if not isinstance(row, dict):
        return line
    values = {columns[key.lower()]: value for key, value in row.items() if key.lower() in columns and value is not None}
    return {name: str(value) if type(value) is int else value for name, value in values.items()}


def _of_rows(rows: Iterable[tuple[int, ManifestRow]], label_column: str) -> Manifest:
    by_file: dict[str, ManifestRow] = {}
    for number, row in rows:
        if by_file.get(row.file) == row:  # annotators and joined tables repeat rows
            continue
        if row.questions and row.file in by_file and (questions := by_file[row.file].questions):
            questions = [*questions, *(new for new in row.questions if new not in questions)]
            if len(questions) > MAX_QUESTIONS:
                raise InvalidInput(f"line {number} of the manifest: {row.file!r} has over {MAX_QUESTIONS} questions")
            by_file[row.file] = by_file[row.file].model_copy(update={"questions": questions})
            continue
        if row.file in by_file:
            raise InvalidInput(f"line {number} of the manifest names {row.file!r} again; name each file once")
        by_file[row.file] = row
    return Manifest(by_file, label_column)


def _row(source: str | dict[str, object], number: int) -> ManifestRow:
    try:
        return (
            ManifestRow.model_validate_json(source) if isinstance(source, str) else ManifestRow.model_validate(source)
        )
    except ValidationError as error:
        sentence = validation_sentence(error.errors(include_url=False, include_context=False, include_input=False))
        raise InvalidInput(f"line {number} of the manifest: {sentence}") from error
