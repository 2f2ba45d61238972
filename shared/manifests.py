"""Find the label or mask of each file of a job, from a manifest or from class folders.

A manifest is CSV (`file,label` or `file,mask`) or JSON Lines (`{"file": …, "label": …}`). A column `group` names images
that belong together, such as the frames of one sequence.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Annotated

from pydantic import Field, ValidationError

from shared.problems import InvalidInput, Malformed, quote, validation_sentence
from shared.schemas.base import Contract
from shared.schemas.jobs import GroupName
from shared.schemas.masks import Label

COLUMNS = ("file", "label", "mask", "group")
MANIFEST_NAMES = ("manifest.csv", "manifest.jsonl")


class ManifestRow(Contract):
    """One line: the name of an uploaded file and its ground truth (a label, a mask file, or nothing)."""

    file: Annotated[str, Field(min_length=1, max_length=1_000)]
    label: Label | None = None
    mask: Annotated[str | None, Field(min_length=1, max_length=1_000)] = None
    group: GroupName | None = None


def parse_manifest(data: bytes) -> dict[str, ManifestRow]:
    """The rows by file name. JSON Lines if the first character is `{`, CSV with a header otherwise.

    Raises `Malformed` or `InvalidInput` with the number of the line.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Malformed("the manifest is not UTF-8 text; save it as UTF-8") from error
    if "\0" in text or "\\u0000" in text:
        raise InvalidInput("the manifest contains the character U+0000; leave it out")
    rows = _json_rows(text) if text.lstrip().startswith("{") else _csv_rows(text)
    by_file: dict[str, ManifestRow] = {}
    for number, row in rows:
        if row.file in by_file:
            raise InvalidInput(f"line {number} of the manifest names {row.file!r} again; name each file once")
        by_file[row.file] = row
    if not by_file:
        raise InvalidInput("the manifest has no rows; give one per image, or leave the manifest out")
    return by_file


def is_manifest(name: str) -> bool:
    """Whether a file of a folder or an archive is a manifest, by its name; it may lie in subfolders."""
    return name.rpartition("/")[2].lower() in MANIFEST_NAMES


def refuse_masks(rows: Iterable[ManifestRow]) -> None:
    """Raise InvalidInput if a manifest names masks, for jobs whose ground truth is labels."""
    if any(row.mask for row in rows):
        raise InvalidInput("the manifest names masks, but the spec does not say what they mean; give `masks` in it")


def match_rows(rows: Mapping[str, ManifestRow], names: Sequence[str]) -> list[ManifestRow]:
    """The row of each name, in order. Manifest and images must name exactly the same files, each once.

    A folder that all names share may be left out in the manifest ("set/a.png" matches "a.png").
    """
    if repeated := sorted(name for name, count in Counter(names).items() if count > 1):
        raise InvalidInput(f"with a manifest, file names must be distinct; sent more than once: {quote(repeated)}")
    root = shared_folder(names)
    keys = [name if name in rows else name.removeprefix(root) for name in names]
    if missing := sorted(set(rows) - set(keys)):
        raise InvalidInput(f"the manifest names files that were not sent: {quote(missing)}; send them or drop the rows")
    if unlisted := sorted(set(keys) - set(rows)):
        raise InvalidInput(f"the manifest has no row for {quote(unlisted)}; add one (its label may be empty)")
    return [rows[key] for key in keys]


def folder_labels(names: Sequence[str], known_classes: Collection[str]) -> list[str | None]:
    """Labels from class folders: the folder of each file, if every file is in one and the folders look like classes.

    They do if there are at least two, or if the only one has the name of a known class.
    """
    folders = [name.rpartition("/")[0].rpartition("/")[2] for name in names]
    if len(set(folders)) == 1:
        return list(folders) if folders[0] in known_classes else [None] * len(names)
    root = shared_folder(names)
    return list(folders) if all("/" in name.removeprefix(root) for name in names) else [None] * len(names)


def shared_folder(names: Sequence[str]) -> str:
    """The top folder that all names lie in, with its slash; empty if there is none."""
    folders = {name.partition("/")[0] if "/" in name else "" for name in names}
    folder = folders.pop() if len(folders) == 1 else ""
    return f"{folder}/" if folder else ""


def _csv_rows(text: str) -> Iterable[tuple[int, ManifestRow]]:
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        header = [column.strip().lower() for column in next(reader, [])]
        if "file" not in header or set(header) - set(COLUMNS) or len(set(header)) < len(header):
            raise InvalidInput(
                f"the manifest's first line is {','.join(header)[:200]!r}; it must be 'file,label' or 'file,mask', and "
                "may have a column 'group'"
            )
        for cells in reader:
            if not cells:
                continue
            if len(cells) != len(header):
                raise InvalidInput(
                    f"line {reader.line_num} of the manifest has {len(cells)} columns, not {len(header)}"
                )
            values = {column: cell for column, cell in zip(header, cells, strict=True) if cell or column == "file"}
            yield reader.line_num, _row(values, reader.line_num)
    except csv.Error as error:
        raise Malformed(f"line {reader.line_num} of the manifest is not CSV: {error}") from error


def _json_rows(text: str) -> Iterable[tuple[int, ManifestRow]]:
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            yield number, _row(line, number)


def _row(source: str | dict[str, str], number: int) -> ManifestRow:
    try:
        return (
            ManifestRow.model_validate_json(source) if isinstance(source, str) else ManifestRow.model_validate(source)
        )
    except ValidationError as error:
        sentence = validation_sentence(error.errors(include_url=False, include_context=False, include_input=False))
        raise InvalidInput(f"line {number} of the manifest: {sentence}") from error
