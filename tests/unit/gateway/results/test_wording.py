"""The wording of effects and findings."""

from __future__ import annotations

import numpy as np
import pytest

from gateway.analysis.effects import Differences, Scores
from gateway.analysis.effects import differences as measured
from gateway.analysis.findings import Checked, assess, merge_same_pairs
from gateway.analysis.reviews import Reviewed, Tally
from gateway.analysis.segmentation import PooledObstacle
from gateway.analysis.validity import Screened
from gateway.kinds.segmentation import obstacle_sentence
from gateway.results.confirmation import why_not_tested
from gateway.results.wording import corroboration_sentence, dose_sentence, instead_in_words, with_sentences
from shared.schemas.effects import (
    Cell,
    CellEffect,
    CheckErrors,
    ChosenBy,
    Corroboration,
    DoseCurve,
    DosePoint,
    Interval,
    Metric,
    OwnImageMarks,
    Rate,
    Undone,
)
from shared.schemas.masks import ALL_CLASSES
from shared.schemas.results import Relation
from tests.support.effects import cell, differences
from tests.support.figures import results


def effects_of(
    cells: dict[Cell, Differences],
    relation: Relation = "labelled",
    metric: Metric = "accuracy",
    validity: Checked | Reviewed | None = None,
) -> dict[str, CellEffect]:
    """The effect of each cell, by its value."""
    effects = with_sentences(assess(cells, 1, validity), cells, relation, metric)
    return {effect.cell.value: effect for effect in effects}


def test_a_finding_is_one_pair_of_numbers_and_how_sure_it_is_and_its_details_are_apart() -> None:
    """A finding had 60 words with 13 numbers, a two-sided and a one-sided limit among them."""
    cells = {cell("night"): differences(np.repeat([-1, 0], [14, 2]))}
    effect = effects_of(cells)["night"]
    assert effect.breakdown is not None
    assert effect.selected_interval is not None
    least, share = int(-100 * effect.selected_interval.high), int(100 * effect.breakdown)
    sure = f"At least {least} points are lost, 95 % sure."
    assert effect.sentence == f"`bus` at night is not recognised: 14 of 16 lost. {sure}"
    assert effect.details == f"stands unless more than {share} % of its images are invalid"
    fractions = effects_of({cell("night"): differences(np.repeat(-0.5, 40))})["night"]
    assert fractions.sentence.startswith("`bus` at night is not recognised: −50 points on 40 images. At least ")


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["truck"] * 3, "all called `truck`"),
        (["truck", "car", "truck"], "most called `truck`"),
        (["a", "b"], ""),
        ([], ""),
    ],
)
def test_a_weakness_says_what_the_model_says_instead(names: list[str], words: str) -> None:
    assert instead_in_words(names) == words
    lost = differences(-np.ones(20))
    effects = with_sentences(
        assess({cell("night"): lost}, 1), {cell("night"): lost}, "labelled", "accuracy", {cell("night"): words}
    )
    assert f"20 of 20 lost{', ' * bool(words)}{words}." in effects[0].sentence


