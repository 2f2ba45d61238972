"""What is said of a model that is wrong on its originals, or less often right than one would hope: one judge a kind.

A worker asks before anything is rendered, and the report after everything is predicted.

Collects a model's predictions on all source images, with or without counterfactuals.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np

from gateway.analysis.effects import Integers, Originals
from gateway.analysis.limits import LEAST_SOURCES
from gateway.analysis.original_masks import JudgedMasks, MaskedOriginals, have_same_shares, judge_masks
from gateway.analysis.originals import JudgedOriginals, judge_originals
from gateway.results.pairing import PredictionRow, labels
from shared.label_maps import unpack_counts
from shared.schemas.base import Kind
from shared.schemas.effects import MeanOverlap, Rate
from shared.schemas.metrics import ExchangedClass, OriginalsCheck
from shared.schemas.results import Relation
from shared.seeds import derive_seed

HINT_BELOW = 0.8  # accuracy below which the preprocessing may be wrong
MOST_EXCHANGES = 8  # named in a sentence
OTHER_NAME = "another class"
_CAUSES = "the order of the classes, the label map, and the preprocessing (rescale, mean and std, channels, size)"
_MASK_CAUSES = (
    "the class ids of the masks, the order of the classes, the ignore value, and the preprocessing (rescale, mean and "
    "std, channels, size)"
)


class OriginalsJudge(Protocol):
    """Collects one model's predictions on the originals of a job."""

    def add(self, group: int, row: PredictionRow | None) -> None:
        """Add a source image of a group with the model's prediction; it counts only if there is a ground truth."""

    def check(self) -> OriginalsCheck | None:
        """The check; None where nothing can be judged."""


def judge_of(kind: Kind, classes: Sequence[str], relation: Relation, seed: int) -> OriginalsJudge:
    """The judge of a model's originals in a job with these classes."""
    return JUDGES[kind](classes, relation, derive_seed("originals", seed))


class ClassifiedOriginals:
    """The originals of a classifier. Without ground truth a prediction is its own label."""

    def __init__(self, classes: Sequence[str], relation: Relation, seed: int) -> None:
        self._known, self._relation, self._seed = len(classes), relation, seed
        self._columns = OriginalColumns()

    def add(self, group: int, row: PredictionRow | None) -> None:
        for label in labels(row):
            assert row is not None
            self._columns.add(group, row.rank, label, row.predicted)

    def check(self) -> OriginalsCheck | None:
        originals = self._columns.arrays()
        if self._relation == "metamorphic":
            return check_unlabelled(originals)
        return check_originals(originals, self._known, self._seed)


class MaskedColumns:
    """The originals of a segmenter, 24 bytes a class and image. Without masks its own map is the reference."""

    def __init__(self, classes: Sequence[str], relation: Relation, seed: int) -> None:
        self._classes, self._relation, self._seed = tuple(classes), relation, seed
        self._group, self._reference, self._predicted, self._hits = (array("q") for _ in range(4))
        self._halves = np.zeros((2, len(classes), len(classes) + 1), np.int64)

    def add(self, group: int, row: PredictionRow | None) -> None:
        if row is None or not row.scores:
            return
        counts = unpack_counts(row.confusion, len(self._classes))
        self._group.append(group)
        self._reference.extend(counts.sum(axis=1).tolist())
        self._predicted.extend(counts.sum(axis=0).tolist())
        self._hits.extend(np.diagonal(counts).tolist())
        self._halves[group % 2] += counts

    def check(self) -> OriginalsCheck | None:
        size = len(self._classes)
        originals = MaskedOriginals(
            np.asarray(self._group),
            np.asarray(self._reference).reshape(-1, size),
            np.asarray(self._predicted).reshape(-1, size + 1),
            np.asarray(self._hits).reshape(-1, size),
            self._halves,
        )
        if self._relation == "metamorphic":
            return check_unlabelled_masks(originals.predicted, self._classes)
        judged = judge_masks(originals, self._seed)
        return None if judged is None else check_masks(judged, self._classes)


JUDGES: Mapping[Kind, Callable[[Sequence[str], Relation, int], OriginalsJudge]] = {
    "classification": ClassifiedOriginals,
    "segmentation": MaskedColumns,
}


def check_originals(originals: Originals, known: int, seed: int) -> OriginalsCheck | None:
    """The check of a model that knows `known` classes, with its sentence; None without labelled originals."""
    judged = judge_originals(originals, known, seed)
    if judged is None:
        return None
    names = originals.classes
    check = OriginalsCheck(
        right=judged.right,
        chance=judged.chance,
        standing=judged.standing,
        only="" if judged.only is None else names[judged.only],
        order=_named(judged.order, names),
        right_in_order=judged.in_order,
    )
    return check.model_copy(update={"sentence": _class_sentence(check, judged, names)})


def check_unlabelled(originals: Originals) -> OriginalsCheck | None:
    """The check of a model without ground truth that says one class for all of at least 12 originals; else None."""
    predicted = originals.predicted
    if not len(predicted) or (predicted != predicted[0]).any():
        return None
    return _one_class(originals.classes[int(predicted[0])], len(predicted))


def check_unlabelled_masks(predicted: Integers, classes: Sequence[str]) -> OriginalsCheck | None:
    """As `check_unlabelled`, of a segmenter whose masks of all originals have the same pixels of each class."""
    if not len(predicted) or not have_same_shares(predicted):
        return None
    only = np.flatnonzero(predicted.sum(axis=0))
    return _one_class(classes[int(only[0])] if len(only) == 1 else "", len(predicted))


