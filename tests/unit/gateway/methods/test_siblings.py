"""The schedule of siblings: spread over keys and options until enough are accepted."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import islice

import pytest

from gateway.methods.counterfactual import ACCEPTED, Change, Edit, Exchange, MethodImage, TaskDescription, Verdict
from gateway.methods.schedule import Inputs, Proposal, round_robin, spread, spread_changes, until_accepted, until_enough
from gateway.model_services.clients import ModelServices
from shared.schemas.base import ImagePayload
from shared.schemas.jobs import MethodChoice

OPTIONS = {
    "rainy": [("rainy", phrase) for phrase in ("snowy", "foggy", "clear")],
    "day": [("day", phrase) for phrase in ("night", "sunset")],
    "red": [("red", phrase) for phrase in ("blue", "green", "black")],
}
KEYS = list(OPTIONS)


def test_a_few_combinations_are_spread_over_keys_and_options() -> None:
    for seed in range(20):
        chosen = list(islice(spread(["rainy", "day"], OPTIONS.__getitem__, 1, 3, seed), 4))
        assert all(len(options) == 1 for options in chosen)
        assert Counter(options[0][0] for options in chosen) == {"rainy": 2, "day": 2}
        assert len({options[0][1] for options in chosen}) == 4


def test_every_option_is_used_once_and_keys_are_reached_late() -> None:
    reached: list[str] = []

    def options_of(key: str) -> list[tuple[str, str]]:
        reached.append(key)
        return OPTIONS[key]

    combinations = spread(KEYS, options_of, 1, 3, 7)
    first = next(combinations)
    assert len(reached) == 1
    assert Counter([first, *combinations]) == {(option,): 1 for options in OPTIONS.values() for option in options}


def test_the_order_depends_on_the_seed_alone() -> None:
    orders = [list(spread(KEYS, OPTIONS.__getitem__, 1, 3, seed)) for seed in range(10)]
    assert orders == [list(spread(KEYS, OPTIONS.__getitem__, 1, 3, seed)) for seed in range(10)]
    assert len({order[0] for order in orders}) > 1


@pytest.mark.parametrize("width", [2, 3, 5])
def test_a_combination_has_options_of_different_keys(width: int) -> None:
    chosen = list(spread(KEYS, OPTIONS.__getitem__, width, 3, 1))
    assert all(len({key for key, _ in options}) == min(width, 3) for options in chosen)
    assert len({frozenset(options) for options in chosen}) == len(chosen) >= 3


def test_without_keys_or_options_there_are_no_combinations() -> None:
    assert list(spread([], OPTIONS.__getitem__, 1, 3, 1)) == []
    assert list(spread(KEYS, lambda _: [], 2, 3, 1)) == []


def proposal(name: str, accepted: bool = True) -> Proposal:
    return Proposal(Edit((), "caption", name), 0, ACCEPTED if accepted else Verdict(False, "some check"))


A, B, C, D = proposal("a"), proposal("b", accepted=False), proposal("c"), proposal("d")


def test_groups_take_turns() -> None:
    assert round_robin([[A, B], [], [C], [D]]) == [A, C, D, B]
    assert round_robin([]) == []


def test_proposals_end_with_the_last_accepted_one_that_is_wanted() -> None:
    endless = iter([A, B, C, D])
    assert list(until_accepted(endless, 2)) == [A, B, C]
    assert list(endless) == [D], "no further proposal is made"
    assert list(until_accepted([B, A, B], 2)) == [B, A, B]


def exchange(question: str) -> Exchange:
    return Exchange(question=question, messages=[], reply="", temperature=0.0, seed=1)


def test_changes_are_spread_over_the_accepted_keywords_and_repeated_values_are_refused() -> None:
    def keyword(phrase: str, verdict: Verdict = ACCEPTED) -> Proposal:
        edit = Edit((Change("weather", phrase, "", phrase, ""),), "caption", "")
        return Proposal(edit, 0, verdict, exchanges=(exchange("keywords"),))

    reached: list[str] = []

    def alternatives(old: Change) -> tuple[list[Change], Exchange]:
        reached.append(old.from_phrase)
        new = [replace(old, to_phrase=text, to_value=value) for text, value in (("a", "x"), ("b", "X"), ("c", "y"))]
        return new, exchange(old.from_phrase)

    image = MethodImage("image", ImagePayload(png=b""), None)
    services = ModelServices({})
    inputs = Inputs("method", "1", image, TaskDescription("task"), services, MethodChoice(name="method"), 7)
    keywords = [keyword("rainy"), keyword("bus", Verdict(False, "class words")), keyword("day")]
    changes = list(spread_changes(inputs, keywords, alternatives, 1, 3))
    services.close()
    assert sorted(reached) == ["day", "rainy"], "once each, and never of a refused keyword"
    assert Counter(change.verdict.check for change in changes) == {"": 4, "duplicate edit": 2}
    for change in changes:
        (only,) = change.edit.changes
        assert change.exchanges == (exchange("keywords"), exchange(only.from_phrase))


def test_enough_are_several_edits_or_one_edit_several_times() -> None:
    assert until_enough([A, B, C, D], 2, same_edit=False) == [A, B, C]
    assert until_enough([B, A, C], 3, same_edit=True) == [B, A, A, A]
    assert until_enough([B], 3, same_edit=True) == [B]
