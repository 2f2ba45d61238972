"""Cells in words."""

from __future__ import annotations

import pytest

from shared.schemas.designs import Factor
from shared.schemas.effects import Cell
from shared.wording import change_in_words


@pytest.mark.parametrize(
    ("factor", "value", "words"),
    [("weather", "night", "with weather changed to night"), ("other", "fog 5", "with the image changed to fog 5")],
)
def test_a_change_without_a_factor_is_one_of_the_image(factor: Factor, value: str, words: str) -> None:
    assert change_in_words(Cell(label="bus", factor=factor, value=value, direction="to")) == words
