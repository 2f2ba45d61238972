"""What the kinds of tasks make of an answer: scores by label, and whether an edit changed it.

No module outside `gateway/kinds` branches on a kind.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from typing import get_args

import numpy as np
import pytest

from gateway.database.columns import StoredSpec
from gateway.kinds import KINDS, Scored, alike
from gateway.kinds.classification import ClassAnswer
from gateway.kinds.rows import PredictionRow
from gateway.kinds.vqa import Asked
from shared.media.images import decode
from shared.media.label_maps import OTHER, VOID
from shared.schemas.base import Kind
from shared.schemas.boxes import BoxSpec, Detected, DetectReply, PredictedBox, TrueBox
from shared.schemas.effects import Metric
from shared.schemas.evaluation import PredictReply
from shared.schemas.masks import ALL_CLASSES
from shared.schemas.questions import AskReply, GivenAnswer, ImageQuestion, QuestionSpec
from shared.schemas.scores import labels_of, whole, with_mean
from tests.support.paths import REPOSITORY

CLASSES = ("sky", "road", "car")
NAMES = {*get_args(Kind), *get_args(Metric)}


def test_every_kind_has_its_file() -> None:
    assert set(KINDS) == set(get_args(Kind))


@pytest.mark.parametrize(
    ("truth", "scores", "rank", "probability"),
    [("bus", {"bus": 1.0}, 1, 0.7), ("van", {"van": 0.0}, 3, 0.1), ("tram", {}, None, None), (None, {}, None, None)],
)
def test_a_classifier_is_right_if_the_truth_has_rank_one(
    truth: str | None, scores: dict[str, float], rank: int | None, probability: float | None
) -> None:
    """There is no score without a truth, or for a class that the model does not know."""
    scored = KINDS["classification"].judge(ClassAnswer({"car": 0.2, "bus": 0.7, "van": 0.1}), truth, CLASSES)
    assert (scored.predicted, scored.probability, scored.scores) == ("bus", 0.7, scores)
    assert (scored.detail["rank"], scored.detail["truth_probability"]) == (rank, probability)


def test_equally_probable_classes_share_their_rank() -> None:
    kind = KINDS["classification"]
    first, second = (kind.judge(ClassAnswer({"car": 0.5, "bus": 0.5}), truth, CLASSES) for truth in ("car", "bus"))
    assert (first.scores, second.scores) == ({"car": 1.0}, {"bus": 1.0})
    assert kind.changed(first, second) is False, "the same class is predicted"


def test_a_segmenter_is_scored_by_the_overlap_of_each_class_of_the_mask() -> None:
    kind = KINDS["segmentation"]
    mask = np.array([[0, 0, 1, 1], [0, 0, 1, VOID]], np.uint8)
    original, image = mask.clip(max=1), np.array([[0, 0, 0, 0], [0, 0, 1, OTHER]], np.uint8)
    before, after = kind.judge(original, mask, CLASSES), kind.judge(image, mask, CLASSES)
    assert before.scores == {"sky": 1.0, "road": 1.0, ALL_CLASSES: 1.0}
    assert after.scores == pytest.approx({"sky": 4 / 6, "road": 1 / 3, ALL_CLASSES: 0.5})
    assert (after.predicted, after.probability) == ("sky", 6 / 8)
    assert after.image is not None
    assert (decode(after.image, "L") == image).all()
    assert kind.changed(before, after) is True, "the road is lost"
    assert kind.changed(before, before) is False
    unjudged = kind.judge(image, None, CLASSES)
    assert (unjudged.scores, kind.changed(before, unjudged)) == ({}, None)


def test_a_detector_is_scored_by_the_recall_of_each_class_of_the_boxes() -> None:
    kind = KINDS["detection"].of_job(StoredSpec(boxes=BoxSpec(score=0.4, scores={"car": 0.7})))
    here, there, away = (0, 0, 20, 20), (40, 0, 60, 20), (0, 40, 20, 60)
    truth = [TrueBox(box=here, label="car"), TrueBox(box=there, label="car"), TrueBox(box=away, label="sky")]
    truth += [TrueBox(box=(50, 50, 90, 90), label="road", ignore="crowd")]
    reply = DetectReply(
        classes=["car", "sky", "tram"],
        boxes=[
            [guess(here, "car", 0.9), guess(there, "car", 0.8), guess(away, "sky", 0.5), guess(there, "tram", 0.9)],
            [
                guess(here, "car", 0.8),
                guess(there, "car", 0.6),
                guess(away, "car", 0.9),
                guess((60, 60, 70, 70), "sky", 0.9),
            ],
        ],
    )
    answers = list(kind.answers(reply, CLASSES))
    before, after = (kind.judge(answer, truth, CLASSES) for answer in answers)
    assert before.scores == {"car": 1.0, "sky": 1.0, ALL_CLASSES: 1.0}
    assert after.scores == {"car": 0.5, "sky": 0.0, ALL_CLASSES: 0.25}
    assert (before.predicted, before.probability) == ("car", 0.9), "nobody annotated trams"
    detected = [Detected.model_validate(scored.detail["detected"]) for scored in (before, after)]
    outcomes = [[thing.outcome for thing in of_image.objects] for of_image in detected]
    assert outcomes == [["found"] * 3 + ["ignored"], ["found", "missed", "misclassified", "ignored"]]
    assert (kind.changed(before, after), kind.changed(after, before)) == (True, False)
    gone = kind.judge(answers[1], kind.without(truth, frozenset({1, 2})), CLASSES)
    assert gone.scores == {"car": 1.0, ALL_CLASSES: 1.0}
    assert kind.changed(before, gone) is False, "what is not there any more is not lost by the model"
    unjudged = kind.judge(answers[0], None, CLASSES)
    assert (unjudged.scores, kind.changed(before, unjudged)) == ({}, None)
    nothing = kind.judge([], [], CLASSES)
    assert (nothing.predicted, nothing.scores, kind.changed(nothing, nothing)) == ("nothing", {}, False)


def guess(box: tuple[float, float, float, float], label: str, score: float) -> PredictedBox:
    return PredictedBox(box=box, label=label, score=score)


def asked(question: str, answer: str | None) -> Asked:
    given = GivenAnswer(unanswered="refused") if answer is None else GivenAnswer(text=f"{answer}.", answer=answer)
    return Asked(ImageQuestion(question=question), given)


def answered(*answers: str | None) -> PredictionRow:
    """The prediction of a model that gives these answers to the questions of `ASKED`."""
    kind = KINDS["vqa"].of_job(StoredSpec(questions=QuestionSpec(tolerance=1)))
    reply = AskReply(
        questions=[question.asked for question in ASKED],
        answers=[[asked(question.question, answer).given for question, answer in zip(ASKED, answers, strict=True)]],
    )
    (answer,) = kind.answers(reply, ())
    scored = kind.judge(answer, ASKED, ())
    return PredictionRow(0, "", None, "", scored.predicted, scored.probability, None, scored.scores, scored.detail)


ASKED = [
    ImageQuestion.model_validate(fields)
    for fields in (
        {"question": "How many cars?", "answer": 3},
        {"question": "How many trees?", "answer": 7, "tolerance": 0},
        {"question": "What is it?", "options": ["bus", "car"], "answer": "bus", "key": "vehicle"},
    )
]


def test_answers_are_scored_by_the_label_of_their_questions() -> None:
    row = answered("4", "8", "bus")
    assert row.scores == {"number": 0.5, "vehicle": 1.0, ALL_CLASSES: 0.75}
    assert row.predicted == "4; 8; bus"
    rows = row.detail["answers"]
    assert isinstance(rows, list)
    assert [(part["answer"], part["right"]) for part in rows] == [("4", True), ("8", False), ("bus", True)]  # type: ignore[index, call-overload]
    assert answered(None, None, None).scores == {}
    assert answered(None, None, None).detail["unanswered"] == "refused"


def test_images_are_compared_by_the_questions_that_are_answered_on_all_of_them() -> None:
    """A refusal is neither right nor wrong, and takes its question out of the other images' scores, too."""
    before, null, after = alike([answered("3", "7", "bus"), answered("3", None, "bus"), answered("9", "9", None)])
    assert before is not None
    assert null is not None
    assert after is not None
    assert [row.scores for row in (before, null, after)] == [
        {"number": 1.0, ALL_CLASSES: 1.0},
        {"number": 1.0, ALL_CLASSES: 1.0},
        {"number": 0.0, ALL_CLASSES: 0.0},
    ]
    whole = [answered("3", "7", "bus"), answered("9", "7", "bus")]
    assert alike(whole) == whole
    kind = KINDS["vqa"]
    scored = [Scored(row.predicted, row.probability, row.scores, row.detail) for row in (*whole, answered(*3 * [None]))]
    changed = (kind.changed(*scored[:2]), kind.changed(scored[1], scored[0]), kind.changed(scored[0], scored[2]))
    assert changed == (True, False, None)


