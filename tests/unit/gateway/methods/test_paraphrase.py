"""The sham edit by rules: other words, equal meaning, the class untouched."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.methods.paraphrase import LEAD, SYNONYMS, by_rules, restates
from gateway.methods.words import names_class, stems
from tinyworld.objects.captions import caption, read
from tinyworld.objects.world import CLASSES, sample_scene

PHRASES = [phrase for pair in SYNONYMS for phrase in pair]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("A bus at night. It is large.", "A bus after dark. It is large."),
        ("At night, a bus at night.", "After dark, a bus at night."),
        ("A large bicycle.", "A big bicycle."),
        ("A dog in the rain.", "A dog in rainy weather."),
        ("A photo of a frog in the rain forest.", "A photograph of a frog in the rain forest."),
        ("A rider on an automobile, next to a shop.", "A rider on an automobile, beside a shop."),
        ("A bicycle.", f"{LEAD} A bicycle."),
        ("Nothing here.", f"{LEAD} Nothing here."),
        ("", f"{LEAD} "),
    ],
)
def test_the_first_phrase_with_a_synonym_is_replaced_unless_it_names_a_class(text: str, expected: str) -> None:
    assert by_rules(text, ["bicycle", "bus"]) == expected


@pytest.mark.parametrize(
    "text",
    [
        "A dog in a shower", "A child in the shower", "A person on a dirt bike", "A clear glass vase",
        "A beach at sunset", "A sunset over the sea", "A city at dusk", "A dog plays in the snow", "A snowy owl",
        "A foggy mirror", "A misty forest", "People walk on the pavement", "A train car", "A towel by the sea",
        "A little snow on a bench", "A big-wheel truck", "A market in the night", "A player in a grassy field",
        "Frogs in the rain forest", "A stall at night market prices", "Boots for walking in the rain boots aisle",
    ],
)  # fmt: skip
def test_words_with_another_meaning_stay(text: str) -> None:
    """Once "in the rain" became "in a shower", "dirt bike" "dirt bicycle", "a clear vase" "a cloudless vase"."""
    assert by_rules(text, []) == f"{LEAD} {text}"


@pytest.mark.slow
@given(st.lists(st.sampled_from([*PHRASES, "a red car", "stands", "Town."]), max_size=6), st.sampled_from(CLASSES))
def test_the_words_change_and_the_class_stays(words: list[str], label: str) -> None:
    text = " ".join([f"A {label}", *words])
    changed = by_rules(text, list(CLASSES))
    assert stems(changed) != stems(text)
    assert names_class(changed, label)
    assert by_rules(text, list(CLASSES)) == changed


@pytest.mark.parametrize("seed", range(60))
def test_drawn_scenes_keep_what_their_captions_say(seed: int) -> None:
    scene = sample_scene("demo", seed)
    text = caption(scene, seed)
    changed = by_rules(text, list(CLASSES))
    assert changed != text
    readings = [read(each) for each in (text, changed.removeprefix(LEAD + " "))]
    assert readings[0] == readings[1]


HORSE = "One brown horse grazes near stables. Strong winds blow this early morning."


@pytest.mark.parametrize(
    ("text", "restated"),
    [
        ("A brown horse is grazing close to stables. A strong wind is blowing this early morning.", True),
        (HORSE, False),
        (f"{HORSE} {HORSE}", False),
        ("One brown horse grazes near stables. Strong winds blow this early morning at at at at at at at at.", False),
        ("One brown cow grazes near stables. Strong winds blow this early morning.", False),
        ("One brown horse grazes near stables by a cow. Strong winds blow this early morning.", False),
        ("A horse stands in a city.", False),
    ],
)
def test_a_paraphrase_has_other_words_for_the_same_things(text: str, restated: bool) -> None:
    assert restates(HORSE, text, ["horse", "cow"]) is restated
