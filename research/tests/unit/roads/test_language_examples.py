"""Training examples about roads use the prompts of the methods, with right answers, for either domain."""

from __future__ import annotations

import json

from gateway.methods.counterfactual import FACTORS
from research.domain.language_examples import Wordings, example
from research.roads.language_domain import ROADS
from tests.support.phrase_values import value_of
from tinyworld.domain.wording import slot_of
from tinyworld.roads.captions import read
from tinyworld.roads.phrases import SLOTS
from tinyworld.roads.world import EDIT_FACTOR, SHAPES

PLAIN = Wordings(ROADS, noise=0)
SEEDS = range(250)


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
