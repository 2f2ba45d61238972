"""Characters that deceive, names that look the same, and cells of CSV files that are safe in spreadsheets."""

from __future__ import annotations

import pytest

from shared.characters import csv_cell, identity, is_deceptive


def test_what_nobody_sees_is_deceptive() -> None:
    assert all(map(is_deceptive, "\u200b\u2060\ufeff\u00ad\u202e\u3164\0\u2028\ufe00\U000e0041\U000e0100"))
    assert not any(map(is_deceptive, "aé車 \u00a0\u200c\u200d\u200e\u200f\u061c\ufe0f"))


def test_names_that_look_the_same_have_one_identity() -> None:
    names = ("Ann B", "ann  b", " ANN B", "Ann\u200d B", "Ann\ufe0f B", "Ａnn B", "Ann B\u2800")
    assert set(map(identity, names)) == {"ann b"}
    assert identity("Anna") != identity("Ann")


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "＝1"])
def test_no_cell_is_a_formula(text: str) -> None:
    assert csv_cell(text) == f"'{text}"


@pytest.mark.parametrize("value", ["bus", "a=b", "", -1, 0.5, None, True])
def test_other_cells_stay(value: object) -> None:
    assert csv_cell(value) == value
