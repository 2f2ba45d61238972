"""Whether a classifier is right on its originals: what is not testable, and that weak models are."""

from __future__ import annotations

import numpy as np
import pytest

from gateway.analysis.effects import Integers, Originals
from gateway.analysis.originals import judge_originals


def originals(truth: Integers, predicted: Integers) -> Originals:
    return Originals(np.where(truth == predicted, 1, 2), np.arange(len(truth)), truth, predicted)


@pytest.mark.parametrize(("images", "classes", "shift"), [(24, 3, 1), (45, 3, 4), (60, 8, 3)])
def test_exchanged_classes_are_found_on_one_half_and_confirmed_on_the_other(
    images: int, classes: int, shift: int
) -> None:
    """A model whose outputs had the names of others (0 % right) was said to have no weakness."""
    truth = np.arange(images) % classes
    predicted = np.where(np.arange(images) == 5, truth, truth + shift)  # one by chance right; 4 more classes exist
    judged = judge_originals(originals(truth, predicted), 8, seed=1)
    assert judged is not None
    assert judged.standing == "unsound"
    assert judged.order == {name + shift: name for name in range(classes)}
    assert judged.in_order is not None
    assert judged.in_order.n == images - images // 2
    assert judged.in_order.low > 0.5


def test_a_model_that_says_one_class_is_not_testable_although_it_is_often_right() -> None:
    truth = np.array([0] * 20 + [1] * 6)
    judged = judge_originals(originals(truth, np.zeros(26, np.int64)), 2, seed=1)
    assert judged is not None
    assert (judged.standing, judged.only, judged.order) == ("unsound", 0, {})


def test_two_exchanged_classes_of_eight_are_named_and_the_model_is_tested() -> None:
    truth = np.arange(160) % 8
    predicted = np.where(truth < 2, 1 - truth, truth)
    judged = judge_originals(originals(truth, predicted), 8, seed=1)
    assert judged is not None
    assert (judged.standing, judged.order) == ("sound", {0: 1, 1: 0})


def test_a_few_right_predictions_among_other_names_make_no_model_sound() -> None:
    """Where nearly all predictions are names that no image has, one right prediction is already beyond chance."""
    truth = np.arange(48) % 8
    random = np.random.default_rng(1)
    predicted = np.where(np.arange(48) % 20 == 7, truth, 8 + random.integers(0, 20, 48))
    judged = judge_originals(originals(truth, predicted), 28, seed=1)
    assert judged is not None
    assert (judged.right.count, judged.standing) == (3, "unsound")


def test_a_model_at_chance_is_never_shown_to_be_sound() -> None:
    """Of 60 images, 3 classes: it agrees with its labels by chance in 2.5 % of such models, by the test's level."""
    random = np.random.default_rng(3)
    standings = [
        judged.standing
        for seed in range(100)
        if (judged := judge_originals(originals(np.arange(60) % 3, random.integers(0, 3, 60)), 3, seed))
    ]
    assert standings.count("sound") <= 6


@pytest.mark.parametrize(("rare", "standing"), [(0, "open"), (4, "open"), (40, "sound")])
def test_a_model_that_is_no_better_than_saying_the_largest_class_is_not_said_to_be_sound(
    rare: int, standing: str
) -> None:
    """Of 200 images; it is wrong on one. With one class a model that always says it was sound."""
    truth = (np.arange(200) < rare).astype(np.int64)
    predicted = np.where(np.arange(200) == 199, 1, truth)
    judged = judge_originals(originals(truth, predicted), 8, seed=1)
    assert judged is not None
    assert (judged.standing, judged.largest) == (standing, (0, 1 - rare / 200))


@pytest.mark.parametrize(("images", "classes"), [(12, 2), (24, 3), (48, 8), (200, 30)])
@pytest.mark.parametrize("confusion", ["any class", "the next class"])
def test_weak_models_are_refused_in_two_percent_at_most(images: int, classes: int, confusion: str) -> None:
    """They are a quarter of the way from chance to always right; 200 models a case."""
    random = np.random.default_rng(images)
    accuracy = 1 / classes + 0.25 * (1 - 1 / classes)
    refused = 0
    for seed in range(200):
        truth = random.integers(0, classes, images)
        wrong = random.integers(1, classes, images) if confusion == "any class" else 1
        predicted = np.where(random.random(images) < accuracy, truth, (truth + wrong) % classes)
        judged = judge_originals(originals(truth, predicted), classes, seed)
        refused += judged is not None and judged.standing == "unsound"
    assert refused <= 4
