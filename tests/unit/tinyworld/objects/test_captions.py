"""Captions state what is in the scene and nothing else, and can be parsed back exactly."""

from __future__ import annotations

import pytest

from tests.support.phrase_values import value_of
from tinyworld.domain.descriptions import Withheld
from tinyworld.domain.wording import slot_of, with_articles
from tinyworld.objects.captions import caption, describe, read
from tinyworld.objects.phrases import SLOTS
from tinyworld.objects.world import FACTOR_VALUES, sample_scene

SCENES = [sample_scene("generator", index) for index in range(3000)]


@pytest.mark.parametrize("withheld", ["nothing", "sentences", "phrases too"])
def test_captions_read_back_exactly(withheld: Withheld) -> None:
    for seed, scene in enumerate(SCENES):
        description = describe(scene, seed, withheld=withheld)
        assert read(description.text) == description.stated, description
        assert all(getattr(scene, field) == value for field, value in description.stated.items())


def test_mentions_are_verbatim_and_in_order() -> None:
    for seed, scene in enumerate(SCENES[:500]):
        description = describe(scene, seed)
        position = 0
        for mention in description.mentions:
            position = description.text.index(mention.phrase, position)


def test_captions_are_two_to_four_short_sentences() -> None:
    for seed, scene in enumerate(SCENES):
        text = caption(scene, seed, withheld="phrases too" if seed % 2 else "nothing")
        assert 2 <= text.count(".") <= 4, text
        assert len(text.split()) <= 45


def test_each_factor_is_sometimes_omitted_and_every_usual_phrase_occurs() -> None:
    stated = [describe(scene, seed).stated for seed, scene in enumerate(SCENES)]
    for field in ("style", "size", "colour", "pattern", "background", "weather", "time"):
        assert 0.70 < sum(field in fields for fields in stated) / len(stated) < 0.86, field
    assert all("label" in fields for fields in stated)
    phrases = {mention.phrase for seed, scene in enumerate(SCENES) for mention in describe(scene, seed).mentions}
    assert phrases == {p for slot in SLOTS.values() for wording in slot.wordings.values() for p in wording.usual}


def test_a_changed_factor_changes_only_its_phrase() -> None:
    for seed, scene in enumerate(SCENES[:300]):
        for field in ("colour", "background", "weather", "time", "style"):
            before = describe(scene, seed)
            value = next(str(v) for v in FACTOR_VALUES[field] if v != getattr(scene, field))
            after = describe(scene.changed(**{field: value}), seed)
            assert after.stated == {name: value if name == field else old for name, old in before.stated.items()}


def test_adjectives_go_to_their_noun() -> None:
    text = "A small red bus is on a beach. To the left of the bus there is a blue dog."
    assert read(text) == {
        "size": "small", "colour": "red", "label": "bus", "background": "beach",
        "relation": "left", "companion_colour": "blue", "companion": "dog",
    }  # fmt: skip
    assert read("There is a bus. There is also a person in red.")["companion_colour"] == "red"
    assert "colour" not in read("There is a bus. There is also a person in red.")
    assert read("Something red on the left.") == {}


def test_phrases_have_one_value_and_slot() -> None:
    assert value_of("after dark") == "night"
    assert slot_of("misty", SLOTS) == "weather adjective"
    with pytest.raises(KeyError, match="not a phrase"):
        value_of("underwater")


def test_articles() -> None:
    assert (
        with_articles("A oil painting of an red car and a orange dog.")
        == "An oil painting of a red car and an orange dog."
    )
