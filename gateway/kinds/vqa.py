"""Questions about images: the answers of a vision-language model, right or wrong, scored by the label of the question.

A label is the question's key, or else its type; several questions of a label have the share of right answers. A
question without an answer (refused, cut off, unclear) is neither right nor wrong. Images are compared by the questions
that are answered on all of them (`alike`). `predicted` are the answers, `probability` the share of right ones, or of
answered ones without a truth. `detail` of a prediction: `answers`, a row for each question
(`shared.schemas.questions.AnsweredQuestion`); `unanswered`, why the first has none, if none has one; `usage`, the
tokens. Of an original the rows have the answer `blind`, without the picture.
"""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import NamedTuple, cast

import numpy as np
from pydantic import JsonValue

from gateway.analysis.certainty import LEVEL, clustered_rate, mean_interval, mean_overlap
from gateway.analysis.effects import Scores, differences
from gateway.analysis.limits import LEAST_SOURCES
from gateway.database.columns import StoredSpec
from gateway.kinds.blind import NO_ANSWER, BlindAnswers, place_hint, unanswered_in_words, with_baseline
from gateway.kinds.rows import CompletePair, PredictionRow, SourceNumbers, usage_in
from gateway.kinds.task_kind import Fields, KindRows, Measurement, Scored, TaskKind
from gateway.methods.checks import LABEL
from gateway.methods.counterfactual import MethodImage
from shared.answers import is_right, normalised
from shared.schemas.base import JsonObject
from shared.schemas.effects import Rate
from shared.schemas.evaluation import TokenUsage, Unanswered
from shared.schemas.metrics import AnswerFigures, AnswerMetrics, OriginalsCheck
from shared.schemas.questions import (
    AnsweredQuestion,
    AskReply,
    AskRequest,
    ChangedQuestion,
    Followed,
    GivenAnswer,
    ImageQuestion,
    QuestionSpec,
)
from shared.schemas.results import Relation
from shared.schemas.scores import with_mean
from shared.seeds import derive_seed
from shared.service.endpoints import Services

ALONE = "right_alone"  # in place of `right` of an answer that does not count in a pair, since another has none
SAID = 300  # characters that are kept of what a model says
SHOWN = 200  # characters of the answers in one line
HINT_BELOW = 0.8  # share of right answers below which the manifest may be wrong
DEFAULTS = QuestionSpec()
ABOUT = "questions about pictures"
_CAUSES = "the answers of the manifest, the types of its questions, and the words in which they are asked"


class Asked(NamedTuple):
    """A question as it was asked, and what the model gives for an answer."""

    question: ImageQuestion
    given: GivenAnswer


Answer = list[Asked]
Truth = Sequence[ImageQuestion]
Row = dict[str, object]  # of `AnsweredQuestion`


def _answers(reply: AskReply, classes: Sequence[str]) -> Iterator[Answer]:
    for answers in reply.answers:
        yield [Asked(question, given) for question, given in zip(reply.questions, answers, strict=True)]


def _asks(source: MethodImage) -> Fields:
    return {"questions": [question.asked for question in source.questions]} if source.questions else {}


def _truth_of(source: MethodImage) -> Truth | None:
    questions = source.questions or ()
    return questions if any(question.answers for question in questions) else None


def _as_truth(answer: Answer) -> Truth:
    return [
        asked.question.model_copy(update={"answers": [asked.given.answer] if asked.given.answer else []})
        for asked in answer
    ]


def _after(truth: Truth, values: Collection[str]) -> Truth:
    return [question.after(values) or question for question in truth]


def _judge(answer: Answer, truth: Truth | None, classes: Sequence[str], *, rules: QuestionSpec) -> Scored:
    known = [asked.question for asked in answer] if truth is None else truth
    rows = [_row(asked, question, rules) for asked, question in zip(answer, known, strict=True)]
    given = [row.answer for row in rows if row.answer]
    judged = [row.right for row in rows if row.right is not None]
    detail: JsonObject = {"top": [], "answers": _stored(rows)}
    if not given:
        detail["unanswered"] = rows[0].unanswered
    if usage := [asked.given.usage for asked in answer if asked.given.usage is not None]:
        detail["usage"] = sum(usage, TokenUsage()).model_dump(mode="json")
    shown = "; ".join(given)[:SHOWN] or NO_ANSWER
    share = sum(judged) / len(judged) if judged else len(given) / len(rows)
    return Scored(shown, share, scores_of((row.label, row.right) for row in rows), detail)


