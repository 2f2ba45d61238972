"""The cards of the classifiers under test."""

from __future__ import annotations

from research.train.classifier import NAMES, WEAKNESSES
from tinyworld.objects.demo import PLANTS


def test_the_card_of_each_classifier_states_its_weakness() -> None:
    assert list(NAMES) == list(PLANTS) == list(WEAKNESSES)
    assert [name for name in NAMES if WEAKNESSES[name]] == ["street-classifier-night-bus"]