def _one_class(only: str, originals: int) -> OriginalsCheck | None:
    if originals < LEAST_SOURCES:
        return None
    fault = f"says `{only}`" if only else "gives the same share of pixels to every class"
    sentence = (
        f"It {fault} for each of the {originals} originals, and without ground truth nothing shows whether "
        "it tells images apart. Submit labels, or images of several classes."
    )
    return OriginalsCheck(standing="open", only=only, sentence=sentence)


def _named(order: Mapping[int, int], names: Sequence[str]) -> list[ExchangedClass]:
    return [ExchangedClass(predicted=names[predicted], meant=names[meant]) for predicted, meant in order.items()]


def check_masks(judged: JudgedMasks, classes: Sequence[str]) -> OriginalsCheck:
    """The check of a segmenter, with its sentence."""
    names = [*classes, OTHER_NAME]
    check = OriginalsCheck(
        right=judged.overlap,
        chance=judged.chance,
        standing=judged.standing,
        only="" if judged.only is None else names[judged.only],
        order=_named(judged.order, names),
    )
    return check.model_copy(update={"sentence": _mask_sentence(check, judged)})


def _class_sentence(check: OriginalsCheck, judged: JudgedOriginals, names: Sequence[str]) -> str:
    """What to say first of a classifier; "" if it is sound and right on most originals."""
    right, chance, share = judged.right, judged.chance, _share(judged.right)
    largest = f"`{names[judged.largest.number]}`"
    if check.standing == "unsound":
        return f"Not testable: {_fault(check, share, chance)}"
    if check.standing == "open" and judged.largest.share == 1:
        return (
            f"The originals have only one class: a model that always says {largest} could not be told apart. Right on "
            f"{share}. Submit images of other classes, too."
        )
    if check.standing == "open":
        bar = f"always saying {largest} ({judged.largest.share:.0%})" if judged.largest.share > chance else ""
        return (
            f"Not shown to be better than {bar or f'chance ({chance:.0%})'} on the originals: right on {share}. Check "
            f"{_CAUSES}, or submit more images."
        )
    if check.order:
        return f"Right on {share} of the originals, but {_exchanged(check)}"
    if (right.value or 0) < HINT_BELOW:
        return f"Right on {share} of the originals. If you know it to be better, check {_CAUSES}."
    return ""


def _fault(check: OriginalsCheck, right: str, chance: float) -> str:
    if check.order:
        return f"right on {right} of the originals, because {_exchanged(check)} Then submit again."
    if check.only:
        return (
            f"it says `{check.only}` for each original, whatever its label, and is right on {right}. Check {_CAUSES}."
        )
    return f"right on {right} of the originals, where chance is {chance:.0%}. Check {_CAUSES}."


def _mask_sentence(check: OriginalsCheck, judged: JudgedMasks) -> str:
    """What to say first of a segmenter; "" if it is sound."""
    overlap = f"mean IoU {judged.overlap.value or 0:.0%} on the {judged.overlap.n} originals"
    bar = f"where a mask of one class, or of chance, has {judged.chance:.0%}"
    if check.standing == "sound":
        return f"M{overlap[1:]}, but {_exchanged(check)}" if check.order else ""
    if check.standing == "open":
        return f"Not shown to be better than chance: {overlap}, {bar}. Check {_MASK_CAUSES}, or submit more images."
    if check.order:
        return f"Not testable: {overlap}, because {_exchanged(check)} Then submit again."
    if check.only:
        return f"Not testable: it says `{check.only}` for every pixel, {overlap}. Check {_MASK_CAUSES}."
    alike = "its masks are alike, " if judged.alike else ""
    return f"Not testable: {alike}{overlap}, {bar}. Check {_MASK_CAUSES}."


def _exchanged(check: OriginalsCheck) -> str:
    pairs = [f"`{pair.predicted}` for `{pair.meant}`" for pair in check.order[:MOST_EXCHANGES]]
    more = f" and {len(check.order) - MOST_EXCHANGES} more" if len(check.order) > MOST_EXCHANGES else ""
    exchange = f"classes are exchanged: it says {', '.join(pairs)}{more}."
    if isinstance(check.right, MeanOverlap):
        return f"{exchange} Correct the class ids of the masks, the order of the classes, or the label map."
    confirmed = _share(check.right_in_order) if check.right_in_order else ""
    return (
        f"{exchange} With these exchanged it is right on {confirmed} of the images that did not choose the exchange. "
        "Correct the order of the classes or the label map."
    )


def _share(rate: Rate) -> str:
    return f"{rate.value or 0:.0%} ({rate.count} of {rate.n})"


class OriginalColumns:
    """Grows by one source image at a time, 32 bytes each."""

    def __init__(self) -> None:
        self._rank, self._group = array("q"), array("q")
        self._truth, self._predicted = array("q"), array("q")
        self._codes: dict[str, int] = {}

    def add(self, group: int, rank: int | None, truth: str, predicted: str) -> None:
        """Add a source image of a group; None: a class that the model does not know, which does not count."""
        if rank is not None:
            self._rank.append(rank)
            self._group.append(group)
            self._truth.append(self._codes.setdefault(truth, len(self._codes)))
            self._predicted.append(self._codes.setdefault(predicted, len(self._codes)))

    def arrays(self) -> Originals:
        """All added images."""
        return Originals(
            np.asarray(self._rank),
            np.asarray(self._group),
            np.asarray(self._truth),
            np.asarray(self._predicted),
            tuple(self._codes),
        )