def _row(asked: Asked, known: ImageQuestion, rules: QuestionSpec) -> AnsweredQuestion:
    given, right = asked.given, None
    followed: Followed | None = None
    if known.answers and given.answer:
        tolerance = rules.tolerance if known.tolerance is None else known.tolerance
        right = is_right(known.type, given.answer, known.answers, tolerance)
        if isinstance(known, ChangedQuestion):
            stays = is_right(known.type, given.answer, known.before, tolerance)
            followed, right = "changed" if right else "kept" if stays else "other", None
    return AnsweredQuestion(
        question=known.question,
        type=known.type,
        label=known.label,
        truth=known.answers,
        answer=given.answer,
        said="" if given.text.strip() == given.answer else given.text[:SAID],
        right=right,
        followed=followed,
        unanswered=given.unanswered,
        place=given.place,
        tolerance=known.tolerance,
        options=len(known.options) or (2 if known.type == "yes/no" else 0),
    )


def scores_of(rows: Iterable[tuple[str, bool | None]]) -> dict[str, float]:
    """The share of right answers of each label, and their mean; questions that are neither do not count."""
    by_label: defaultdict[str, list[bool]] = defaultdict(list)
    for label, right in rows:
        if right is not None:
            by_label[label].append(right)
    return with_mean({label: sum(rights) / len(rights) for label, rights in by_label.items()})


def _rows_in(detail: JsonObject) -> list[Row]:
    return cast("list[Row]", detail.get("answers") or [])


def _blind_row(row: Row) -> Row:
    """What a row says of the answer without the picture."""
    return {name: row[name] for name in ("label", "blind_right") if name in row}


def _stored(rows: Iterable[AnsweredQuestion]) -> list[JsonValue]:
    return [row.model_dump(mode="json", exclude_none=True) for row in rows]


def _changed(original: Scored, image: Scored) -> bool | None:
    """Whether a right answer becomes a wrong one, of the questions that are answered on both images."""
    pairs = [
        (before["right"], after["right"])
        for before, after in zip(_rows_in(original.detail), _rows_in(image.detail), strict=True)
        if "right" in before and "right" in after
    ]
    return any(before and not after for before, after in pairs) if pairs else None


def alike(rows: Sequence[PredictionRow | None]) -> Sequence[PredictionRow | None]:
    """Predictions with the scores of the questions that are answered in all of them; others as they are."""
    by_image = [_rows_in(row.detail) for row in rows if row is not None]
    if not by_image or not by_image[0] or all("right" in part for parts in by_image for part in parts):
        return rows
    kept = [all("right" in part for part in parts) for parts in zip(*by_image, strict=True)]
    return [None if row is None else _with_questions(row, kept) for row in rows]


def _with_questions(row: PredictionRow, kept: Sequence[bool]) -> PredictionRow:
    answers = [
        part if keep else {ALONE if name == "right" else name: value for name, value in part.items()}
        for part, keep in zip(_rows_in(row.detail), kept, strict=True)
    ]
    judged = ((str(part["label"]), cast(bool, part["right"])) for part in answers if "right" in part)
    return row._replace(scores=scores_of(judged), detail={**row.detail, "answers": cast("list[JsonValue]", answers)})


def _with_blind(
    original: Scored, request: AskRequest, reply: AskReply, services: Services, *, rules: QuestionSpec
) -> Scored:
    """The questions about an original are asked without the picture, too."""
    without_picture = request.model_copy(update={"images": request.images[:1], "blind": True})
    (answers,) = services.ask(without_picture).answers
    rows: list[AnsweredQuestion] = []
    for part, given in zip(_rows_in(original.detail), answers, strict=True):
        row = AnsweredQuestion.model_validate(part)
        tolerance = rules.tolerance if row.tolerance is None else row.tolerance
        right = bool(given.answer) and is_right(row.type, given.answer, row.truth, tolerance)
        blind = {"blind": given.answer, "blind_right": right if row.truth else None}
        rows.append(row.model_copy(update=blind))
    usage = [given.usage for given in answers if given.usage is not None]
    usage += filter(None, [usage_in(original.detail)])
    tokens: JsonObject = {"usage": sum(usage, TokenUsage()).model_dump(mode="json")} if usage else {}
    return original._replace(detail={**original.detail, "answers": _stored(rows), **tokens})


