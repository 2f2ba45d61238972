"""Answers of known judges on edits of known answer: each is named for what it is, and only a sound one passes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from gateway.analysis.effects import Floats
from gateway.analysis.judge_audit import KnownAnswers, audit_question, missed_share
from gateway.analysis.thresholds import Booleans
from shared.profiles.judge_audit import Nature

VALID = np.arange(240) % 4 < 2
WORDS = np.arange(240) // 4 % 6
Judge = Callable[[np.random.Generator], Floats]


def wrong(random: np.random.Generator, share: float, of: Booleans | None = None) -> Floats:
    """Yes or no, wrong on a share of the edits, or of some of them."""
    errs = (random.random(len(VALID)) < share) & (True if of is None else of)
    return np.asarray(errs != VALID, np.float64)


def audited(yes: Floats, refused: int = 0) -> tuple[Nature, tuple[float, float, float] | None]:
    figures = audit_question(KnownAnswers(yes, VALID, np.arange(240) // 4, WORDS, refused), seed=1)
    assert figures.valid + figures.invalid == 240
    return figures.nature, figures.auroc


@pytest.mark.parametrize(
    ("judge", "nature"),
    [
        (lambda random: VALID * 0.4 + 0.3, "sound"),
        (lambda random: wrong(random, 0.02), "sound"),
        (lambda random: wrong(random, 0.2), "errs often"),
        (lambda random: wrong(random, 0.5, ~VALID), "leans to yes"),
        (lambda random: wrong(random, 0.5, VALID), "leans to no"),
        (lambda random: random.random(240), "no better than chance"),
        (lambda random: VALID * 0.3 + 0.6, "says yes to all"),
        (lambda random: np.zeros(240), "says no to all"),
        (lambda random: np.full(240, 0.5), "does not look"),
        (lambda random: np.array([0.9, 0.1, 0.7, 0.2, 0.8, 0.3])[WORDS], "does not look"),
    ],
)
def test_a_judge_is_named_for_what_it_is(judge: Judge, nature: Nature) -> None:
    assert audited(judge(np.random.default_rng(5)))[0] == nature


def test_answers_that_are_missing_are_no_verdicts() -> None:
    yes = wrong(np.random.default_rng(1), 0.0)
    tenth = np.arange(240) % 10 == 0
    assert audited(np.where(tenth, np.nan, yes), refused=24) == ("sound", (1.0, 1.0, 1.0))
    half = np.arange(240) % 2 == 0
    assert audited(np.where(half, np.nan, yes), refused=120)[0] == "refuses"
    assert audited(np.where(half, np.nan, yes), refused=40)[0] == "unreadable"
    assert audited(np.full(240, np.nan)) == ("unreadable", None)


def test_a_fault_is_missed_if_every_sound_question_lets_it_pass() -> None:
    assert missed_share(np.array([0.9, 0.5, 0.1, 0.8])) == 0.5
    assert missed_share(np.zeros(0)) == 1.0, "nothing looks for it"
