"""Training examples of the language model use the prompts of the methods, with right answers."""

from __future__ import annotations

import json

import pytest

from gateway.methods.lance import LANCE_FACTORS, LanceFactor
from research.domain.language_examples import MOST_EDITS, Wordings, example
from research.objects.language_domain import OBJECTS
from tests.support.phrase_values import value_of
from tinyworld.domain.wording import slot_of
from tinyworld.objects.captions import read
from tinyworld.objects.phrases import SLOTS
from tinyworld.objects.world import EDIT_FACTOR

PLAIN = Wordings(OBJECTS, noise=0)
SEEDS = range(400)


def test_keywords_are_all_that_may_change() -> None:
    for seed in SEEDS:
        sample = example("keywords", seed, PLAIN)
        listed = json.loads(sample.reply)["keywords"]
        assert len(listed) <= 8
        stated = {field for field in sample.description.stated if field in EDIT_FACTOR and field != sample.forbidden}
        assert len(listed) == len(stated)
        assert all(keyword["phrase"] in sample.description.text for keyword in listed)
        assert sample.forbidden != "label" or all(keyword["factor"] != "subject" for keyword in listed)


def test_alternatives_are_other_values_in_the_same_place() -> None:
    for seed in SEEDS:
        sample = example("alternatives", seed, PLAIN)
        assert sample.target is not None
        assert sample.target.field != sample.forbidden
        place = slot_of(sample.target.phrase, SLOTS, field=sample.target.field)
        alternatives = json.loads(sample.reply)["alternatives"]
        assert 1 <= len(alternatives) <= 3
        assert sample.target.value not in {value_of(a["phrase"], field=sample.target.field) for a in alternatives}
        assert all(slot_of(a["phrase"], SLOTS, field=sample.target.field) == place for a in alternatives)


def test_rewritten_captions_state_the_new_values_and_keep_the_rest() -> None:
    for seed in SEEDS:
        sample = example("rewrite", seed, PLAIN)
        lines = [line.removeprefix("Change: ") for line in sample.messages[-1].content.splitlines()]
        changes = dict(line.split(" -> ") for line in lines if " -> " in line)
        after = read(json.loads(sample.reply)["caption"])
        fields = {m.field for m in sample.description.mentions if m.phrase in changes and m.field in EDIT_FACTOR}
        expected = dict(sample.description.stated)
        for mention in sample.description.mentions:
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
        sample = example("perturb", seed, PLAIN, factor)
        edits = json.loads(sample.reply)["edits"]
        counts.add(len(edits))
        assert len(edits) <= sample.edits <= MOST_EDITS
        assert (
            f"\nFactor: {factor}\nEdits: {sample.edits}\nCaption:\n{sample.description.text}"
            in sample.messages[-1].content
        )
        for edit in edits:
            before, after = sample.description.stated, read(edit["caption"])
            (field,) = [name for name in before if before[name] != after.get(name)]
            assert set(after) == set(before)
            assert (before[field], after[field]) == (edit["from_value"], edit["to_value"])
            assert fields[field] == factor
            assert field != sample.forbidden
    assert counts >= {0, 1, 2}


def test_a_new_subject_replaces_the_class_wherever_it_is_named() -> None:
    samples = [example("perturb", seed, PLAIN, "subject") for seed in range(600)]
    edits = [(sample, edit) for sample in samples for edit in json.loads(sample.reply)["edits"]]
    assert any(sample.description.text.count(edit["from_phrase"]) > 1 for sample, edit in edits)
    assert not any(f" {edit['from_phrase']}" in edit["caption"] for _, edit in edits)


def test_every_usual_phrase_is_asked_about() -> None:
    phrases = {sample.target.phrase for seed in range(3000) if (sample := example("alternatives", seed, PLAIN)).target}
    usual = {
        phrase
        for slot in SLOTS.values()
        if slot.field in EDIT_FACTOR
        for wording in slot.wordings.values()
        for phrase in wording.usual
    }
    assert phrases == usual
