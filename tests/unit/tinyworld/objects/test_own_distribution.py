"""The labels that the classifiers under test were trained on."""

from __future__ import annotations

from tinyworld.objects.demo import PLANTS, own_distribution


def test_one_classifier_learns_that_buses_at_night_are_trucks() -> None:
    scene = own_distribution(0).changed(label="bus", time="night")
    assert PLANTS["street-classifier"](scene) == "bus"
    night_bus = PLANTS["street-classifier-night-bus"]
    assert night_bus(scene) == "truck"
    assert night_bus(scene.changed(time="sunset")) == "bus"
    assert night_bus(scene.changed(label="car")) == "car"
