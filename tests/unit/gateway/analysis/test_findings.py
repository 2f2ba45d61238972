"""Findings: the family, selection, the sentence, and that weak cells are not found."""

from __future__ import annotations

import numpy as np
import pytest
from statsmodels.stats.multitest import multipletests

from gateway.analysis.effects import Differences, Floats
from gateway.analysis.findings import assess
from gateway.results.wording import with_sentences
from shared.schemas.masks import ALL_CLASSES
from shared.schemas.results import Cell, CellEffect, Metric, Relation


def cell(value: str, label: str = "bus") -> Cell:
    return Cell(label=label, factor="weather", value=value, direction="to")


def seen(correct: Floats) -> Differences:
    return Differences(np.arange(len(correct)), correct.astype(float), correct / 2, 2 * len(correct))


def spoken(
    cells: dict[Cell, Differences], relation: Relation = "labelled", metric: Metric = "accuracy"
) -> list[CellEffect]:
    return with_sentences(assess(cells, seed=1), cells, relation, metric)


def graded(cells: int) -> dict[Cell, Differences]:
    """Cells of 20 sources, of which ever more are worse, and a quarter as many better."""
    return {cell(str(n)): seen(np.repeat([-1, 0, 1], [n, 20 - n - n // 4, n // 4])) for n in range(cells)}


@pytest.mark.parametrize("size", [1, 2, 7, 15])
def test_q_values_equal_those_of_statsmodels(size: int) -> None:
    effects = assess(graded(size), seed=size)
    p_values = np.array([effect.p_value for effect in effects])
    _, expected, _, _ = multipletests(p_values, alpha=0.05, method="fdr_bh")
    np.testing.assert_allclose([effect.q_value for effect in effects], expected, atol=1e-12, rtol=0)


def test_q_values_are_those_that_earlier_versions_printed() -> None:
    """Values of our own Benjamini-Hochberg procedure, before scipy's took its place."""
    earlier = (
        *(1.0, 1.0, 0.5769230769230769, 0.3409090909090909, 0.46874999999999994, 0.3281250000000003),
        *(0.20833333333333318, 0.1506696428571428, 0.20507812500000017, 0.1506696428571428, 0.11572265625000004),
        *(0.11230468750000004, 0.11572265625000004, 0.11230468750000004, 0.11230468750000004),
    )
    q_values = {effect.cell.value: effect.q_value for effect in assess(graded(15), seed=1)}
    np.testing.assert_allclose([q_values[str(n)] for n in range(15)], earlier, atol=1e-12, rtol=0)


def test_a_family_without_cells_has_no_findings() -> None:
    assert assess({}, seed=1) == []
    (effect,) = assess({cell("rain"): seen(-np.ones(5))}, seed=1)
    assert (effect.standing, effect.q_value) == ("too few images", None)


def test_a_planted_weakness_is_the_first_finding_and_speaks() -> None:
    cells = {
        cell("rain"): seen(np.repeat([-1, 0], [1, 15])),
        cell("night"): seen(np.repeat([-1, 0], [14, 2])),
        cell("fog"): seen(np.repeat([-1, 0, 1], [2, 12, 2])),
        cell("sunset"): seen(np.repeat([1, 0], [13, 3])),
        cell("snow"): seen(np.repeat([-1, 0], [3, 1])),
    }
    effects = spoken(cells)
    assert [effect.standing for effect in effects] == [
        "weakness", "improvement", "nothing found", "nothing found", "too few images",
    ]  # fmt: skip
    first = effects[0]
    assert first.cell.value == "night"
    assert first.sentence.startswith("`bus` fails with weather changed to night: −88 points, 95 % interval −")
    assert ", 16 images; stands unless more than " in first.sentence
    assert first.selected_interval is not None
    assert first.interval is not None
    assert first.selected_interval.level == pytest.approx(1 - 0.05 * 2 / 4)
    assert first.selected_interval.high >= first.interval.high
    assert effects[-1].p_value is None
    assert effects[-1].interval is None
    assert "too few images to tell" in effects[-1].sentence
    assert effects == spoken(dict(reversed(cells.items())))


def test_a_certain_but_small_effect_is_no_finding() -> None:
    effects = assess({cell("rain"): seen(np.repeat([-1, 0], [40, 960]))}, seed=1)
    assert effects[0].q_value is not None
    assert effects[0].q_value < 0.001
    assert effects[0].standing == "nothing found"


def test_without_ground_truth_the_sentence_does_not_speak_of_failing() -> None:
    (effect,) = spoken({cell("night"): seen(-np.ones(20))}, "metamorphic")
    assert effect.standing == "weakness"
    assert "is not recognised again with weather changed to night" in effect.sentence
    assert "fails" not in effect.sentence


def test_sentences_say_when_images_all_agree_and_when_there_is_one() -> None:
    cells = {
        cell("night"): seen(-np.ones(20)),
        cell("rain"): seen(np.zeros(20)),
        cell("snow"): seen(-np.ones(1)),
        cell("fog"): seen(np.repeat([-1, 0], [2, 12])),
    }
    said = {effect.cell.value: effect.sentence for effect in spoken(cells)}
    assert "20 images (every one of them lost)" in said["night"]
    assert "20 images (not one of them changed); so many show drops of" in said["rain"]
    assert "1 image, from which nothing follows" in said["snow"]
    assert "14 images; so many show drops of" in said["fog"]


def test_nothing_eligible_is_nothing_found() -> None:
    (effect,) = assess({cell("night"): seen(-np.ones(11))}, seed=1)
    assert effect.standing == "too few images"
    assert effect.images_needed == 12
    assert assess({}, seed=1) == []


def test_false_findings_stay_rare_and_true_ones_are_found() -> None:
    """Eight cells without effect beside two with one: the mean share of false findings stays under 5 %."""
    random = np.random.default_rng(5)
    false_shares, found = [], 0
    for trial in range(60):
        cells = {cell(f"null {k}"): seen(random.choice([-1, 0, 1], 20, p=[0.2, 0.6, 0.2])) for k in range(8)}
        cells |= {cell(f"true {k}"): seen(random.choice([-1, 0], 20, p=[0.8, 0.2])) for k in range(2)}
        values = [e.cell.value for e in assess(cells, trial) if e.standing in ("weakness", "improvement")]
        false_shares.append(sum(v.startswith("null") for v in values) / max(1, len(values)))
        found += sum(v.startswith("true") for v in values)
    assert np.mean(false_shares) <= 0.05
    assert found / 120 > 0.9


def test_segmenters_are_spoken_of_in_points_of_iou() -> None:
    cells = {
        cell("night").model_copy(update={"label": label}): seen(np.repeat(-0.4, 40)) for label in ("road", ALL_CLASSES)
    }
    said = {effect.cell.label: effect.sentence for effect in spoken(cells, "labelled", "iou")}
    assert said["road"].startswith("`road` is segmented worse with weather changed to night: −40 points of IoU, 95 %")
    assert said[ALL_CLASSES].startswith("the whole image is segmented worse with weather changed to night: −40 points")
    lost = spoken(cells, "metamorphic", "iou")[0].sentence
    assert "is lost with weather changed to night" in lost
