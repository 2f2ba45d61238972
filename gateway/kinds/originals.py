"""What kinds say of a model that is wrong on its originals, or less often right than one would hope.

A worker asks before anything is rendered, and the report after everything is predicted.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from gateway.analysis.effects import Floats
from gateway.analysis.limits import LEAST_SOURCES
from gateway.kinds.rows import PredictionRow
from shared.schemas.effects import SMALL_LOSS
from shared.schemas.metrics import ExchangedClass, OriginalsCheck

MOST_NAMED = 8  # in a sentence


class OriginalsJudge(Protocol):
    """Collects one model's predictions on the originals of a job, with or without counterfactuals."""

    def add(self, group: int, row: PredictionRow | None) -> None:
        """Add a source image of a group with the model's prediction; it counts only if there is a ground truth."""

    def check(self) -> OriginalsCheck | None:
        """The check; None where nothing can be judged."""


class HeldLabels:
    """The labels of a model's originals, and the sum of its scores of each."""

    def __init__(self) -> None:
        self._images, self._sums = Counter[str](), defaultdict[str, float](float)

    def add(self, scores: Mapping[str, float]) -> None:
        """Add an original with its scores by label."""
        self._images.update(scores.keys())
        for label, score in scores.items():
            self._sums[label] += score

    def named_in(self, check: OriginalsCheck | None) -> OriginalsCheck | None:
        """The check of a sound model, which names labels that have no more to lose than a green verdict rules out."""
        images = {label: n for label, n in self._images.items() if n >= LEAST_SOURCES}
        never = [label for label, n in images.items() if self._sums[label] <= SMALL_LOSS * n]
        if check is None or check.standing != "sound" or check.order or not never:
            return check
        listed = ", ".join(f"`{label}`" for label in sorted(never)[:MOST_NAMED])
        more = f" and {len(never) - MOST_NAMED} more" if len(never) > MOST_NAMED else ""
        hint = (
            f"It hardly ever recognises {listed}{more} on the originals, so nothing can be lost there. Check these "
            "names in its classes, and the label map."
        )
        return check.model_copy(update={"never": sorted(never), "sentence": f"{check.sentence} {hint}".strip()})


def check_one_class(only: str, originals: int) -> OriginalsCheck | None:
    """The check of a model without ground truth that predicts one class for everything, or one mask (`only` is "").

    None under 12 originals.
    """
    if originals < LEAST_SOURCES:
        return None
    fault = f"says `{only}`" if only else "gives the same share of pixels to every class"
    sentence = (
        f"It {fault} for each of the {originals} originals, and without ground truth nothing shows whether "
        "it tells images apart. Submit labels, or images of several classes."
    )
    return OriginalsCheck(standing="open", only=only, sentence=sentence)


def exchanges(order: Mapping[int, int], names: Sequence[str]) -> list[ExchangedClass]:
    """The exchanged classes by name. `order`: predicted class → the class meant, as numbers of `names`."""
    return [ExchangedClass(predicted=names[predicted], meant=names[meant]) for predicted, meant in order.items()]


def exchange_in_words(check: OriginalsCheck) -> str:
    """ "classes are exchanged: it says `bus` for `car`, `car` for `bus`."."""
    pairs = [f"`{pair.predicted}` for `{pair.meant}`" for pair in check.order[:MOST_NAMED]]
    more = f" and {len(check.order) - MOST_NAMED} more" if len(check.order) > MOST_NAMED else ""
    return f"classes are exchanged: it says {', '.join(pairs)}{more}."


def doubts_in_words(checks: Iterable[tuple[str, OriginalsCheck | None]]) -> str:
    """What the originals say against models, each with its check: "`v2`: Not testable: …"; "" if nothing."""
    doubts = [f"`{model}`: {check.sentence}" for model, check in checks if check and not check.lets_pass]
    return " ".join(dict.fromkeys(doubts))


def channel_hint(scores: Floats, exchanged: Floats) -> str:
    """What to say of a model that is better on originals whose red and blue are exchanged."""
    return (
        f"With red and blue exchanged, its mean score on {len(scores)} originals is {exchanged.mean():.0%} instead of "
        f"{scores.mean():.0%}: exchange the channels in its preprocessing (`channels`: bgr or rgb)."
    )
