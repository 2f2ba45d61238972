"""What a vision-language judge is at one question, by its answers on edits of known answer. Arrays in, figures out."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gateway.analysis.certainty import clustered_rate
from gateway.analysis.effects import Floats, Integers
from gateway.analysis.thresholds import Booleans
from gateway.analysis.validity_model import auroc_interval
from shared.profiles.judge_audit import LEAST_AUROC, LEAST_RIGHT, MOST_UNANSWERED, Limits, Nature, QuestionAudit

YES = 0.5  # an answer above it is "yes"; of a pair asked in both orders, a judge that prefers a place is at it
CHANCE = 0.5  # AUROC


class KnownAnswers(NamedTuple):
    """The answers to one question on n edits: P(yes), NaN without an answer, and whether "yes" is right.

    `group`: edits of one source image are not independent. `words`: equal for equal questions. `refused`: how many of
    those without an answer the judge declined; it did not answer the others in readable words.
    """

    yes: Floats
    valid: Booleans
    group: Integers
    words: Integers
    refused: int


def audit_question(answers: KnownAnswers, seed: int) -> QuestionAudit:
    """The figures of a question with 95 % intervals over groups, and what the judge is at it."""
    answered = ~np.isnan(answers.yes)
    yes, valid, group = answers.yes[answered], answers.valid[answered], answers.group[answered]
    unreadable = int((~answered).sum()) - answers.refused
    auroc: Limits | None = None
    sensitivity: Limits | None = None
    specificity: Limits | None = None
    if valid.any() and not valid.all():
        area = auroc_interval(yes, valid, group, seed)
        auroc = (area.value, area.low, area.high)
        sensitivity = _rate(yes[valid] > YES, group[valid])
        specificity = _rate(yes[~valid] <= YES, group[~valid])
    return QuestionAudit(
        valid=int(answers.valid.sum()),
        invalid=int((~answers.valid).sum()),
        refused=answers.refused,
        unreadable=unreadable,
        auroc=auroc,
        sensitivity=sensitivity,
        specificity=specificity,
        nature=_nature(answers, unreadable, auroc, sensitivity, specificity),
    )


def _rate(hits: Booleans, group: Integers) -> Limits:
    rate = clustered_rate(hits, group)
    return round(rate.value or 0.0, 4), round(rate.low, 4), round(rate.high, 4)


def _nature(
    answers: KnownAnswers, unreadable: int, auroc: Limits | None, sensitivity: Limits | None, specificity: Limits | None
) -> Nature:
    missing = answers.refused + unreadable
    if missing > MOST_UNANSWERED * len(answers.yes) or auroc is None or sensitivity is None or specificity is None:
        return "refuses" if answers.refused >= unreadable else "unreadable"
    yes = answers.yes[~np.isnan(answers.yes)]
    if (yes > YES).all():
        return "says yes to all"
    if (yes < YES).all():
        return "says no to all"
    if _ignores_pictures(answers):
        return "does not look"
    if auroc[1] >= LEAST_AUROC and min(sensitivity[1], specificity[1]) >= LEAST_RIGHT:
        return "sound"
    if auroc[1] <= CHANCE:
        return "no better than chance"
    if sensitivity[1] > specificity[2]:
        return "leans to yes"
    return "leans to no" if specificity[1] > sensitivity[2] else "errs often"


def _ignores_pictures(answers: KnownAnswers) -> bool:
    """Whether equal questions have equal answers, whatever the picture shows."""
    return all(
        np.ptp(same[~np.isnan(same)]) == 0.0
        for words in np.unique(answers.words)
        if len((same := answers.yes[answers.words == words])[~np.isnan(same)])
    )


def missed_share(lowest: Floats) -> float:
    """The share (0 … 1) of broken edits that all sound questions let pass; `lowest`: their least certain answer."""
    return round(float((lowest > YES).mean()), 4) if len(lowest) else 1.0