class AnswerColumns:
    """Answers to questions, 18 bytes each, by the number of a label."""

    def __init__(self, codes: dict[str, int]) -> None:
        self._codes = codes
        self._label, self._group, self._right = array("q"), array("q"), array("b")
        self._unanswered: defaultdict[str, Counter[Unanswered]] = defaultdict(Counter)

    def add(self, group: int, rows: Iterable[Row], right: str = "right") -> None:
        """Add the answers for an image of a group. `right`: the name of what says whether they are."""
        for row in rows:
            label = str(row["label"])
            if "unanswered" in row:
                self._unanswered[label][cast(Unanswered, row["unanswered"])] += 1
            if row.get(right) is not None:
                self._label.append(self._codes.setdefault(label, len(self._codes)))
                self._group.append(group)
                self._right.append(bool(row[right]))

    def figures(self) -> list[AnswerFigures]:
        """The figures in total, then by label."""
        label, group, right = np.asarray(self._label), np.asarray(self._group), np.asarray(self._right).astype(bool)
        whole = sum(self._unanswered.values(), Counter[Unanswered]())
        figures = [AnswerFigures(label="", right=clustered_rate(right, group), unanswered=dict(whole))]
        for name, code in sorted(self._codes.items()):
            of = label == code
            missing = dict(self._unanswered[name])
            figures.append(AnswerFigures(label=name, right=clustered_rate(right[of], group[of]), unanswered=missing))
        return figures


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerScores(Scores):
    """`Scores`, and the figures of the answers behind them."""

    answers: AnswerMetrics


class AnswerDetail:
    """The answers of the pairs that count, with all originals: 100 bytes for each pair and question."""

    def __init__(self, classes: Sequence[str]) -> None:
        codes = {label: code for code, label in enumerate(classes)}
        self._all, self._blind = AnswerColumns(codes), AnswerColumns(codes)
        self._arms = [AnswerColumns(codes) for _ in range(3)]  # original, null arm, counterfactual
        self._lost, self._lost_null, self._group = array("b"), array("b"), array("q")
        self._steady, self._steady_group = array("b"), array("q")
        self._followed: list[Followed] = []
        self._followed_group = array("q")
        self._asked_blind = False

    def add(
        self,
        numbers: SourceNumbers,
        original: PredictionRow | None,
        pairs: Sequence[CompletePair],
        unscored: Sequence[CompletePair] = (),
    ) -> None:
        """As in `Detail`."""
        if original is not None:
            rows = _rows_in(original.detail)
            self._all.add(numbers.group, rows)
            self._blind.add(numbers.group, [_blind_row(row) for row in rows], "blind_right")
            self._asked_blind = self._asked_blind or any("blind_right" in row for row in rows)
        for pair in (*pairs, *unscored):
            if not pair.edit.counted:
                continue
            arms = [_rows_in(row.detail) for row in pair[1:4]]
            for columns, rows in zip(self._arms, arms, strict=True):
                columns.add(numbers.group, rows)
            for before, null, after in zip(*arms, strict=True):
                if before.get("right"):
                    self._group.append(numbers.group)
                    self._lost.append(after.get("right") is False)
                    self._lost_null.append(null.get("right") is False)
                if null.get("right") and "right" in after:
                    self._steady_group.append(numbers.group)
                    self._steady.append(bool(after["right"]))
                if null.get("right", null.get(ALONE)) and "followed" in after:
                    self._followed_group.append(numbers.group)
                    self._followed.append(cast(Followed, after["followed"]))

    def rows(self, scores: Scores) -> KindRows:
        """As in `Detail`."""
        columns = {column.name: getattr(scores, column.name) for column in fields(scores)}
        return KindRows(AnswerScores(**columns, answers=self._metrics()))

    def _rate_of(self, what: Followed) -> Rate | None:
        """How often this became of an answer that must change; None if none must."""
        if not self._followed:
            return None
        hits = np.array([followed == what for followed in self._followed])
        return clustered_rate(hits, np.asarray(self._followed_group))

    def _metrics(self) -> AnswerMetrics:
        """The figures, without the difference that the scores have."""
        group = np.asarray(self._group)
        originals, nulls, counterfactuals = (arm.figures() for arm in self._arms)
        return AnswerMetrics(
            all_originals=self._all.figures(),
            blind=self._blind.figures() if self._asked_blind else [],
            originals=originals,
            nulls=nulls,
            counterfactuals=counterfactuals,
            lost=clustered_rate(np.asarray(self._lost).astype(bool), group),
            lost_null=clustered_rate(np.asarray(self._lost_null).astype(bool), group),
            steady=clustered_rate(np.asarray(self._steady).astype(bool), np.asarray(self._steady_group)),
            follows=self._rate_of("changed"),
            stays=self._rate_of("kept"),
        )


def _figures(rows: KindRows, of: Measurement) -> Fields:
    scores = rows.scores
    assert isinstance(scores, AnswerScores)
    means = differences(scores, scores.whole).correct
    delta = {
        "delta": float(means.mean()) if len(means) else None,
        "interval": mean_interval(means, LEVEL, derive_seed(of.seed, "answers")) if len(means) > 1 else None,
    }
    return {"answers": scores.answers.model_copy(update=delta)}


