"""Manifests: labels come from their rows, and mistakes are reported with their line."""

from __future__ import annotations

import csv
import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.characters import is_deceptive
from shared.media.manifests import Manifest, ManifestRow, match_rows, parse_manifest
from shared.problems import InvalidInput, Malformed, Problem

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=20)
LABEL = TEXT.filter(lambda text: not any(map(is_deceptive, text)))


def labels_of(manifest: Manifest) -> dict[str, str | None]:
    return {name: row.label for name, row in manifest.rows.items()}


ROWS = st.dictionaries(TEXT, st.none() | LABEL, min_size=1, max_size=8)


@given(rows=ROWS)
def test_what_is_written_is_read(rows: dict[str, str | None]) -> None:
    lines = io.StringIO()
    writer = csv.writer(lines)
    writer.writerows([("file", "label"), *((file, label or "") for file, label in rows.items())])
    assert labels_of(parse_manifest(lines.getvalue().encode())) == rows
    jsonl = "\n".join(json.dumps({"file": file, "label": label}, ensure_ascii=False) for file, label in rows.items())
    assert labels_of(parse_manifest(jsonl.encode())) == rows


@given(
    data=st.binary(max_size=200)
    | st.text(max_size=200).map(lambda text: ("file,label\n" + text).encode("utf-8", "ignore"))
)
def test_nonsense_is_a_problem_never_a_crash(data: bytes) -> None:
    try:
        assert parse_manifest(data).rows
    except Problem as problem:  # refused, which is the other good outcome
        assert problem.status in (400, 422)  # noqa: PT017


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("name,label\na.png,car", "it must be 'file,label'"),
        ("file,label,weather\na.png,car,snow", "it must be 'file,label'"),
        ("file,label\na.png", "line 2 of the manifest has 1 column"),
        ("file,label\na.png,car\na.png,bus", "line 3 of the manifest names 'a.png'"),
        ("file,label\n", "no rows"),
        ('{"file": "a.png", "class": "car"}', "line 1 of the manifest: .*field class"),
        ('{"file": "a.png"}\n{"file"', "line 2 of the manifest"),
    ],
)
def test_mistakes_are_named(text: str, sentence: str) -> None:
    with pytest.raises(InvalidInput, match=sentence):
        parse_manifest(text.encode())


def test_other_encodings_are_refused() -> None:
    with pytest.raises(Malformed, match="UTF-8"):
        parse_manifest("file,label\nä.png,car".encode("latin-1"))


def test_labels_match_files_exactly() -> None:
    car, none = ManifestRow(file="a.png", label="car"), ManifestRow(file="bus/b.png", mask="b.png")
    labels = Manifest({"a.png": car, "bus/b.png": none})
    assert match_rows(labels, ["bus/b.png", "a.png"]) == [none, car]
    assert match_rows(labels, ["set/a.png", "set/bus/b.png"]) == [car, none]
    with pytest.raises(InvalidInput, match=r"not sent: 'bus/b\.png'"):
        match_rows(labels, ["a.png"])
    with pytest.raises(InvalidInput, match=r"no row for 'c\.png'"):
        match_rows(labels, ["a.png", "bus/b.png", "c.png"])
    with pytest.raises(InvalidInput, match=r"more than once: 'a\.png'"):
        match_rows(labels, ["a.png", "a.png"])


def test_groups_are_read_from_both_kinds_of_manifest() -> None:
    table = parse_manifest(b"file,label,group\na.png,car,drive 1\nb.png,car,\n")
    lines = parse_manifest(b'{"file": "a.png", "group": "drive 1"}\n{"file": "b.png"}\n')
    for rows in (table, lines):
        assert [rows.rows[name].group for name in ("a.png", "b.png")] == ["drive 1", None]
