"""Cells of CSV files are safe in spreadsheets."""

from __future__ import annotations

import pytest

from shared.characters import csv_cell


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "＝1"])
def test_no_cell_is_a_formula(text: str) -> None:
    assert csv_cell(text) == f"'{text}"


@pytest.mark.parametrize("value", ["bus", "a=b", "", -1, 0.5, None, True])
def test_other_cells_stay(value: object) -> None:
    assert csv_cell(value) == value
