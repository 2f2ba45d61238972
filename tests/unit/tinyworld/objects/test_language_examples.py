"""The language model's examples ask what the method asks, and answer rightly."""

from __future__ import annotations

import json

import pytest

from gateway.methods.lance import LANCE_FACTORS, LanceFactor
from tests.support.phrase_values import value_of
from tinyworld.judges.language import is_right
from tinyworld.objects.captions import read
from tinyworld.objects.language_examples import KINDS, MOST_EDITS, Kind, Wordings, example
from tinyworld.objects.phrases import SLOTS, slot_of
from tinyworld.objects.world import EDIT_FACTOR

PLAIN = Wordings(noise=0)
SEEDS = range(400)


@pytest.mark.parametrize("kind", KINDS)
def test_the_right_answer_is_right_and_examples_repeat(kind: Kind) -> None:
    for seed in SEEDS:
        one = example(kind, seed, PLAIN)
        assert is_right(one, one.reply)
        assert not is_right(one, one.reply[:-1])
    assert example(kind, 7, PLAIN) == example(kind, 7, PLAIN)


def test_keywords_are_all_that_may_change() -> None:
    for seed in SEEDS:
        one = example("keywords", seed, PLAIN)
        listed = json.loads(one.reply)["keywords"]
        assert len(listed) <= 8
        stated = {field for field in one.description.stated if field in EDIT_FACTOR and field != one.forbidden}
        assert len(listed) == len(stated)
        assert all(keyword["phrase"] in one.description.text for keyword in listed)
        assert one.forbidden != "label" or all(keyword["factor"] != "subject" for keyword in listed)


def test_alternatives_are_other_values_in_the_same_place() -> None:
    for seed in SEEDS:
        one = example("alternatives", seed, PLAIN)
        assert one.target is not None
        assert one.target.field != one.forbidden
        place = slot_of(one.target.phrase, field=one.target.field)
        found = json.loads(one.reply)["alternatives"]
        assert 1 <= len(found) <= 3
        assert one.target.value not in {value_of(a["phrase"], field=one.target.field) for a in found}
        assert all(slot_of(a["phrase"], field=one.target.field) == place for a in found)


def test_rewritten_captions_state_the_new_values_and_keep_the_rest() -> None:
    for seed in SEEDS:
        one = example("rewrite", seed, PLAIN)
        lines = [line.removeprefix("Change: ") for line in one.messages[-1].content.splitlines()]
        changes = dict(line.split(" -> ") for line in lines if " -> " in line)
        after = read(json.loads(one.reply)["caption"])
        fields = {m.field for m in one.description.mentions if m.phrase in changes and m.field in EDIT_FACTOR}
        expected = dict(one.description.stated)
        for mention in one.description.mentions:
            if mention.field in fields:
                expected[mention.field] = value_of(changes[mention.phrase], field=mention.field)
        assert after == expected


@pytest.mark.parametrize("factor", LANCE_FACTORS)
def test_perturbed_captions_change_one_field_of_the_factor_and_never_what_the_task_asks_for(
    factor: LanceFactor,
) -> None:
    fields = {"label": "subject", **EDIT_FACTOR}
    counts = set()
    for seed in range(150):
        one = example("perturb", seed, PLAIN, factor)
        edits = json.loads(one.reply)["edits"]
        counts.add(len(edits))
        assert len(edits) <= one.edits <= MOST_EDITS
        assert f"\nFactor: {factor}\nEdits: {one.edits}\nCaption:\n{one.description.text}" in one.messages[-1].content
        for edit in edits:
            before, after = one.description.stated, read(edit["caption"])
            (field,) = [name for name in before if before[name] != after.get(name)]
            assert set(after) == set(before)
            assert (before[field], after[field]) == (edit["from_value"], edit["to_value"])
            assert fields[field] == factor
            assert field != one.forbidden
    assert counts >= {0, 1, 2}


def test_a_new_subject_replaces_the_class_wherever_it_is_named() -> None:
    asked = [example("perturb", seed, PLAIN, "subject") for seed in range(600)]
    edits = [(one, edit) for one in asked for edit in json.loads(one.reply)["edits"]]
    assert any(one.description.text.count(edit["from_phrase"]) > 1 for one, edit in edits)
    assert not any(f" {edit['from_phrase']}" in edit["caption"] for _, edit in edits)


def test_every_usual_phrase_is_asked_about() -> None:
    asked = {one.target.phrase for seed in range(3000) if (one := example("alternatives", seed, PLAIN)).target}
    usual = {
        phrase
        for slot in SLOTS.values()
        if slot.field in EDIT_FACTOR
        for wording in slot.wordings.values()
        for phrase in wording.usual
    }
    assert asked == usual


def test_reworded_captions_keep_what_they_state() -> None:
    for seed in SEEDS:
        one = example("keywords", seed, Wordings(noise=0.5))
        position = 0
        for mention in one.description.mentions:
            position = one.description.text.index(mention.phrase, position)
        assert is_right(one, one.reply)
    plain, noisy = (example("rewrite", 3, Wordings(noise=noise)).description.text for noise in (0, 0.5))
    assert plain != noisy