def test_without_ground_truth_the_answer_for_the_original_is_the_truth() -> None:
    for name, answer, labels in (
        ("classification", ClassAnswer({"car": 0.2, "bus": 0.8}), {"bus"}),
        ("segmentation", np.array([[0, 0, 2, OTHER]], np.uint8), {"sky", "car", ALL_CLASSES}),
        ("vqa", [asked("How many?", "3"), asked("What is it?", None)], {"text", ALL_CLASSES}),
        ("detection", [guess((0, 0, 9, 9), "car", 0.9), guess((5, 5, 9, 9), "sky", 0.2)], {"car", ALL_CLASSES}),
    ):
        kind = KINDS[name]  # type: ignore[index]
        scored = kind.judge(answer, kind.as_truth(answer), CLASSES)
        assert scored.scores == dict.fromkeys(labels, 1.0)


def test_a_whole_image_has_the_mean_of_its_labels() -> None:
    assert whole({"bus": 0.0}) == 0.0
    assert whole(with_mean({"sky": 0.5, "road": 1.0})) == 0.75
    assert with_mean({}) == {}
    assert labels_of({ALL_CLASSES: 0.5, "road": 0.5}) == ["road", ALL_CLASSES], "databases reorder JSON"


def named_in_choices(tree: ast.AST) -> Iterator[ast.Constant]:
    """The kinds and metrics that code compares with, looks up by, or chooses between."""
    for node in ast.walk(tree):
        chosen: Sequence[ast.expr | None] = ()
        match node:
            case ast.Compare(left, _, others):
                chosen = [left, *others]
            case ast.IfExp(_, body, orelse):
                chosen = [body, orelse]
            case ast.Dict(keys) if all(isinstance(key, ast.Constant) and key.value in NAMES for key in keys):
                chosen = keys[:1]
            case ast.Subscript(slice=key):
                chosen = [key]
            case ast.MatchValue(value):
                chosen = [value]
        parts = [part for expression in chosen if expression for part in getattr(expression, "elts", [expression])]
        yield from (part for part in parts if isinstance(part, ast.Constant) and part.value in NAMES)


