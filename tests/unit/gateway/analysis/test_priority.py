"""Priority: classes in turn before rendering, the most informative failures first for review; and APFD."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gateway.analysis.priority import Failure, Fault, evidence, review_order, turns
from shared.schemas.effects import Cell, CellEffect


def fault(name: str, model: str = "m") -> Fault:
    return Fault(model, "dillema", Cell(label=name, factor="weather", value="night", direction="to"))


BUS, CAR, BOAT = fault("bus"), fault("car"), fault("boat")
SURE = {BUS: 0.5, CAR: 0.3, BOAT: 0.04}


def test_classes_take_turns_as_they_first_occur() -> None:
    labels = ["bus", "bus", "bus", "car", "car", "boat"]
    turn = turns(labels)
    assert [labels[place] for place in np.argsort(turn)] == ["bus", "car", "boat", "bus", "car", "bus"]
    assert turns([None, None, None]) == [0, 1, 2], "without ground truth, images come as they were sent"
    assert turns([]) == []


@given(st.lists(st.sampled_from(["bus", "car", "boat", None])))
def test_whenever_one_looks_every_class_has_been_tried_about_equally_often(labels: list[str | None]) -> None:
    turn = turns(labels)
    assert sorted(turn) == list(range(len(labels)))
    for tries in range(len(labels) + 1):
        tried = dict.fromkeys(labels, 0)
        untried = dict.fromkeys(labels, 0)
        for place, label in enumerate(labels):
            (tried if turn[place] < tries else untried)[label] += 1
        waiting = [tried[label] for label in labels if untried[label]]
        assert not waiting or max(tried.values()) - min(waiting) <= 1


def test_the_first_failures_show_different_faults_the_surest_first() -> None:
    failures = [Failure(f"bus-{n}", 0.9 - n / 100, (BUS,)) for n in range(5)]
    failures += [Failure("car", 0.2, (CAR,)), Failure("boat", 0.99, (BOAT,))]
    order = review_order(failures, SURE, 4)
    assert order == ["bus-0", "car", "bus-1", "bus-2"], "a weak suspicion waits, whatever its loss"
    assert review_order(failures, SURE, 100)[-2:] == ["boat", "bus-4"]


def test_a_failure_that_shows_several_faults_comes_before_those_that_show_one() -> None:
    both = Failure("both", 0.1, (BUS, CAR))
    failures = [Failure("bus", 0.9, (BUS,)), Failure("car", 0.9, (CAR,)), both, Failure("boat", 0.1, (BOAT,))]
    assert review_order(failures, SURE, 2) == ["both", "bus"]


def plain_greedy(failures: list[Failure], sure: dict[Fault, float], most: int) -> list[str]:
    """The same, looking at every failure again each time."""
    remaining, shown = list(failures), dict.fromkeys(sure, 0)
    chosen: list[str] = []
    while remaining and len(chosen) < most:
        best = min(
            remaining,
            key=lambda failure: (-sum(sure[f] * 0.5 ** shown[f] for f in failure.faults), -failure.loss, failure.id),
        )
        remaining.remove(best)
        chosen.append(best.id)
        for shown_now in best.faults:
            shown[shown_now] += 1
    return chosen


@given(st.lists(st.tuples(st.sets(st.sampled_from([BUS, CAR, BOAT]), min_size=1), st.integers(0, 4)), max_size=12))
def test_it_equals_the_greedy_choice_that_looks_at_all_each_time(
    faults_and_losses: list[tuple[set[Fault], int]],
) -> None:
    failures = [
        Failure(f"{place:02}", loss / 4, tuple(sorted(faults, key=repr)))
        for place, (faults, loss) in enumerate(faults_and_losses)
    ]
    assert review_order(failures, SURE, 8) == plain_greedy(failures, SURE, 8)


def test_evidence_is_drawn_to_nothing_where_there_are_few_images() -> None:
    def effect(delta: float, sources: int) -> CellEffect:
        return CellEffect(
            cell=BUS.cell, sources=sources, counterfactuals=sources, delta_accuracy=delta, delta_probability=None,
            standing="too few images",
        )  # fmt: skip

    assert evidence(effect(-0.6, 30)) > evidence(effect(-1.0, 1))
    assert evidence(effect(-0.6, 30)) > evidence(effect(-0.3, 30)) > 0
    assert evidence(effect(0.4, 30)) == 0.0
