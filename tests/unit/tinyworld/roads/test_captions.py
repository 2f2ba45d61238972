"""Captions of driving scenes state what is there and nothing else, and can be parsed back exactly."""

from __future__ import annotations

import pytest

from tests.support.phrase_values import value_of
from tinyworld.domain.descriptions import Withheld
from tinyworld.domain.wording import slot_of
from tinyworld.roads.captions import describe, read
from tinyworld.roads.phrases import SLOTS
from tinyworld.roads.world import EDIT_FACTOR, FACTOR_VALUES, sample_scene

SCENES = [sample_scene("generator", index) for index in range(1500)]


@pytest.mark.parametrize("withheld", ["nothing", "sentences", "phrases too"])
def test_captions_read_back_exactly(withheld: Withheld) -> None:
    for seed, scene in enumerate(SCENES):
        description = describe(scene, seed, withheld=withheld)
        assert read(description.text) == description.stated, description
        assert all(getattr(scene, field) == value for field, value in description.stated.items())
        assert 2 <= description.text.count(".") <= 4, description.text
        assert len(description.text.split()) <= (45 if withheld == "nothing" else 48)


def test_mentions_are_verbatim_in_order_and_each_phrase_is_one_place() -> None:
    for seed, scene in enumerate(SCENES[:500]):
        description = describe(scene, seed)
        position = 0
        for mention in description.mentions:
            position = description.text.index(mention.phrase, position)
        fields = [mention.field for mention in description.mentions]
        assert len(fields) == len(set(fields))


def test_every_factor_is_stated_often_and_omitted_often_and_all_usual_phrases_occur() -> None:
    descriptions = [describe(scene, seed) for seed, scene in enumerate(SCENES)]
    for field in FACTOR_VALUES:
        share = sum(field in description.stated for description in descriptions) / len(descriptions)
        assert 0.2 < share < 0.9, (field, share)
    phrases = {mention.phrase for description in descriptions for mention in description.mentions}
    assert phrases == {p for slot in SLOTS.values() for wording in slot.wordings.values() for p in wording.usual}


@pytest.mark.parametrize("field", ["weather", "time", "surface", "season", "buildings", "style"])
def test_a_changed_look_changes_only_its_phrase(field: str) -> None:
    assert field in EDIT_FACTOR
    for seed, scene in enumerate(SCENES[:200]):
        before = describe(scene, seed)
        value = next(v for v in FACTOR_VALUES[field] if v != getattr(scene, field))
        after = describe(scene.changed(**{field: value}), seed)
        assert after.stated == {name: value if name == field else old for name, old in before.stated.items()}


def test_colours_go_to_what_carries_them() -> None:
    text = (
        "A wet road in a city. A red bus is driving ahead. A pedestrian in blue is walking. The traffic light is green."
    )
    assert read(text) == {
        "surface": "wet", "place": "city", "vehicle_colour": "red", "vehicle": "bus", "clothes": "blue",
        "pedestrian": "walking", "traffic_light": "green",
    }  # fmt: skip
    assert read("Something red on the left.") == {}


def test_phrases_mean_what_they_mean_in_the_other_domain() -> None:
    for phrase in ("after dark", "misty", "crimson", "pencil sketch"):
        assert value_of(phrase, slots=SLOTS) == value_of(phrase)
    assert slot_of("wet", SLOTS) == "surface"
    with pytest.raises(KeyError, match="not a phrase"):
        value_of("underwater", slots=SLOTS)