def test_findings_about_the_same_pairs_are_one_with_both_directions() -> None:
    """To night and from day of the same images stood as two findings."""
    night, day, snow = cell("night"), cell("day").model_copy(update={"direction": "from"}), cell("snow")
    edits = np.arange(60)  # 20 images, each to night, to snow and to sunset, all of them from day
    lost = np.where(edits % 3 == 0, 0.0, 1.0)
    rows = {night: edits[edits % 3 == 0], snow: edits[edits % 3 == 1], day: edits[edits % 3 != 1]}
    zeros = np.zeros(60, np.int64)
    scores = Scores(edits // 3, zeros, np.ones(60), edits, np.ones(60), lost, edits, rows)
    cells = {each: measured(scores, members) for each, members in rows.items()}
    effects = merge_same_pairs(assess(cells, 1), scores)
    assert {effect.cell: effect.part_of for effect in effects} == {night: None, day: night, snow: None}
    first = with_sentences(effects, cells, "labelled")[0]
    assert first.sentence.startswith("`bus` at night is not recognised: 20 of 20 lost.")
    assert first.details.startswith("with time of day changed from day: the same images, so no finding of its own; ")
    other = results("dillema", *effects)
    assert [effect.cell for effect in other.findings] == [night]


def test_an_improvement_says_that_its_own_images_are_to_be_seen_first() -> None:
    gains = {cell("night"): differences(np.repeat([1, 0], [18, 2]))}
    errors = CheckErrors(valid=300, valid_accepted=270, invalid=300, invalid_accepted=3)
    checked = Checked({"weather": errors}, {cell("night"): Screened(np.arange(22), np.arange(22) < 20)})
    for validity in (None, checked):
        effect = effects_of(gains, validity=validity)["night"]
        assert effect.provisional
        assert effect.details.count("provisional until its changed images are reviewed with their arms") == 1
        assert "inconclusive" not in effect.details
    losses = {cell("night"): differences(np.repeat([-1, 0], [18, 2]))}
    assert "provisional" not in effects_of(losses, validity=checked)["night"].details


def test_without_ground_truth_the_sentence_avoids_the_word_fail() -> None:
    effect = effects_of({cell("night"): differences(-np.ones(20))}, "metamorphic")["night"]
    assert effect.standing == "weakness"
    assert "`bus` at night is not recognised again: 20 of 20 lost." in effect.sentence


def test_sentences_say_when_images_all_agree_and_when_there_is_one() -> None:
    cells = {
        cell("night"): differences(-np.ones(20)),
        cell("rain"): differences(np.zeros(20)),
        cell("snow"): differences(-np.ones(1)),
        cell("fog"): differences(np.repeat([-1, 0], [2, 12])),
    }
    sentences = {value: effect.sentence for value, effect in effects_of(cells).items()}
    assert "20 of 20 lost. At least" in sentences["night"]
    assert "0 of 20 lost, this many images detect drops of" in sentences["rain"]
    assert "too few images to tell: 1 of 1 lost" in sentences["snow"]
    assert "2 of 14 lost, this many images detect drops of" in sentences["fog"]


@pytest.mark.parametrize(("label", "start"), [("road", "`road`"), (ALL_CLASSES, "the whole image")])
def test_segmenters_have_points_of_iou(label: str, start: str) -> None:
    cells = {cell("night", label): differences(np.repeat(-0.4, 40))}
    assert effects_of(cells, "labelled", "iou")["night"].sentence.startswith(
        f"{start} at night is segmented worse: −40 points of IoU on 40 images. At least "
    )
    assert "at night is lost" in effects_of(cells, "metamorphic", "iou")["night"].sentence


def test_invalid_images_are_stated_with_their_source() -> None:
    cells = {cell("night"): differences(np.repeat([-1.0, 0.0], [32, 8]))}
    accepted = np.random.default_rng(1).random(80) < 0.7
    screened = {cell("night"): Screened(np.repeat(np.arange(40), 2), accepted)}
    good = CheckErrors(valid=400, valid_accepted=380, invalid=400, invalid_accepted=8)
    blind = CheckErrors(valid=50, valid_accepted=40, invalid=50, invalid_accepted=41)
    checked, doubtful = (
        effects_of(cells, validity=Checked({"default": errors}, screened))["night"].details for errors in (good, blind)
    )
    assert "; the checks pass about " in checked
    assert " %, pooled over classes), which leaves −" in checked
    assert doubtful.endswith(" (inconclusive)")
    tallies = (Tally(valid=8), Tally(valid=30, invalid=2))
    reviewed = effects_of(cells, validity=Reviewed({}, {cell("night"): tallies}, (Tally(), Tally())))["night"]
    assert "; reviews found about 5 % invalid images" in reviewed.details


def test_own_images_are_stated_with_both_counts() -> None:
    rest = Rate(count=40, n=41, value=40 / 41, low=0.87, high=1.0)
    showing = Rate(count=3, n=9, value=1 / 3, low=0.1, high=0.65)
    interval = Interval(low=-0.88, high=-0.3, level=0.95, kind="newcombe")
    corroboration = Corroboration(
        others=["day"], showing=showing, rest=rest, difference=1 / 3 - 40 / 41, interval=interval, images=[]
    )
    assert corroboration_sentence(corroboration, "night") == (
        "; own images, chosen by the scorer: 3 of 9 with night are right, 40 of 41 without (−64 points, −88 to −30 "
        "for the chosen images)"
    )
    none = Rate(count=0, n=0, value=None, low=0.0, high=1.0)
    alone = Corroboration(others=["day"], showing=none, rest=rest, images=[])
    assert corroboration_sentence(alone, "night") == "; own images, chosen by the scorer: night in none of 41"


@pytest.mark.parametrize(
    ("chosen_by", "words"),
    [
        ("eye", "; own images, confirmed by eye (9 of the scorer's 12, 2 that it missed): 3 of 9 with night are right"),
        (
            "scorer and eye",
            "; own images, chosen by the scorer, marked by eye in part (9 of the scorer's 12 confirmed, 2 that it "
            "missed): 3 of 9 with night are right",
        ),
    ],
)
def test_marked_own_images_say_how_many_people_confirmed(chosen_by: ChosenBy, words: str) -> None:
    rate = Rate(count=3, n=9, value=1 / 3, low=0.1, high=0.65)
    precision = Rate(count=9, n=12, value=0.75, low=0.4, high=0.9)
    marks = OwnImageMarks(confirmed=11, refused=3, undecided=0, missed=2, precision=precision)
    own = Corroboration(others=["day"], showing=rate, rest=rate, images=[], chosen_by=chosen_by, marks=marks)
    assert corroboration_sentence(own, "night").startswith(words)
    interval = Interval(low=-0.88, high=-0.3, level=0.95, kind="newcombe")
    compared = own.model_copy(update={"difference": -0.6, "interval": interval})
    of_choice = "" if chosen_by == "eye" else " for the chosen images"
    assert corroboration_sentence(compared, "night").endswith(f" (−60 points, −88 to −30{of_choice})")


@pytest.mark.parametrize(
    ("verdict", "words"),
    [
        ("returns", "; returns when the edit is undone; +60 points regained (+31 to +80)"),
        ("does not return", "; does not return when the edit is undone: the loss is (partly) the editor's; +60"),
        ("returns in part", "part of the loss is the editor's"),
        ("undecided", "is undecided"),
    ],
)
def test_a_dose_curve_says_whether_the_effect_grows_and_returns(verdict: str, words: str) -> None:
    limits = Interval(low=0.31, high=0.8, level=0.95, kind="betting")
    undone = Undone.model_validate(
        {
            "verdict": verdict,
            "sources": 30,
            "remaining": -0.05,
            "remaining_interval": limits.model_copy(update={"low": -0.2, "high": 0.02}),
            "regained": 0.6,
            "regained_interval": limits,
        }
    )
    points = [DosePoint(dose=0.5, value=1.25, delta_accuracy=-0.2), DosePoint(dose=1, value=2.5, delta_accuracy=-0.6)]
    curve = DoseCurve(
        job="j",
        method="dillema",
        parameter="guidance",
        sources=30,
        points=points,
        trend=-0.4,
        verdict="grows",
        undone=undone,
    )
    sentence = dose_sentence(curve)
    assert sentence.startswith("; the effect grows with the dose (guidance): −20 points at 0.5, −60 points at 1")
    assert words in sentence
    assert sentence.endswith("−5 points against the source images (−20 to +2), 30 images")


def test_a_curve_of_few_images_says_so_and_gives_no_interval() -> None:
    undone = Undone(verdict="too few images", sources=1, remaining=0, regained=1)
    points = [DosePoint(dose=1, value=1, delta_accuracy=-1)]
    curve = DoseCurve(
        job="j",
        method="dillema",
        parameter="severity",
        sources=5,
        points=points,
        trend=0,
        verdict="too few images",
        undone=undone,
    )
    sentence = dose_sentence(curve)
    assert "too few images for a trend with the dose (5)" in sentence
    assert sentence.endswith("too few images with the edit undone; +100 points regained, 1 image")


def test_a_pooled_difference_without_interval_says_what_it_needs() -> None:
    few, rare = PooledObstacle("few images", 5), PooledObstacle("rare class", 1, 1)
    assert obstacle_sentence(few, ["car"]) == "5 independent images; an interval needs 12"
    assert obstacle_sentence(rare, ["car", "train"]) == (
        "1 independent image with “train”; an interval needs 3 of every class"
    )


@pytest.mark.parametrize(
    ("change", "confirm_with", "words"),
    [
        ({"direction": "from"}, "dillema", "`dillema` renders changes to a value, and this is one from night"),
        ({"factor": "noise"}, "dillema", "`dillema` has nothing to render it with: it makes no changes of noise"),
        ({"value": "a storm " * 6}, "dillema", "`dillema` takes values of at most 40 characters"),
        ({}, "shifts", "the editor of `shifts` is related to that of `lance`; confirm with `dillema`"),
    ],
)
def test_a_finding_that_is_not_tested_again_says_why(change: dict[str, str], confirm_with: str, words: str) -> None:
    assert why_not_tested("lance", cell("night").model_copy(update=change), confirm_with) == words
