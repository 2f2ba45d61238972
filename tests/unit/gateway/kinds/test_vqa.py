"""What is said of a model that answers questions, by its answers about the originals with and without the pictures."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from gateway.kinds import KINDS
from gateway.kinds.rows import CounterfactualRow, PredictionRow, SourceNumbers
from gateway.kinds.vqa import AnswerDetail, AnswerScores, Asked
from gateway.report.page import environment
from gateway.results.pairing import triples
from gateway.results.rows import ScoreColumns
from gateway.results.stream import SourceRow, SourceRows
from shared.schemas.base import ImagePayload
from shared.schemas.evaluation import Unanswered
from shared.schemas.metrics import AnswerMetrics, OriginalsCheck
from shared.schemas.questions import AnsweredQuestion, AskReply, AskRequest, GivenAnswer, ImageQuestion
from shared.schemas.results import ModelOpinion, ModelResults, PredictionView
from shared.service.endpoints import Endpoint, Services

IMAGES = 60
Model = Callable[[int, bool], str]  # the image's number and whether it is shown; "" refuses
COUNT = "How many cars are there?"
KIND = KINDS["vqa"]


def given(text: str) -> GivenAnswer:
    why: Unanswered | None = None if text else "refused"
    return GivenAnswer(text=text, answer=text, unanswered=why)


class Answering(Services):
    """The evaluator for blind questions about one image."""

    def __init__(self, answer: str) -> None:
        self._answer = answer

    def call(self, endpoint: Endpoint, request: object) -> AskReply:  # type: ignore[override, type-arg]
        assert isinstance(request, AskRequest)
        assert request.blind
        return AskReply(questions=request.questions, answers=[[given(self._answer)]])


def check(model: Model, *, labelled: bool = True) -> OriginalsCheck:
    judge = KIND.originals((), "labelled" if labelled else "metamorphic", 0)
    for number in range(IMAGES):
        truth = [ImageQuestion.model_validate({"question": COUNT, "answer": number % 4})]
        answer = [Asked(truth[0].asked, given(model(number, True)))]
        known = truth if labelled else KIND.as_truth(answer)
        reply = AskReply(questions=[truth[0].asked], answers=[[answer[0].given]])
        request = AskRequest(model="vlm", images=[ImagePayload(png=b"")], questions=reply.questions)
        scored = KIND.baseline(KIND.judge(answer, known, ()), request, reply, Answering(model(number, False)))
        row = PredictionRow(number, "", None, "vlm", scored.predicted, 1.0, None, scored.scores, scored.detail)
        judge.add(number, row)
    found = judge.check()
    assert found is not None
    return found


def honest(number: int, shown: bool) -> str:
    return str(number % 4) if shown else ""


def test_an_honest_model_is_sound_and_answers_nothing_blind() -> None:
    found = check(honest)
    assert (found.standing, found.lets_pass) == ("sound", True)
    assert found.sentence == "Without the pictures it answered none of the questions."
    assert found.chance == 0.25


def test_one_that_refuses_a_tenth_is_sound_and_the_refusals_do_not_count() -> None:
    found = check(lambda number, shown: "" if number % 10 == 0 else honest(number, shown))
    assert found.standing == "sound"
    assert found.right is not None
    assert (found.right.n, found.right.value) == (54, 1.0)
    assert "It did not answer 6 of 60 questions about pictures (6 refused), which do not count." in found.sentence


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (lambda number, shown: "1", "Not testable: right on 25% (15 of 60) of the questions about pictures"),
        (lambda number, shown: str(number % 4), "which is not surely more often"),
        (lambda number, shown: "9" if shown else "", "where the most frequent answers are right on 25%"),
        (lambda number, shown: "", "it answered none of the 60 questions about pictures (60 refused)"),
    ],
)
def test_one_that_does_not_look_or_answer_is_not_testable(model: Model, words: str) -> None:
    found = check(model)
    assert found.standing == "unsound"
    assert words in found.sentence


def test_one_that_looks_at_a_part_of_the_pictures_is_named() -> None:
    found = check(lambda number, shown: str(number % 4) if shown or number % 2 else "9")
    assert found.standing == "sound"
    assert "It is right on 50% (30 of 60) of the questions about pictures without seeing them" in found.sentence


def test_without_ground_truth_answers_that_stay_without_the_picture_are_found() -> None:
    blind = check(lambda number, shown: str(number % 4), labelled=False)
    assert blind.standing == "unsound"
    assert "it answers 100% (60 of 60) of the questions about pictures the same without seeing them" in blind.sentence
    assert check(honest, labelled=False).standing == "sound"


NIGHT = ImageQuestion.model_validate(
    {"question": "Is it night?", "answer": "no", "key": "time", "becomes": {"weather=night": "yes"}}
)
CARS = ImageQuestion.model_validate({"question": COUNT, "answer": 2})
Answers = tuple[str, str]  # to these two questions; "" refuses


def row(number: int, image: str | None, answers: Answers, values: frozenset[str] = frozenset()) -> PredictionRow:
    truth = KIND.after((NIGHT, CARS), values)
    scored = KIND.judge(
        [Asked(question.asked, given(text)) for question, text in zip(truth, answers, strict=True)], truth, ()
    )
    return PredictionRow(
        number, str(number), image, "vlm", scored.predicted, scored.probability, None, scored.scores, scored.detail
    )


def figures(pairs: list[tuple[Answers, Answers]], *, arms_fail: bool = False) -> tuple[ScoreColumns, AnswerMetrics]:
    """Of source images whose null arms, as their originals, and edits to night are answered so."""
    columns = ScoreColumns(AnswerDetail(("number", "time")))
    for number, (null, edited) in enumerate(pairs):
        arms = [
            CounterfactualRow(
                number, f"{number}-{ordinal}", str(number), "dillema", ordinal, kind, None if kind == "null" else 0,
                [], rendered=True, accepted=True, check="", evaluations=None, lost_to="structure" if arms_fail else "",
            )
            for ordinal, kind in enumerate(("null", "edit"))
        ]  # fmt: skip
        predictions = [row(number, None, null), row(number, f"{number}-0", null)]
        predictions.append(row(number, f"{number}-1", edited, frozenset({"weather=night"})))
        source = SourceRows(SourceRow(number, str(number), "done", None), arms, predictions)
        columns.add(SourceNumbers(number, number), source, list(triples(arms)), source.predictions_of("vlm"))
    scores = columns.rows().scores
    assert isinstance(scores, AnswerScores)
    return columns, scores.answers


@pytest.mark.parametrize(
    ("edited", "follows", "stays", "steady"),
    [(("yes", "2"), 1.0, 0.0, 1.0), (("no", "2"), 0.0, 1.0, 1.0), (("yes", "5"), 1.0, 0.0, 0.0)],
    ids=["looks and is not fooled", "does not look", "looks and is fooled"],
)
def test_an_edit_that_must_change_an_answer_is_no_loss(
    edited: Answers, follows: float, stays: float, steady: float
) -> None:
    """That it looks at the picture, and that it is not fooled, are two figures; only the latter enters the scores."""
    columns, found = figures([(("no", "2"), edited)] * 15)
    assert found.follows is not None
    assert found.stays is not None
    assert (found.follows.value, found.stays.value, found.steady.value) == (follows, stays, steady)
    assert found.follows.n == found.steady.n == 15
    assert [(of.label, of.right.n) for of in found.counterfactuals] == [("", 15), ("number", 15), ("time", 0)]
    assert [(of.label, of.right.n) for of in found.all_originals] == [("", 30), ("number", 15), ("time", 15)]
    scores = columns.rows().scores
    assert {cell.label for cell in scores.cells} <= {"", "all classes", "number"}
    assert (scores.counterfactual[scores.whole] == steady).all()


def test_only_pairs_that_count_and_answers_that_were_right_and_given_tell_whether_it_looks() -> None:
    assert figures([(("no", "2"), ("yes", "2"))] * 3, arms_fail=True)[1].follows is None
    mixed = figures([(("yes", "2"), ("yes", "2")), (("no", "2"), ("", "2")), (("no", ""), ("yes", ""))])[1]
    assert mixed.follows is not None
    assert (mixed.follows.count, mixed.follows.n, mixed.steady.n) == (1, 1, 2)
    assert mixed.counterfactuals[0].unanswered == {"refused": 2}
    silent = figures([(("no", "2"), ("", ""))] * 3)[0].rows()
    assert (silent.left_out, silent.unanswered) == (3, {"counterfactual": 3})


def test_pages_show_the_question_with_the_answers_before_and_after() -> None:
    def view(answers: Answers, values: frozenset[str] = frozenset()) -> PredictionView:
        of = row(0, None, answers, values)
        parts = of.detail["answers"]
        assert isinstance(parts, list)
        asked = [AnsweredQuestion.model_validate(part) for part in parts]
        return PredictionView(
            predicted=of.predicted, probability=1.0, ground_truth_probability=None, rank=None, top=[],
            scores=of.scores, answers=asked,
        )  # fmt: skip

    before, after = view(("no", "2")), view(("no", "5"), frozenset({"weather=night"}))
    opinion = ModelOpinion(
        model="vlm", original=before, null_arm=view(("no", "")), sham_arm=None, counterfactual=after, flipped=True
    )
    _, found = figures([(("no", "2"), ("yes", "5"))] * 3)
    result = ModelResults(
        model="vlm", method="dillema", relation="labelled", metric=KIND.metric, sources=3, counterfactuals=3,
        left_out=0, cells=[], answers=found,
    )  # fmt: skip
    page = environment().from_string(
        f'{{% import "{KIND.template}" as own %}}{{{{ own.prediction(opinion, "counterfactual", none) }}}}'
        "{{ own.flip(opinion, none) }}{{ own.changed(opinion) }}{{ own.details(opinion.original) }}"
        "{{ own.pictures(none, opinion, none) }}<main>{{ own.tables(opinion) }}</main>{{ own.confusion(result) }}"
    )
    words = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page.render(opinion=opinion, result=result)))
    for shown in (f"“{COUNT}” 2 → 5", "no answer (refused)", "no instead of yes", "all questions", "Is not fooled"):
        assert shown in words, words
    assert "of those that the edit must change, 100 %" in words.replace("\u00a0", " "), words
