"""The image-blind baseline of models that are asked a question: how much of what they answer needs no picture."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Mapping

import numpy as np

from gateway.analysis.certainty import clustered_rate, p_lost
from gateway.analysis.effects import Differences
from gateway.analysis.limits import LEAST_SOURCES
from gateway.analysis.originals import SOUND
from shared.schemas.effects import Rate
from shared.schemas.metrics import BlindBaseline, OriginalsCheck

NO_ANSWER = "no answer"
LEAST_ANSWERS = 20  # from which a place among the options that is chosen for `BIASED` of them is no chance
BIASED = 0.9
LEVEL = 0.025  # of the test that a model is right more often with the pictures, one-sided


class BlindAnswers:
    """Collects the answers for originals with and without the picture, 34 bytes each."""

    def __init__(self) -> None:
        self._group, self._seen, self._blind = array("q"), array("q"), array("q")
        self._right, self._right_blind = array("b"), array("b")
        self._guess = 0.0
        self._codes: dict[str, int] = {NO_ANSWER: 0}

    def add(self, group: int, label: str, seen: str, blind: str, options: int) -> None:
        """Add an original of a group with its label, the answers with and without its picture, and their `options`.

        Without options, 0, nothing is right by chance.
        """
        self._group.append(group)
        self._seen.append(self._codes.setdefault(seen, len(self._codes)))
        self._blind.append(self._codes.setdefault(blind, len(self._codes)))
        self._right.append(seen == label)
        self._right_blind.append(blind == label)
        self._guess += 1 / options if options else 0.0

    def baseline(self, seed: int) -> BlindBaseline | None:
        """What the answers come to; None without any."""
        if not self._group:
            return None
        group, seen, blind = (np.asarray(column) for column in (self._group, self._seen, self._blind))
        right, right_blind = (np.asarray(column).astype(bool) for column in (self._right, self._right_blind))
        answered, size = blind > 0, len(self._codes)
        shares = [np.bincount(column[answered], minlength=size) / max(1, answered.sum()) for column in (seen, blind)]
        groups, number, images = np.unique(group, return_inverse=True, return_counts=True)
        gains = np.bincount(number, right.astype(float) - right_blind) / images
        none = np.zeros(len(groups))
        losses = Differences(groups, -gains, none, len(group), len(group), null_accuracy=float(right.mean()))
        return BlindBaseline(
            right=clustered_rate(right_blind, group),
            chance=self._guess / len(group),
            of_right=clustered_rate(right_blind[right], group[right]),
            unanswered=int((~answered).sum()),
            same=clustered_rate((seen == blind)[answered], group[answered]),
            same_by_chance=float(shares[0] @ shares[1]),
            looks=p_lost(losses, 0.0, seed) < LEVEL,
        )


def with_baseline(
    check: OriginalsCheck | None, baseline: BlindBaseline, *, labelled: bool, unit: str = "originals"
) -> OriginalsCheck:
    """The check of the originals (None: nothing to say) with the baseline: a model that does not look is not testable.

    Under 12 originals it is not judged. A check that is unsound keeps its reason.
    """
    check = check or OriginalsCheck(standing="sound")
    sentence = f"{check.sentence} {_in_words(baseline, labelled=labelled, unit=unit)}".strip()
    if not baseline.looks and baseline.right.n >= LEAST_SOURCES and check.standing != "unsound":
        sentence, standing = _fault(check, baseline, labelled=labelled, unit=unit), "unsound"
        return check.model_copy(update={"standing": standing, "sentence": sentence, "blind": baseline})
    return check.model_copy(update={"sentence": sentence, "blind": baseline})


def place_hint(places: Counter[int]) -> str:
    """On a model that chooses one place among the options, whose order differs; "" of others. `places`: how often."""
    ((place, count),) = places.most_common(1) or [(0, 0)]
    answers = places.total()
    if answers < LEAST_ANSWERS or count < BIASED * answers:
        return ""
    return (
        f"It chose option {place + 1} in {count} of {answers} answers, whatever stood there: the options are in "
        "another order for each image."
    )


def unanswered_in_words(counts: Mapping[str, int]) -> str:
    """ "5 refused, 1 cut off", the most frequent first."""
    return ", ".join(f"{count} {why}" for why, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _fault(check: OriginalsCheck, baseline: BlindBaseline, *, labelled: bool, unit: str) -> str:
    causes = "Check that its server hands it the pictures, or submit more images."
    if not labelled or not isinstance(check.right, Rate):
        return f"Not testable: it answers {_share(baseline.same)} of the {unit} the same without seeing them. {causes}"
    return (
        f"Not testable: right on {_share(check.right)} of the {unit} with their pictures and on "
        f"{_share(baseline.right)} without, which is not surely more often; by chance {baseline.chance:.0%}. {causes}"
    )


def _in_words(baseline: BlindBaseline, *, labelled: bool, unit: str) -> str:
    """The figures in one to three sentences; the last is of a model that looks at a part of the pictures only."""
    n, sentences = baseline.right.n, []
    if baseline.unanswered == n:
        return "Without the pictures it answered none of the questions."
    if labelled:
        could = (
            f", and {_share(baseline.of_right)} of its right answers could be had blind" if baseline.of_right.n else ""
        )
        sentences.append(
            f"It is right on {_share(baseline.right)} of the {unit} without seeing them, by chance "
            f"{baseline.chance:.0%}{could}."
        )
    if baseline.unanswered:
        sentences.append(f"Without the picture it did not answer {baseline.unanswered} of {n}.")
    by_chance = baseline.same_by_chance
    if baseline.same.low > by_chance + SOUND * (1 - by_chance):
        looks = "it looks at a part of them only" if baseline.looks else "it hardly looks at them"
        sentences.append(
            f"Its answer is the same without the pictures for {_share(baseline.same)}, by chance for {by_chance:.0%}: "
            f"{looks}."
        )
    return " ".join(sentences)


def _share(rate: Rate) -> str:
    return f"{rate.value or 0:.0%} ({rate.count} of {rate.n})"
