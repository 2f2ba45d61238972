"""What is said of models on their originals."""

from __future__ import annotations

import numpy as np

from gateway.analysis.effects import Integers, Originals
from gateway.kinds.classification import check_originals, check_unlabelled


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
