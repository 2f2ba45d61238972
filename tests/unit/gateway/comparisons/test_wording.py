"""Differences of effects as sentences."""

from __future__ import annotations

from gateway.comparisons.sides import difference_sentence, open_differences_sentence
from shared.schemas.comparisons import CellDifference
from shared.schemas.effects import Cell, Interval
from shared.schemas.masks import ALL_CLASSES

NIGHT = Cell(label="bus", factor="weather", value="night", direction="to")
ROW = CellDifference(
    cell=NIGHT,
    sources=40,
    effect=-0.62,
    other_effect=-0.03,
    difference=-0.59,
    interval=Interval(low=-0.8, high=-0.33, level=0.95, kind="betting"),
    selected_interval=None,
    p_value=0.001,
    q_value=0.004,
    judgement="no difference found",
)


def test_a_difference_is_a_sentence() -> None:
    assert difference_sentence(ROW) == (
        "`bus` at night: −62 points against −3, difference −59, 95 % interval −80 to −33, 40 source images"
    )


def test_the_interval_of_a_called_difference_is_the_adjusted_one() -> None:
    selected = Interval(low=-0.9, high=-0.2, level=0.99, kind="betting")
    assert "95 % interval −90 to −20 (adjusted for selection)" in difference_sentence(
        ROW.model_copy(update={"selected_interval": selected})
    )


def test_cells_without_a_class_have_a_name() -> None:
    names = {
        difference_sentence(ROW.model_copy(update={"cell": cell})).partition(":")[0]
        for cell in (
            None,
            NIGHT.model_copy(update={"label": ""}),
            NIGHT.model_copy(update={"label": ALL_CLASSES}),
        )
    }
    assert names == {
        "all counterfactuals",
        "all classes at night",
        "the whole image at night",
    }


def test_a_difference_that_no_test_ruled_out_is_not_settled() -> None:
    """ "No difference found" stood above −100 points on 8 images, folded away with the untested cells."""
    untested = ROW.model_copy(update={"sources": 8, "interval": None, "judgement": "too few images"})
    wide = ROW.model_copy(update={"interval": Interval(low=-0.9, high=0.1, level=0.95, kind="betting")})
    small = untested.model_copy(update={"difference": 0.05})
    sentence = open_differences_sentence([small, untested, wide, ROW])
    assert sentence == (
        "Not settled: 2 cells differ by more than 5 points (1 not significant, 1 with too few images to test). "
        + difference_sentence(ROW)
    )
    better = untested.model_copy(update={"difference": 1.0})
    assert open_differences_sentence([better]).startswith("Not settled: 1 cell differs by more than 5 points (1 with")
    assert open_differences_sentence([small, wide, ROW.model_copy(update={"judgement": "worse"})]) == ""
