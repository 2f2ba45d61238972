"""The heat map's rows and shades, methods side by side, and what would settle an effect."""

from __future__ import annotations

import pytest

from gateway.report.settling import open_effects, steps_for
from gateway.web.heat_map import heat_maps, shade, side_by_side
from shared.schemas.effects import Cell, CellEffect, Direction
from shared.schemas.estimates import ChangedImages, Confirmation, Interval, Panel
from shared.schemas.results import ModelResults

INTERVAL = Interval(low=-0.9, high=-0.3, level=0.95, kind="betting")


def effect(value: str, points: int, label: str = "bus", direction: Direction = "to", sources: int = 20) -> CellEffect:
    """The effect of a cell; tested from 12 source images on."""
    tested = sources >= 12
    return CellEffect(
        cell=Cell(label=label, factor="weather", value=value, direction=direction),
        sources=sources,
        counterfactuals=sources,
        delta_accuracy=points / 100,
        delta_probability=None,
        interval=INTERVAL if tested else None,
        standing="nothing found" if tested else "too few images",
        images_needed=10 * sources,
    )


def results(method: str, *cells: CellEffect) -> ModelResults:
    return ModelResults(
        model="m", method=method, relation="labelled", sources=20, counterfactuals=40, left_out=0, cells=list(cells)
    )


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


def test_what_settles_a_finding_leaves_out_what_was_done() -> None:
    weakness = effect("night", -60).model_copy(
        update={"standing": "weakness", "changed": ChangedImages(n=12, reviewed=3, valid=3, sample=[])}
    )
    steps = steps_for("JOB", results("dillema", weakness), weakness)
    assert steps[0].startswith("Review its 12 changed images")
    assert any("`contrafact confirm JOB --with shifts --wait`" in step for step in steps)
    assert any("`contrafact dose JOB --wait`" in step for step in steps)
    done = weakness.model_copy(
        update={
            "changed": ChangedImages(n=12, reviewed=12, valid=12, sample=[]),
            "confirmation": Confirmation(job="OTHER", method="shifts", verdict="confirmed", sources=30),
            "panel": Panel(references=["r"], failing=["r"], suspect=True),
        }
    )
    steps = steps_for("JOB", results("dillema", done), done)
    assert steps[0].startswith("Look at its images first")
    assert not any("confirm" in step or "Review" in step for step in steps)
    assert not any("confirm" in step for step in steps_for("JOB", results("corruptions", weakness), weakness))


def test_open_effects_name_the_images_that_would_settle_them_the_fewest_first() -> None:
    figures = results("dillema", effect("snow", -9, sources=30), effect("night", -50, sources=5), effect("fog", -3))
    settled = effect("rain", -30, sources=20).model_copy(update={"images_needed": 12})
    assert open_effects(results("dillema", settled)) == []
    assert open_effects(figures) == [
        "`bus` with weather changed to night: −50 points on 5 images; about 50 would settle an effect of this size",
        "`bus` with weather changed to snow: −9 points on 30 images; about 300 would settle an effect of this size",
    ]
