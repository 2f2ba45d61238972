"""Which raters count."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.feedback.ratings import EXPECTED, score_raters
from shared.schemas.studies import ItemKind, StudyRequest

KINDS: Mapping[str, ItemKind] = {"a": "null", "b": "broken", "c": "null", "d": "broken", "e": "edit"}


def test_raters_who_fail_the_control_items_do_not_count() -> None:
    request = StudyRequest(least_control_score=0.75)
    assert request.label_question is not None
    label = request.label_question.name
    right = {item: {label: EXPECTED[kind]} for item, kind in KINDS.items() if kind in EXPECTED}
    wrong = {item: {label: "no" if answer[label] == "yes" else "yes"} for item, answer in right.items()}
    answers = {f"careful {number}": right for number in range(4)}
    answers |= {"once wrong": right | {"a": wrong["a"]}, "twice wrong": right | {"a": wrong["a"], "b": wrong["b"]}}
    scores, dropped = score_raters(request, KINDS, answers)
    assert not dropped
    assert [rater for rater, score in scores.items() if score.excluded] == ["twice wrong"]
    assert (scores["once wrong"].correct, scores["once wrong"].controls) == (3, 4)