class AskedOriginals:
    """The originals of a model that answers questions. Without ground truth its own answers are the reference."""

    def __init__(self, classes: Sequence[str], relation: Relation, seed: int) -> None:
        self._relation, self._seed = relation, derive_seed("originals", seed)
        self._group, self._right = array("q"), array("b")
        self._truths: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._places, self._unanswered, self._blind = Counter[int](), Counter[str](), BlindAnswers()

    def add(self, group: int, row: PredictionRow | None) -> None:
        for part in [] if row is None else _rows_in(row.detail):
            answer = AnsweredQuestion.model_validate(part)
            if answer.unanswered is not None:
                self._unanswered[answer.unanswered] += 1
            if answer.place is not None:
                self._places[answer.place] += 1
            if answer.right is not None:
                self._add(group, answer)

    def _add(self, group: int, answer: AnsweredQuestion) -> None:
        self._group.append(group)
        self._right.append(answer.right is True)
        truth = self._code(answer, answer.truth[0])
        self._truths[answer.label][truth] += 1
        if answer.blind is not None:
            seen = truth if answer.right else self._code(answer, answer.answer)
            blind = truth if answer.blind_right else self._code(answer, answer.blind)
            self._blind.add(group, truth, seen, blind if answer.blind else NO_ANSWER, answer.options)

    @staticmethod
    def _code(answer: AnsweredQuestion, text: str) -> str:
        """An answer to compare with others: those to questions of other labels differ."""
        return f"{answer.label}: {normalised(text)}"

    @property
    def _chance(self) -> float:
        """How often a model is right that gives the most frequent answer of each label."""
        return sum(max(truths.values()) for truths in self._truths.values()) / len(self._right)

    def check(self) -> OriginalsCheck | None:
        unanswered, faults = self._unanswered.total(), unanswered_in_words(self._unanswered)
        if unanswered and not self._right:
            sentence = f"Not testable: it answered none of the {unanswered} {ABOUT} ({faults})."
            return OriginalsCheck(standing="unsound", sentence=sentence)
        if not self._right:
            return None
        labelled = self._relation != "metamorphic"
        check = self._judged() if labelled else None
        if (baseline := self._blind.baseline(self._seed)) is not None:
            baseline = baseline.model_copy(update={"chance": self._chance})
            check = with_baseline(check, baseline, labelled=labelled, unit=ABOUT)
        if check is None:
            return None
        hints = [check.sentence, "" if check.standing == "sound" else place_hint(self._places)]
        if unanswered:
            of = f"{unanswered} of {unanswered + len(self._right)}"
            hints.append(f"It did not answer {of} {ABOUT} ({faults}), which do not count.")
        return check.model_copy(update={"sentence": " ".join(filter(None, hints))})

    def _judged(self) -> OriginalsCheck:
        right = clustered_rate(np.asarray(self._right).astype(bool), np.asarray(self._group))
        share, chance = right.value or 0.0, self._chance
        bar = f"right on {share:.0%} ({right.count} of {right.n}) of the {ABOUT}"
        constant = f"the most frequent answers are right on {chance:.0%}"
        sound = OriginalsCheck(right=right, chance=chance, standing="sound")
        if right.low > chance:
            return (
                sound.model_copy(update={"sentence": f"R{bar[1:]}. If you know it to be better, check {_CAUSES}."})
                if share < HINT_BELOW
                else sound
            )
        if share <= chance < 1 and len(set(self._group)) >= LEAST_SOURCES:
            return sound.model_copy(
                update={"standing": "unsound", "sentence": f"Not testable: {bar}, where {constant}. Check {_CAUSES}."}
            )
        sentence = (
            f"Not shown to be better than chance: {bar}, where {constant}. Submit more images, or check {_CAUSES}."
        )
        return sound.model_copy(update={"standing": "open", "sentence": sentence})


def _in_job(kind: TaskKind[Answer, Truth], spec: StoredSpec, model: str) -> TaskKind[Answer, Truth]:
    rules = spec.questions or DEFAULTS
    return replace(kind, judge=partial(_judge, rules=rules), baseline=partial(_with_blind, rules=rules))


VQA = TaskKind(
    name="vqa",
    models="models that answer questions",
    does="answers questions",
    truth="list of questions",
    truths="questions",
    announced=lambda spec: spec.questions is not None,
    localised=False,
    checks=(LABEL,),
    metric="right answers",
    right_or_wrong=False,
    level=mean_overlap,
    endpoint=Services.ask,
    answers=_answers,
    truth_of=_truth_of,
    as_truth=_as_truth,
    judge=partial(_judge, rules=DEFAULTS),
    changed=_changed,
    detail=AnswerDetail,
    originals=AskedOriginals,
    figures=_figures,
    configured=_in_job,
    alike=alike,
    asks=_asks,
    after=_after,
    baseline=partial(_with_blind, rules=DEFAULTS),
    no_repair=(
        "models that answer questions cannot be repaired here; export the job, and train on its images and questions"
    ),
    on_power=(
        " An image counts for the label of each of its questions, with the share of them that is answered right."
    ),
)
