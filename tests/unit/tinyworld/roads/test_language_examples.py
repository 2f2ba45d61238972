"""Training examples about roads use the prompts of the methods, with right answers, for either domain."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest
import torch

from gateway.methods.counterfactual import FACTORS, TaskDescription
from gateway.methods.dillema import keyword_messages
from tests.support.phrase_values import value_of
from tinyworld.judges.language import is_right
from tinyworld.language_domain import LanguageDomain
from tinyworld.language_examples import KINDS, Kind, Wordings, example
from tinyworld.objects.language_examples import OBJECTS
from tinyworld.roads.captions import read
from tinyworld.roads.language_examples import ROADS
from tinyworld.roads.phrases import SLOTS
from tinyworld.roads.world import EDIT_FACTOR, SHAPES
from tinyworld.train import language
from tinyworld.train.language import LanguageLoss, build_model, build_tokenizer
from tinyworld.wording import slot_of

PLAIN = Wordings(noise=0, domain=ROADS)
SEEDS = range(250)


@pytest.mark.parametrize("kind", KINDS)
def test_the_right_answer_is_right_and_examples_repeat(kind: Kind) -> None:
    for seed in SEEDS:
        sample = example(kind, seed, PLAIN)
        assert is_right(sample, sample.reply)
        assert not is_right(sample, sample.reply[:-1])
    assert example(kind, 7, PLAIN) == example(kind, 7, PLAIN)


def test_the_questions_are_the_methods_own() -> None:
    sample = example("keywords", 3, PLAIN)
    task = sample.messages[-1].content.splitlines()[0].removeprefix("Task: ")
    assert sample.messages == keyword_messages(TaskDescription(task), sample.description.text, None)


def test_keywords_are_looks_and_never_positions() -> None:
    for seed in SEEDS:
        sample = example("keywords", seed, PLAIN)
        listed = json.loads(sample.reply)["keywords"]
        assert len(listed) <= 8
        fields = {
            mention.field for mention in sample.description.mentions if mention.phrase in {k["phrase"] for k in listed}
        }
        assert fields == {
            field for field in sample.description.stated if field in EDIT_FACTOR and field != sample.forbidden
        }
        assert not fields & (set(SHAPES) - {"traffic_light"})
        assert all(keyword["factor"] in FACTORS for keyword in listed)
        assert all(keyword["value"] in sample.description.stated.values() for keyword in listed)


def test_alternatives_and_rewrites_state_new_values_of_the_same_place() -> None:
    for seed in SEEDS:
        sample = example("alternatives", seed, PLAIN)
        assert sample.target is not None
        place = slot_of(sample.target.phrase, SLOTS, field=sample.target.field)
        for other in json.loads(sample.reply)["alternatives"]:
            assert (
                value_of(other["phrase"], field=sample.target.field, slots=SLOTS)
                == other["value"]
                != sample.target.value
            )
            assert slot_of(other["phrase"], SLOTS, field=sample.target.field) == place
        sample = example("rewrite", seed, PLAIN)
        changes = [line for line in sample.messages[-1].content.splitlines() if line.startswith("Change: ")]
        after = read(json.loads(sample.reply)["caption"])
        changed = {field for field, value in sample.description.stated.items() if after.get(field) != value}
        assert len(changed) == len(changes)
        assert changed <= set(EDIT_FACTOR)


@pytest.mark.parametrize("domain", [OBJECTS, ROADS], ids=lambda domain: domain.name)
def test_a_step_of_training_asks_of_the_domain(domain: LanguageDomain[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(language, "_TOKENIZER_EXAMPLES", 30)
    tokenizer = build_tokenizer(domain)
    model = build_model(tokenizer)
    loss = LanguageLoss(tokenizer, 4, domain)
    value = loss(model, 0)
    value.backward()  # type: ignore[no-untyped-call]
    assert torch.isfinite(value)
    captions = tokenizer.batch_decode(loss._captions(Random(0), 20).ids, skip_special_tokens=True)
    assert sum("road" in text for text in captions) == (20 if domain is ROADS else 0)
