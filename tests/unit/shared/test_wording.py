"""Cells in words."""

from __future__ import annotations

import pytest

from shared.schemas.designs import Factor
from shared.schemas.effects import Cell
from shared.schemas.results import JobJudge
from shared.words.verdicts import ModelVerdict, not_settled_sentence
from shared.words.wording import change_in_words, judge_sentence, more_images, open_effect_sentence
from tests.support.figures import effect


@pytest.mark.parametrize(
    ("factor", "value", "words"),
    [("weather", "night", "at night"), ("other", "fog 5", "with the image changed to fog 5")],
)
def test_a_change_without_a_factor_is_one_of_the_image(factor: Factor, value: str, words: str) -> None:
    assert change_in_words(Cell(label="bus", factor=factor, value=value, direction="to")) == words


@pytest.mark.parametrize(
    ("label", "sources", "needed", "words"),
    [
        ("bus", 8, 12, "about 4 more images of `bus` that get this change"),
        ("bus", 11, 12, "about 1 more image of `bus` that gets this change"),
        ("", 8, 5471, "about 5,463 more images that get this change"),
        ("bus", 20, 12, ""),
    ],
)
def test_an_open_effect_says_how_many_more_images_it_needs(label: str, sources: int, needed: int, words: str) -> None:
    drop = effect("night", -100, label, sources=sources).model_copy(update={"images_needed": needed})
    assert more_images(drop) == words
    sentence = open_effect_sentence(drop)
    assert f": −100 points on {sources} images" in sentence
    assert sentence.endswith(f"; {words} would settle an effect of this size" if words else "not significant")


def test_an_unsettled_verdict_counts_the_cells_without_a_test() -> None:
    drop, held = effect("night", -100, sources=1), effect("fog", 0, sources=3)
    verdict = ModelVerdict("not settled", [], [effect("snow", 0)], [drop, held], [drop])
    assert not_settled_sentence(verdict) == (
        "Not settled: `bus` at night: −100 points on 1 image; about 9 more images of `bus` that "
        "get this change would settle an effect of this size. 2 of 3 cells have too few images to test, 1 of them with "
        "a drop beyond 5 points."
    )
    assert not_settled_sentence(ModelVerdict("bounded", [], [], [], [])) == ""


def test_an_unsettled_verdict_names_the_drop_of_a_tested_cell() -> None:
    lost, still = effect("night", -50, sources=16).model_copy(update={"images_needed": 22}), effect("snow", 0)
    assert not_settled_sentence(ModelVerdict("not settled", [], [lost, still], [], [lost])) == (
        "Not settled: `bus` at night: −50 points on 16 images, 95 % interval −90 to −30, not "
        "significant; about 6 more images of `bus` that get this change would settle an effect of this size. 1 of 2 "
        "tested cells dropped, not significant."
    )


def test_a_judge_without_an_audit_is_not_audited_and_one_with_it_counts_where_it_is_sound() -> None:
    judge = JobJudge(
        edits=120, questions=480, refused=12, unreadable=3, prompt_tokens=96_000, completion_tokens=480,
        audited="", audit="", natures={}, counting=[],
    )  # fmt: skip
    sentence = judge_sentence(judge)
    assert "480 questions about 120 edits; 15 have no answer (12 refused, 3 unreadable); 96,480 tokens" in sentence
    assert "not audited, so its answers enter no figure" in sentence
    natures = {"judge_label": "sound", "judge_rest": "errs often"}
    audited = judge_sentence(
        judge.model_copy(
            update={"audited": "2026-11-28", "audit": "0a1b", "natures": natures, "counting": ["judge_label"]}
        )
    )
    assert "sound at judge_label" in audited
    assert "judge_rest (errs often) do not count" in audited
