"""Names of exported files are safe and unique."""

from __future__ import annotations

import io
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.export.files import END, MOST_BYTES, class_folders, member, safe_name
from gateway.intake.archive_members import ArchiveLimits
from gateway.intake.archives import members


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("traffic light", "traffic light"),
        ("自転車", "自転車"),
        ("../../etc/passwd", "_.._etc_passwd"),
        ("..", "_"),
        ("", "_"),
        (".hidden", "hidden"),
        ("CON", "CON_"),
        ("lpt1.png", "lpt1.png_"),
        ("-rf", "rf"),
        ("a\\b:c*d", "a_b_c_d"),
        ("ends. ", "ends"),
        ("cafe\u0301", "caf\u00e9"),
        ("a\u202egnp.exe", "a_gnp.exe"),
    ],
)
def test_names_say_what_they_may(text: str, name: str) -> None:
    assert safe_name(text) == name


@given(st.text())
def test_no_text_makes_a_path(text: str) -> None:
    name = safe_name(text)
    assert name
    assert name not in (".", "..")
    assert len(name.encode()) <= MOST_BYTES + 1
    assert not set(name) & set('/\\:*?"<>|\0\n')
    assert not name.startswith((".", "-", " "))
    assert not name.endswith((".", " "))
    assert all(unicodedata.category(c)[0] != "C" for c in name)


@given(st.lists(st.text(max_size=6), max_size=20))
def test_folders_differ_even_where_case_does_not_count(labels: list[str]) -> None:
    folders = class_folders(labels)
    assert set(folders) == {None, *labels}
    assert len({folder.casefold() for folder in folders.values()}) == len(folders)


@given(
    st.lists(
        st.tuples(st.text(min_size=1, max_size=120), st.binary(max_size=2_000).map(b" ".__add__)),
        min_size=1,
        max_size=5,
    )
)
def test_the_tar_is_read_by_the_strict_reader(files: list[tuple[str, bytes]]) -> None:
    names = [f"{number}-{safe_name(name)}.bin" for number, (name, _) in enumerate(files)]
    packed = b"".join(b"".join(member(name, data)) for name, (_, data) in zip(names, files, strict=True)) + END
    entries = list(members(io.BytesIO(packed), ArchiveLimits(10, 10_000, 100_000)))
    assert [(item.name, item.data) for item in entries] == list(zip(names, (d for _, d in files), strict=True))