def test_nothing_but_its_file_branches_on_a_kind() -> None:
    branching = []
    for path in sorted((REPOSITORY / "gateway").rglob("*.*")):
        text = path.read_text(encoding="utf-8") if path.suffix in (".py", ".html") else ""
        if path.suffix == ".html":
            branching += [f"{path}: {name}" for name in NAMES if re.search(rf"""["']{name}["']""", text)]
        elif path.parent.name != "kinds" and any(name in text for name in NAMES):
            branching += [f"{path}:{node.lineno}: {node.value!r}" for node in named_in_choices(ast.parse(text))]
    assert branching == [], "ask `KINDS[kind]` or `of_metric(metric)` for what differs"


@pytest.mark.parametrize(
    "code",
    [
        'kind == "segmentation"',
        'figures.metric in ("iou", "f1")',
        '1 if x else "classification"',
        '{"accuracy": 1}',
        'KINDS["segmentation"]',
        'match kind:\n case "segmentation":\n  pass',
    ],
)
def test_a_branch_on_a_kind_is_found(code: str) -> None:
    assert len([*named_in_choices(ast.parse(code))]) == 1


def test_a_question_without_an_answer_is_neither_right_nor_wrong() -> None:
    kind = KINDS["classification"]
    reply = PredictReply(classes=["bus", "car"], probabilities=[[0.9, 0.1], "refused"], places=[1, None])
    answered, refused = (kind.judge(answer, "bus", CLASSES) for answer in kind.answers(reply, CLASSES))
    assert (answered.scores, answered.detail["place"]) == ({"bus": 1.0}, 1)
    assert (refused.predicted, refused.scores, refused.detail["unanswered"]) == ("no answer", {}, "refused")
    assert kind.changed(answered, refused) is None
    # In a job without ground truth, no answer for the original must not make the next answer the truth.
    unanswered, answer = reversed(list(kind.answers(reply, CLASSES)))
    assert kind.judge(answer, kind.as_truth(unanswered), CLASSES).scores == {}
