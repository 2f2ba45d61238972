"""Classification: one class for an image, right or wrong.

`detail` of a prediction: `rank`, the place of the truth (1 is first; acc@k is `rank <= k`), and `truth_probability`,
its softmax value even outside `top`, which holds the five most probable classes. Without a truth, or for one that the
model does not know, both are None and there is no score. Of a model that is asked a question it has `place`, that of
its answer among the options, or `unanswered`, why it gave none: such an image is neither right nor wrong. For an
original it also has `blind`: the answer `without` the picture, and how many `options` there are. `usage`: the tokens
of its questions about the image, where the server counts them.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import fields
from typing import NamedTuple, cast

import numpy as np

from gateway.analysis.certainty import accuracy
from gateway.analysis.components import nested_differences, variance_components
from gateway.analysis.confusion import NO_CLASS, Confusion, at_confidence, confusion, shares
from gateway.analysis.effects import Integers, Originals, Outcomes, Predictions, Ranks, Scores
from gateway.analysis.failure_points import failure_points
from gateway.analysis.limits import LEAST_SOURCES
from gateway.analysis.metrics import paper_metrics
from gateway.analysis.originals import (
    JudgedOriginals,
    before_second_softmax,
    is_softmax_twice,
    judge_originals,
    largest_of_two,
)
from gateway.kinds.blind import NO_ANSWER, BlindAnswers, place_hint, unanswered_in_words, with_baseline
from gateway.kinds.originals import check_one_class, exchange_in_words, exchanges
from gateway.kinds.rows import CompletePair, PhraseColumns, PhrasePairs, PredictionRow, SourceNumbers, labels, usage_in
from gateway.kinds.task_kind import TOP, Fields, KindRows, Measurement, Scored, TaskKind
from gateway.methods import METHODS
from gateway.methods.checks import LABEL
from gateway.methods.counterfactual import MethodImage
from gateway.methods.doses import DOSES
from shared.schemas.base import JsonObject
from shared.schemas.effects import Rate
from shared.schemas.evaluation import PredictReply, PredictRequest, TokenUsage, Unanswered
from shared.schemas.metrics import ClassConfusion, ConfusionPairs, OriginalsCheck
from shared.schemas.results import ModelResults, Relation
from shared.seeds import derive_seed
from shared.service.endpoints import Services

HINT_BELOW = 0.8  # accuracy below which the preprocessing may be wrong
MOST_CLASSES = 40  # rows, and columns, of a confusion matrix that is still legible
_CAUSES = "the order of the classes, the label map, and the preprocessing (rescale, mean and std, channels, size)"


class ClassAnswer(NamedTuple):
    """Probabilities by class; none if the question was `unanswered`.

    `place`: of the answer among the options. `usage`: its tokens.
    """

    probabilities: Mapping[str, float]
    unanswered: Unanswered | None = None
    place: int | None = None
    usage: TokenUsage | None = None


def _answers(reply: PredictReply, classes: Sequence[str]) -> Iterator[ClassAnswer]:
    unknown = [None] * len(reply.probabilities)
    for values, place, usage in zip(reply.probabilities, reply.places or unknown, reply.usage or unknown, strict=True):
        if isinstance(values, str):
            yield ClassAnswer({}, values, None, usage)
        else:
            yield ClassAnswer(dict(zip(reply.classes, values, strict=True)), None, place, usage)


def _judge(prediction: ClassAnswer, truth: str | None, classes: Sequence[str]) -> Scored:
    probabilities, unanswered, place, usage = prediction
    tokens: JsonObject = {} if usage is None else {"usage": usage.model_dump(mode="json")}
    if unanswered is not None:
        nothing: JsonObject = {"rank": None, "truth_probability": None, "top": [], "unanswered": unanswered, **tokens}
        return Scored(NO_ANSWER, 0.0, {}, nothing)
    ranked = sorted(probabilities.items(), key=lambda item: -item[1])
    predicted, probability = ranked[0]
    true = None if truth is None else probabilities.get(truth)
    rank = None if true is None else 1 + sum(value > true for value in probabilities.values())
    return Scored(
        predicted,
        probability,
        {} if truth is None or rank is None else {truth: float(rank == 1)},
        {
            "rank": rank,
            "truth_probability": true,
            "top": [{"name": name, "probability": value} for name, value in ranked[:TOP]],
            **({} if place is None else {"place": place}),
            **tokens,
        },
    )


def _label(source: MethodImage) -> str | None:
    return source.ground_truth


def _most_probable(prediction: ClassAnswer) -> str:
    probabilities = prediction.probabilities
    return max(probabilities, key=lambda name: probabilities[name], default=NO_ANSWER)


def _changed(original: Scored, image: Scored) -> bool | None:
    if "unanswered" in original.detail or "unanswered" in image.detail:
        return None
    return original.predicted != image.predicted


def _with_blind(original: Scored, request: PredictRequest, reply: PredictReply, services: Services) -> Scored:
    """A model that is asked a question is asked about an original without the picture, too."""
    if reply.places is None:
        return original
    asked = request.model_copy(update={"images": request.images[:1], "blind": True})
    (answer,) = _answers(services.predict(asked), reply.classes)
    blind: JsonObject = {"without": _most_probable(answer), "options": len(reply.classes)}
    tokens = [usage for usage in (usage_in(original.detail), answer.usage) if usage is not None]
    usage: JsonObject = {"usage": sum(tokens, TokenUsage()).model_dump(mode="json")} if tokens else {}
    return original._replace(detail={**original.detail, "blind": blind, **usage})


class RankDetail:
    """Ranks, probabilities, predicted classes and phrases of edits: 150 bytes for each pair."""

    def __init__(self, classes: Sequence[str]) -> None:
        self._arms = [_PredictionColumns() for _ in range(3)]  # original, null arm, counterfactual
        self._reference: _PredictionColumns | None = None  # None: it is the null arm of all pairs so far
        self._codes: dict[str, int] = {}
        self._null_ordinal, self._edit, self._edits = array("q"), array("q"), 0
        self._phrases, self._originals = PhraseColumns(), OriginalColumns()

    def add(
        self,
        numbers: SourceNumbers,
        original: PredictionRow | None,
        pairs: Sequence[CompletePair],
        unscored: Sequence[CompletePair] = (),
    ) -> None:
        """As in `Detail`."""
        for label in labels(original):
            assert original is not None
            self._originals.add(numbers.group, _rank(original), label, original.predicted)
        edit_numbers: dict[PhrasePairs, int] = {}
        for pair in pairs:
            (label,) = pair.original.scores
            self._null_ordinal.append(-1 if pair.edit.null_ordinal is None else pair.edit.null_ordinal)
            if self._reference is None and pair.reference is not pair.null:
                self._reference = deepcopy(self._arms[1])
            if self._reference is not None:
                self._reference.add(pair.reference, self._codes)
            for arm, prediction in zip(self._arms, pair[1:4], strict=True):
                arm.add(prediction, self._codes)
            phrases = self._phrases.add(label, pair.edit.changes)
            self._edit.append(self._edits + edit_numbers.setdefault(phrases, len(edit_numbers)))
        self._edits += len(edit_numbers)

    def rows(self, scores: Scores) -> KindRows:
        """As in `Detail`."""
        order = np.argsort(np.argsort(list(self._codes)))  # numbers classes by name, not by first appearance
        original, null, counterfactual = (arm.predictions(order) for arm in self._arms)
        reference = null if self._reference is None else self._reference.predictions(order)
        null_ordinal = np.asarray(self._null_ordinal)
        null_arm = scores.source * (null_ordinal.max(initial=0) + 2) + null_ordinal + 1
        outcomes = Outcomes(
            **{column.name: getattr(scores, column.name) for column in fields(scores)},
            ranks=Ranks(original, null, counterfactual, None if scores.sham is None else reference),
            null_arm=np.unique(null_arm, return_inverse=True)[1],
            edit=np.asarray(self._edit),
        )
        return KindRows(outcomes, self._originals.arrays(), self._phrases.phrases(), tuple(sorted(self._codes)))


class _PredictionColumns:
    """The predictions for one arm, 32 bytes each."""

    def __init__(self) -> None:
        self._p_truth, self._rank, self._predicted, self._confidence = array("d"), array("q"), array("q"), array("d")

    def add(self, prediction: PredictionRow, codes: dict[str, int]) -> None:
        """Add a prediction; a class that is new gets the next of the `codes`."""
        p_truth = prediction.confidence("")
        self._p_truth.append(float("nan") if p_truth is None else p_truth)
        self._rank.append(_rank(prediction))
        self._predicted.append(codes.setdefault(prediction.predicted, len(codes)))
        self._confidence.append(prediction.probability)

    def predictions(self, order: Integers) -> Predictions:
        """All of them; `order` gives the number of a class by its code."""
        predicted = order[np.asarray(self._predicted)] if self._predicted else np.zeros(0, np.int64)
        return Predictions(np.asarray(self._p_truth), np.asarray(self._rank), predicted, np.asarray(self._confidence))


def _rank(row: PredictionRow) -> int:
    return cast(int, row.detail["rank"])


class ClassifiedOriginals:
    """The originals of a classifier. Without ground truth a prediction is its own label."""

    def __init__(self, classes: Sequence[str], relation: Relation, seed: int) -> None:
        self._known, self._relation = len(classes), relation
        self._seed = derive_seed("originals", seed)
        self._columns, self._inner = OriginalColumns(), array("d")
        self._places, self._unanswered, self._blind = Counter[int](), Counter[str](), BlindAnswers()

    def add(self, group: int, row: PredictionRow | None) -> None:
        for label in labels(row):
            assert row is not None
            self._columns.add(group, _rank(row), label, row.predicted)
            top = [entry["probability"] for entry in cast(list[dict[str, float]], row.detail["top"])]
            inner = before_second_softmax(top, max(self._known, len(top)))
            self._inner.append(math.nan if inner is None else inner)
            if isinstance(blind := row.detail.get("blind"), dict):
                self._blind.add(group, label, row.predicted, str(blind["without"]), cast(int, blind["options"]))
        if row is not None and isinstance(place := row.detail.get("place"), int):
            self._places[place] += 1
        if row is not None and isinstance(why := row.detail.get("unanswered"), str):
            self._unanswered[why] += 1

    def check(self) -> OriginalsCheck | None:
        originals, unanswered = self._columns.arrays(), self._unanswered.total()
        if unanswered and not len(originals.rank):
            faults = unanswered_in_words(self._unanswered)
            return OriginalsCheck(
                standing="unsound", sentence=f"Not testable: it answered none of the {unanswered} originals ({faults})."
            )
        labelled = self._relation != "metamorphic"
        check = check_originals(originals, self._known, self._seed) if labelled else check_unlabelled(originals)
        if (baseline := self._blind.baseline(self._seed)) is not None:
            check = with_baseline(check, baseline, labelled=labelled)
        if check is None:
            return None
        hints = [check.sentence, self._softmax_hint(check), self._place_hint(check)]
        if unanswered:
            of = f"{unanswered} of {unanswered + len(originals.rank)}"
            faults = unanswered_in_words(self._unanswered)
            hints.append(f"It did not answer {of} originals ({faults}), which do not count.")
        return check.model_copy(update={"sentence": " ".join(filter(None, hints))})

    def _softmax_hint(self, check: OriginalsCheck) -> str:
        if not isinstance(check.right, Rate) or check.standing == "unsound" or len(self._inner) < LEAST_SOURCES:
            return ""
        if not is_softmax_twice(np.asarray(self._inner), check.right, self._known):
            return ""
        return (
            f"No probability is above {largest_of_two(self._known):.0%}, although it is right on "
            f"{_share(check.right)}: softmax is applied twice. Return logits and set `output` to logits, or apply "
            "softmax once."
        )

    def _place_hint(self, check: OriginalsCheck) -> str:
        """On a model that chooses one place among the options, whose order differs."""
        return "" if check.standing == "sound" else place_hint(self._places)


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
        order=exchanges(judged.order, names),
        right_in_order=judged.in_order,
    )
    return check.model_copy(update={"sentence": _class_sentence(check, judged, names)})


def check_unlabelled(originals: Originals) -> OriginalsCheck | None:
    """The check of a model without ground truth that says one class for all of at least 12 originals; else None."""
    predicted = originals.predicted
    if not len(predicted) or (predicted != predicted[0]).any():
        return None
    return check_one_class(originals.classes[int(predicted[0])], len(predicted))


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


def _exchanged(check: OriginalsCheck) -> str:
    confirmed = _share(check.right_in_order) if check.right_in_order else ""
    return (
        f"{exchange_in_words(check)} With these exchanged it is right on {confirmed} of the images that did not choose "
        "the exchange. Correct the order of the classes or the label map."
    )


def _share(rate: Rate) -> str:
    return f"{rate.value or 0:.0%} ({rate.count} of {rate.n})"


def class_confusion(rows: KindRows, outcomes: Outcomes, *, has_none: bool = False) -> ClassConfusion | None:
    """The confusion matrices of a model and method; None without pairs that count.

    `has_none`: the outcomes are those of `rows` at a threshold of confidence; the matrices have a column for "none".
    """
    names = rows.phrases.labels
    pairs = _counted(outcomes)
    counts = np.bincount(rows.phrases.label[pairs], minlength=len(names))
    chosen = [place for place in np.argsort(-counts, kind="stable").tolist()[:MOST_CLASSES] if counts[place]]
    chosen.sort(key=lambda place: names[place])
    if not chosen:
        return None
    k, classes = len(chosen), [names[place] for place in chosen]
    place_of_label = np.full(len(names), -1)
    place_of_label[chosen] = np.arange(k)
    of_rows = pairs[place_of_label[rows.phrases.label[pairs]] >= 0]
    columns = [*classes, *_most_predicted(outcomes, of_rows, rows.classes, classes)]
    m = len(columns)
    predicted_as = np.array([columns.index(name) if name in columns else m for name in rows.classes], np.int64)
    arms = confusion(outcomes, place_of_label[rows.phrases.label], predicted_as, k, m)
    last = m + 2 if has_none else m + 1
    originals, nulls, counterfactuals = (shares(counts[:, :last]) for counts in arms[:3])
    return ClassConfusion(
        classes=classes,
        columns=[*columns, "other", *(["none"] if has_none else [])],
        more=int((counts > 0).sum()) - k,
        images=arms.counterfactuals.sum(axis=1).tolist(),
        originals=originals,
        nulls=nulls,
        counterfactuals=counterfactuals,
        difference=(np.asarray(counterfactuals) - np.asarray(nulls)).tolist(),
        pairs=_behind(arms, last),
    )


def _behind(arms: Confusion, last: int) -> ConfusionPairs:
    own, originals, nulls = (counts[:, :last].tolist() for counts in arms[2:])
    return ConfusionPairs(originals=originals, nulls=nulls, counterfactuals=own)


def _most_predicted(outcomes: Outcomes, pairs: Integers, predicted: Sequence[str], classes: Sequence[str]) -> list[str]:
    """Predicted classes that are not among `classes`, by name: the most frequent in the three arms of these pairs.

    With `classes` they are at most `MOST_CLASSES`.
    """
    arms = (outcomes.ranks.original, outcomes.ranks.null, outcomes.ranks.counterfactual)
    numbers = np.concatenate([arm.predicted[pairs] for arm in arms])
    counts = np.bincount(numbers[numbers != NO_CLASS], minlength=len(predicted))
    others = [name for number, name in enumerate(predicted) if counts[number] and name not in classes]
    others.sort(key=lambda name: (-counts[predicted.index(name)], name))
    return sorted(others[: MOST_CLASSES - len(classes)])


def _counted(outcomes: Outcomes) -> Integers:
    every = np.arange(len(outcomes.source))
    return every if outcomes.counting is None else every[outcomes.counting.pairs]


def _figures(rows: KindRows, of: Measurement) -> Fields:
    outcomes = rows.scores
    assert isinstance(outcomes, Outcomes)
    nested = None if of.method == DOSES else nested_differences(outcomes)  # doses of an edit are not its seeds
    return {
        "metrics": paper_metrics(outcomes, rows.originals, derive_seed(of.seed, "metrics")),
        "confusion": class_confusion(rows, outcomes),
        "failure_points": failure_points(outcomes) if METHODS[of.method].severities else [],
        "variance": None if nested is None else variance_components(nested, of.cost, derive_seed(of.seed, "variance")),
    }


def _at_confidence(rows: KindRows, threshold: float, reported: ModelResults) -> tuple[Scores, Fields]:
    assert isinstance(rows.scores, Outcomes)
    outcomes = at_confidence(rows.scores, threshold)
    return outcomes, {"confusion": class_confusion(rows, outcomes, has_none=True), "metrics": None, "variance": None}


CLASSIFICATION = TaskKind(
    name="classification",
    models="classifiers",
    does="classifies",
    truth="label",
    truths="labels",
    announced=lambda spec: False,
    localised=False,
    checks=(LABEL,),
    metric="accuracy",
    right_or_wrong=True,
    level=accuracy,
    endpoint=Services.predict,
    answers=_answers,
    truth_of=_label,
    as_truth=_most_probable,
    judge=_judge,
    changed=_changed,
    detail=RankDetail,
    originals=ClassifiedOriginals,
    figures=_figures,
    at_confidence=_at_confidence,
    baseline=_with_blind,
)
