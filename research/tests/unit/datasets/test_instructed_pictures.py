"""Pairs of the editor that follows instructions: one factor changes, what is where stays, and the words say so."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from research.datasets.captioned_pictures import PICTURE_DOMAINS
from research.datasets.instructed_pictures import EDITS, WORDINGS, instructed_pictures, pair
from research.domain.instructions import CHANGES_NOTHING
from research.objects.pictures import render_pair
from tinyworld.domain.descriptions import Withheld
from tinyworld.domain.names import DOMAINS, Domain
from tinyworld.domain.scenes import geometry_seed
from tinyworld.objects.world import EDIT_FACTOR as OBJECT_FACTORS
from tinyworld.roads.render import render as render_road
from tinyworld.roads.world import EDIT_FACTOR as ROAD_FACTORS

PAIRS = 600
both_domains = pytest.mark.parametrize("domain", DOMAINS)


@both_domains
def test_one_factor_changes_and_no_combination_is_withheld(domain: Domain) -> None:
    picture_domain = PICTURE_DOMAINS[domain]
    for number in range(PAIRS):
        edit = pair(domain, number)
        before, after = picture_domain.shown(edit.source), picture_domain.shown(edit.target)
        assert [name for name in before | after if before.get(name) != after.get(name)] == [edit.field]
        assert not picture_domain.withheld(edit.source)
        assert not picture_domain.withheld(edit.target)
        assert edit.source.geometry_seed == geometry_seed(domain, "generator", number // EDITS)


@both_domains
def test_every_factor_that_instructions_change_is_drawn(domain: Domain) -> None:
    changeable = {"objects": set(OBJECT_FACTORS) - {"size"}, "roads": set(ROAD_FACTORS)}[domain]
    assert set(WORDINGS[domain].fields()) == changeable
    assert {pair(domain, number).field for number in range(PAIRS)} == changeable


def test_the_label_stays_and_no_object_moves() -> None:
    for number in range(0, 60, 6):
        edit = pair("objects", number)
        assert edit.target.label == edit.source.label
        before, after = (render_pair(scene)[1] == 1 for scene in (edit.source, edit.target))
        if edit.field not in ("companion", "style"):  # one may stand before the object, the other bends outlines
            assert np.array_equal(before, after)


def test_masks_of_roads_stay() -> None:
    for number in range(0, 45, 9):
        edit = pair("roads", number)
        before, after = render_road(edit.source), render_road(edit.target)
        assert np.array_equal(before.classes, after.classes)
        assert np.array_equal(before.instances, after.instances)


@both_domains
def test_an_instruction_has_a_phrase_of_the_new_value_and_a_sham_none_of_another(domain: Domain) -> None:
    slots = WORDINGS[domain].slots
    for number in range(PAIRS):
        edit = pair(domain, number)
        phrases = {
            value: {p for slot in slots.values() if slot.field == edit.field for p in slot.wordings[value].all}
            for value in (edit.value, getattr(edit.source, edit.field))
        }
        text, sham = edit.instruction(number).lower(), edit.sham(number).lower()
        assert any(phrase in text for phrase in phrases[edit.value]), text
        plain = sham.removesuffix(".")
        assert plain in CHANGES_NOTHING.usual or any(p in plain for p in phrases[getattr(edit.source, edit.field)])


@both_domains
def test_instructions_vary_and_repeat(domain: Domain) -> None:
    edit = pair(domain, 4)
    texts = [edit.instruction(seed) for seed in range(40)]
    assert texts == [edit.instruction(seed) for seed in range(40)]
    assert len(set(texts)) > 5
    assert len({edit.sham(seed) for seed in range(40)}) > 5


@both_domains
@pytest.mark.parametrize("withheld", ["sentences", "phrases too"])
def test_training_never_shows_withheld_wordings(domain: Domain, withheld: Withheld) -> None:
    edit = pair(domain, 7)
    usual = {edit.instruction(seed) for seed in range(400)}
    rare = {edit.instruction(seed, withheld=withheld) for seed in range(40)} - usual
    assert len(rare) > 3


def test_a_field_without_instructions_is_refused() -> None:
    with pytest.raises(KeyError, match="background"):
        WORDINGS["objects"].instruction(pair("objects", 0).source, "size", "large", 0)


def test_images_are_numbered_sources_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("research.objects.pictures.CACHE", tmp_path)
    data = instructed_pictures("objects", 2)
    assert (data.count, data.pairs) == (2 + 2 * EDITS, 2 * EDITS)
    numbers = np.arange(data.pairs)
    for number, source, target in zip(numbers.tolist(), data.source_of(numbers), data.target_of(numbers), strict=True):
        edit = pair("objects", number)
        assert np.array_equal(data.image(int(source)), render_pair(edit.source)[0])
        assert np.array_equal(data.image(int(target)), render_pair(edit.target)[0])
