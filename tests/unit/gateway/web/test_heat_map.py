"""The heat map's rows and shades, and methods side by side."""

from __future__ import annotations

import pytest

from gateway.web.results import MOST_CLASSES, heat_maps, shade, side_by_side
from tests.support.figures import effect, results


@pytest.mark.parametrize(
    ("points", "name"),
    [
        (0, "level"),
        (-4, "level"),
        (-5, "lower-1"),
        (-19, "lower-2"),
        (-40, "lower-4"),
        (-100, "lower-5"),
        (70, "higher-5"),
    ],
)
def test_five_points_are_the_first_shade_and_seventy_the_last(points: int, name: str) -> None:
    assert shade(effect("night", points)) == name


def test_a_map_has_a_row_for_each_value_and_a_gap_where_no_pair_counts() -> None:
    (to, origin) = heat_maps(
        results("dillema", effect("snow", -9), effect("night", -50, "car"), effect("day", 3, direction="from"))
    )
    assert (to.direction, to.classes) == ("to", ["bus", "car"])
    shown = {row.value: [cell and round(100 * cell.delta_accuracy) for cell in row.effects] for row in to.rows}
    assert shown == {"night": [None, -50], "snow": [-9, None]}
    assert (origin.direction, origin.classes) == ("from", ["bus"])
    assert heat_maps(results("dillema")) == []


def test_methods_stand_side_by_side_in_shared_cells_tested_ones_first_then_the_lowest() -> None:
    both = side_by_side(
        [
            results(
                "dillema", effect("snow", -9), effect("night", -50), effect("fog", -70), effect("rain", 0, sources=3)
            ),
            results("shifts", effect("snow", -60), effect("night", -40, sources=5), effect("rain", -90, sources=4)),
        ]
    )
    shown = [[cell and round(100 * cell.delta_accuracy) for cell in row] for row in both.rows]
    assert shown == [[-9, -60], [-50, -40], [0, -90]]
    assert [figures.method for figures in both.methods] == ["dillema", "shifts"]


def test_a_map_of_very_many_classes_has_those_with_the_largest_tested_effects() -> None:
    small = [effect("night", -1, f"class {number:03}") for number in range(MOST_CLASSES)]
    (to,) = heat_maps(results("dillema", *small, effect("night", -40, "zebra"), effect("night", -90, "few", sources=2)))
    assert (len(to.classes), to.more) == (MOST_CLASSES, 2)
    assert to.classes[-1] == "zebra"
    assert "few" not in to.classes
