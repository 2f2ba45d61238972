"""Dose curves from arrays: which source images they hold, groups, and corruptions."""

from __future__ import annotations

import numpy as np
import pytest

from gateway.analysis.effects import Counting, Integers, Outcomes, Predictions, Ranks, Scores
from gateway.database.tables import Job
from gateway.methods import read_method
from gateway.results.doses import CellDoses, curve_of, doses_of_cell
from shared.schemas.effects import Cell, CellEffect, Standing
from tests.support.effects import cell

DOSES = (0.5, 1.0, 1.5)
AT = {dose: cell(f"night (dose {dose:g})") for dose in DOSES}
UNDONE = cell("night (undone)")


def predictions(right: Integers) -> Predictions:
    return Predictions(right.astype(float), np.where(right == 1, 1, 2), np.where(right == 1, 0, 1))


def outcomes_of(
    right: dict[str, list[int]], *, group: Integers | None = None, refused: tuple[int, ...] = ()
) -> Outcomes:
    """Outcomes whose cells have a row for each source image: 1 where the model is right on the image."""
    sources = len(next(iter(right.values())))
    source = np.tile(np.arange(sources), len(right))
    shown = np.concatenate([np.asarray(values) for values in right.values()])
    rows = {cell(value): np.arange(sources) + number * sources for number, value in enumerate(right)}
    ones, pairs = np.ones(len(source), np.int64), np.ones(len(source), bool)
    pairs[list(refused)] = False
    return Outcomes.of(
        Ranks(predictions(ones), predictions(ones), predictions(shown)),
        source=source,
        ordinal=np.arange(len(source)),
        null_arm=np.arange(len(source)),
        cells=rows,
        group=None if group is None else group[source],
        counting=Counting(pairs, pairs),
    )


def doses_of_night() -> CellDoses:
    return CellDoses("dillema", "guidance", AT, {dose: 2.5 * dose for dose in DOSES}, UNDONE)


RIGHT = {
    "night (dose 0.5)": [1] * 16 + [0] * 4,
    "night (dose 1)": [0] * 20,
    "night (dose 1.5)": [0] * 20,
    "night (undone)": [1] * 19 + [0],
}


def test_a_loss_that_begins_at_a_high_severity_grows() -> None:
    severities = {float(number): cell(f"fog {number}") for number in range(1, 6)}
    right = {f"fog {number}": [1] * (60 - lost) + [0] * lost for number, lost in enumerate([0, 0, 6, 24, 42], start=1)}
    doses = CellDoses("corruptions", "severity", severities, {dose: dose for dose in severities})
    curve = curve_of(outcomes_of(right), doses, "j", {}, 0)
    assert curve is not None
    assert curve.verdict == "grows"


def test_only_images_that_count_at_every_dose_are_in_the_curve() -> None:
    """Image 19 lost its pair at the smallest dose (row 19); it is undone all the same."""
    curve = curve_of(outcomes_of(RIGHT, refused=(19,)), doses_of_night(), "job", {}, 1)
    assert curve is not None
    assert (curve.sources, curve.groups, curve.verdict) == (19, None, "grows")
    assert [point.delta_accuracy for point in curve.points] == pytest.approx([-3 / 19, -1, -1])
    assert curve.undone is not None
    assert (curve.undone.sources, curve.undone.verdict) == (20, "returns")
    assert (curve.undone.regained, curve.undone.remaining) == pytest.approx((0.95, -0.05))


def test_groups_are_the_unit_of_every_interval() -> None:
    curve = curve_of(outcomes_of(RIGHT, group=np.arange(20) // 2), doses_of_night(), "job", {}, 1)
    assert curve is not None
    assert (curve.sources, curve.groups, curve.verdict) == (20, 10, "too few images")
    assert all(point.interval is None for point in curve.points)
    assert curve.undone is not None
    assert curve.undone.verdict == "too few images"


def test_a_job_without_a_common_image_has_no_curve() -> None:
    outcomes = outcomes_of(RIGHT, refused=tuple(range(20)))
    assert curve_of(outcomes, doses_of_night(), "job", {}, 1) is None


@pytest.mark.parametrize("standing", ["weakness", "nothing found"])
def test_the_severities_of_a_corruption_are_its_doses(standing: Standing) -> None:
    effect = CellEffect(
        cell=cell("gaussian noise 3"),
        sources=20,
        counterfactuals=20,
        delta_accuracy=-0.5,
        delta_probability=None,
        standing=standing,
    )
    doses = doses_of_cell(effect, "corruptions", Job(methods=[read_method("corruptions", {})]))
    if standing == "nothing found":
        assert doses is None
        return
    assert doses is not None
    assert [dose_cell.value for dose_cell in doses.cells.values()] == [
        f"gaussian noise {severity}" for severity in range(1, 6)
    ]
    lost = {
        dose_cell.value: [0] * 4 * int(dose) + [1] * (20 - 4 * int(dose)) for dose, dose_cell in doses.cells.items()
    }
    curve = curve_of(outcomes_of(lost), doses, "job", {}, 1)
    assert curve is not None
    assert (curve.parameter, curve.verdict, curve.undone) == ("severity", "grows", None)
    assert curve.trend == pytest.approx(-0.8)


def test_a_curve_of_one_of_several_classes_is_over_the_images_of_its_rows() -> None:
    """An image of two classes has three rows; that of the second image lies beyond the number of images."""
    doses = [1.0, 2.0]
    cells = {dose: Cell(label="bus", factor="other", value=f"fog {dose:g}", direction="to") for dose in doses}
    source = np.repeat(np.arange(14), 2)  # an image at each dose
    rows = 3 * len(source)
    bus = 3 * np.arange(len(source)) + 1
    scores = Scores(
        source=source,
        ordinal=np.tile([0, 1], 14),
        original=np.ones(len(source)),
        image=np.repeat(np.arange(len(source)), 3),
        null=np.ones(rows),
        counterfactual=np.tile([1, 0.8, 0.9, 1, 0.4, 0.7], 14),
        whole=bus + 1,
        cells={cell: bus[place::2] for place, cell in enumerate(cells.values())},
        counting=Counting(np.arange(len(source)) != 1, np.ones(len(source), bool)),
    )
    curve = curve_of(scores, CellDoses("corruptions", "severity", cells, {dose: dose for dose in doses}), "job", {}, 0)
    assert curve is not None
    assert curve.sources == 13, "the pair at dose 2 of the first image does not count"
    assert [point.delta_accuracy for point in curve.points] == pytest.approx([-0.2, -0.6])
