"""What is said of models on their originals."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import softmax

from gateway.analysis.effects import Integers, Originals
from gateway.kinds.classification import (
    CLASSIFICATION,
    ClassAnswer,
    ClassifiedOriginals,
    check_originals,
    check_unlabelled,
)
from gateway.kinds.detection_originals import BoxedOriginals
from gateway.kinds.originals import HeldLabels, doubts_in_words
from gateway.kinds.rows import PredictionRow
from gateway.kinds.segmentation import SEGMENTATION, SegmentedOriginals, check_unlabelled_masks
from shared.schemas.base import JsonObject
from shared.schemas.boxes import BoxSpec
from shared.schemas.metrics import OriginalsCheck, OriginalsStanding


def unlabelled(predicted: Integers) -> Originals:
    """Each prediction is its own label, as in jobs without ground truth."""
    return Originals(np.ones(len(predicted), np.int64), np.arange(len(predicted)), predicted, predicted, ("bus", "car"))


def test_without_ground_truth_a_model_that_says_one_class_shows_nothing() -> None:
    """It never changes its mind, so it had no weakness."""
    check = check_unlabelled(unlabelled(np.zeros(20, np.int64)))
    assert check is not None
    assert (check.standing, check.right, check.only) == ("open", None, "bus")
    assert check_unlabelled(unlabelled(np.arange(20) % 2)) is None
    assert check_unlabelled(unlabelled(np.zeros(11, np.int64))) is None


def test_with_one_class_no_model_is_said_to_be_sound() -> None:
    """A model that always says this class was sound."""
    check = check_originals(unlabelled(np.zeros(40, np.int64)), 8, seed=1)
    assert check is not None
    assert (check.standing, check.lets_pass) == ("open", False)
    assert "always says `bus`" in check.sentence


def test_without_masks_a_segmenter_of_one_fixed_layout_shows_nothing() -> None:
    """It never changes its mask, so it had no weakness."""
    fixed = np.tile([60, 40, 0], (20, 1))
    check = check_unlabelled_masks(fixed, ("sky", "road"))
    assert check is not None
    assert (check.standing, check.only) == ("open", "")
    assert check_unlabelled_masks(fixed + np.outer(np.arange(20) % 2, [1, -1, 0]), ("sky", "road")) is None


def test_masks_of_one_class_are_said_to_be_the_cause() -> None:
    """The classes of binary masks were 0 and 255, and 255 was void: the sentence said "chance has 100 %"."""
    for share, standing in ((0.5, "unsound"), (1.0, "open")):
        judge = SegmentedOriginals(["road", "car"], "labelled", seed=1)
        truth = np.zeros((8, 8), np.uint8)
        for group in range(14):
            predicted = (np.arange(64).reshape(8, 8) >= 64 * share).astype(np.uint8)
            scored = SEGMENTATION.judge(np.roll(predicted, group), truth, ["road", "car"])
            judge.add(group, PredictionRow(group, "", None, "m", *scored[:2], None, scored.scores, scored.detail))
        check = judge.check()
        assert check is not None
        assert (check.standing, check.lets_pass) == (standing, False)
        assert "one class alone" in check.sentence
        assert "`void`" in check.sentence


@pytest.mark.parametrize(("moved", "standing"), [(0.0, "open"), (3.0, None)])
def test_a_detector_without_ground_truth_that_always_gives_the_same_boxes_has_no_verdict(
    moved: float, standing: OriginalsStanding | None
) -> None:
    judge = BoxedOriginals(("car",), "metamorphic", 1, rules=BoxSpec())
    for group in range(12):
        detail: JsonObject = {"boxes": [[0, 0.9, 10 + moved * (group % 2), 10, 60, 60]], "detected": None}
        judge.add(group, PredictionRow(group, "", None, "m", "car", 0.9, None, {}, detail))
    check = judge.check()
    assert (None if check is None else check.standing) == standing


def hint(probabilities: Integers, truth: Integers) -> str:
    """What is said of a classifier with these probabilities, images × classes, on originals of these labels."""
    names = [f"class {number}" for number in range(probabilities.shape[1])]
    judge = ClassifiedOriginals(names, "labelled", seed=1)
    for group, (row, label) in enumerate(zip(probabilities.tolist(), truth.tolist(), strict=True)):
        scored = CLASSIFICATION.judge(ClassAnswer(dict(zip(names, row, strict=True))), names[label], names)
        judge.add(group, PredictionRow(group, "", None, "m", *scored[:2], None, scored.scores, scored.detail))
    check = judge.check()
    assert check is not None
    return check.sentence


@pytest.mark.parametrize("classes", [2, 3, 10, 1000])
def test_softmax_applied_twice_is_named_and_flat_probabilities_are_not(classes: int) -> None:
    """Every prediction stays right, and only P(truth) flattens, so nothing told it."""
    random = np.random.default_rng(classes)
    truth = random.integers(0, classes, 60)
    logits = random.normal(0, 1, (60, classes))
    logits[np.arange(60), truth] += 8 + np.log(classes)
    assert "softmax is applied twice" in hint(softmax(softmax(logits, axis=1), axis=1), truth)
    for temperature in (0.5, 1, 4, 20):
        assert hint(softmax(logits / temperature, axis=1), truth) == ""


@pytest.mark.parametrize(("standing", "images", "right", "never"), [
    ("sound", 12, 0, ["truck"]), ("sound", 12, 1, ["truck"]), ("sound", 12, 2, []),
    ("sound", 11, 0, []), ("open", 12, 0, []),
])  # fmt: skip
def test_a_class_that_is_hardly_ever_recognised_is_named(
    standing: OriginalsStanding, images: int, right: int, never: list[str]
) -> None:
    """A class of which one original of 12 is right can lose 8 points, which a green verdict would rule out."""
    labels = HeldLabels()
    for number in range(images):
        labels.add({"bus": 1.0, "truck": float(number < right)})
    check = labels.named_in(OriginalsCheck(standing=standing))
    assert check is not None
    assert check.never == never
    assert ("`truck`" in check.sentence) == bool(never)


def test_only_a_sound_model_without_exchanged_classes_is_beyond_doubt() -> None:
    checks = {
        "good": OriginalsCheck(standing="sound"),
        "poor": OriginalsCheck(standing="open", sentence="Near chance."),
    }
    assert doubts_in_words([*checks.items(), ("unlabelled", None)]) == "`poor`: Near chance."
