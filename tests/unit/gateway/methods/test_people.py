"""Edits of protected characteristics of people: found by their words, refused unless the job allows them."""

from __future__ import annotations

import pytest

from gateway.methods.counterfactual import Change, Edit, TaskDescription
from gateway.methods.people import CHECK, changed_by, characteristics, check_people


@pytest.mark.parametrize(
    ("old", "new", "groups"),
    [
        ("a boy in a car", "a teenage boy in a car", ["age"]),  # LANCE's study shows this one
        ("a man walks a dog", "a woman walks a dog", ["gender"]),  # the first example of its Table 5
        ("a woman", "a middle-aged woman", ["age"]),
        ("a man", "a tall young black man", ["age", "ethnicity"]),
        ("a person", "a person with dark skin", ["ethnicity"]),
        ("an elderly man", "a man", ["age"]),
        ("a woman walks", "a person walks", ["gender"]),
        ("a woman in a chair", "a lifeguard in a chair", ["gender"]),  # LANCE's raters found this one objectionable
        ("a cyclist", "an old cyclist", ["age"]),
        ("two skiers", "two young black skiers", ["age", "ethnicity"]),
        ("a skier", "a monk", ["religion"]),
        ("a man and a woman", "a man and a man", ["gender"]),
        ("a person walks his dog", "a person walks her dog", ["gender"]),
        ("a red bus", "a red bus and a child", ["age"]),
        ("a man", "two men", []),
        ("a woman walks", "a bench", []),
        ("a man walks his dog", "a man walks a cat", []),
        ("an old bus", "a black bus", []),
        ("a train", "an old passenger train", []),
        ("people on a field", "athletes on a field", []),
        ("a white car and a man", "a black car and a man", []),
        ("a person in a coat", "a person in a red coat", []),
        ("a man walks a dog", "a man walks a horse", []),
    ],
)
def test_characteristics_that_an_edit_changes(old: str, new: str, groups: list[str]) -> None:
    assert list(characteristics(old, new)) == groups


def test_an_edit_of_people_needs_the_owners_permission() -> None:
    change = Change("subject", "boy", "teenage boy", "boy", "teenage boy")
    edit = Edit((change,), "a boy in a car", "a teenage boy in a car")
    refusal = check_people(edit, TaskDescription("name the thing"))
    assert refusal is not None
    assert (refusal.check, refusal.accepted) == (CHECK, False)
    assert "`protected_characteristics: allow`" in refusal.reason
    assert check_people(edit, TaskDescription("name the thing", protected_characteristics="allow")) is None
    assert changed_by(Edit((), "a bus", "a bus", "Add an elderly woman.")) == {"age": ["elderly"], "gender": ["woman"]}
