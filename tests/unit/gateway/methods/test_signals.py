"""Signals of rendered edits: what a caption, a segmenter and a judge say, and what is asked of them."""

from __future__ import annotations

import pytest

from gateway.methods.arms import RenderedArm
from gateway.methods.counterfactual import ACCEPTED, Change, Edit, MethodImage, Scores, TaskDescription, Verdict
from gateway.methods.schedule import Inputs
from gateway.methods.validity import CheckParameters, ask_judge, caption_signals, judge_validity, signal_scores
from shared.schemas.base import Contract, ImagePayload
from shared.schemas.caption import CaptionReply, CaptionRequest
from shared.schemas.effects import Estimate
from shared.schemas.evaluation import (
    JudgeReply,
    JudgeRequest,
    ShapesOutcome,
    ShapesReply,
    ShapesRequest,
    TokenUsage,
    Unanswered,
)
from shared.schemas.validity import Signal, SignalWeight, ValidityModel, signals_of
from shared.service.endpoints import Endpoint, Reply, Request, Services

SOURCE = MethodImage("source", ImagePayload(png=b"source"), "bus")
TASK = TaskDescription("name it", ("bus", "car"))
NIGHT = Edit((Change("weather", "by day", "after dark", "day", "night"),), "A bus by day.", "A bus after dark.")
ALL: tuple[Signal, ...] = ("object", "recaption", "judge")


class Replies(Services):
    """Services that say of the image `lost` that it shows a car by day, and of others a bus at night."""

    def __init__(self) -> None:
        self.requests: list[Contract] = []

    def call(self, endpoint: Endpoint[Request, Reply], request: Request) -> Reply:
        self.requests.append(request)
        images = [image.png == b"lost" for image in getattr(request, "images", [])]
        reply: Contract
        if isinstance(request, CaptionRequest):
            reply = CaptionReply(captions=["A car by day." if lost else "A bus at night." for lost in images])
        elif isinstance(request, ShapesRequest):
            outcomes = [ShapesOutcome(classes=[0.1 if lost else 0.8], things=[]) for lost in images]
            reply = ShapesReply(judged=["bus"], unjudged=[], things=[], outcomes=outcomes)
        else:
            assert isinstance(request, JudgeRequest)
            usage = TokenUsage(questions=len(request.questions), prompt=100, completion=len(request.questions))
            answer: float | Unanswered = "refused" if request.beside == SOURCE.image else 0.9
            answers = [[0.2 if lost else answer] * len(request.questions) for lost in images]
            reply = JudgeReply(yes=answers, usage=[usage for _ in images])
        assert isinstance(reply, endpoint.reply)
        return reply


def scored(*signals: Signal) -> tuple[list[Scores], list[Contract]]:
    services, images = Replies(), [ImagePayload(png=b"kept"), ImagePayload(png=b"lost")]
    return signal_scores(services, SOURCE, TASK, images, [NIGHT, NIGHT], signals), services.requests


def test_each_signal_has_its_scores() -> None:
    [kept, lost], requests = scored(*ALL)
    assert kept == {"object": 0.8, "recaption_label": 1.0, "recaption_value": 1.0}
    assert lost == {"object": 0.1, "recaption_label": 0.0, "recaption_value": -1.0}
    assert not any(isinstance(request, JudgeRequest) for request in requests)


def test_a_judge_is_asked_about_the_picture_beside_its_source_and_beside_its_null_arm() -> None:
    services, null = Replies(), ImagePayload(png=b"null")
    scores, record = ask_judge(services, SOURCE, ImagePayload(png=b"kept"), null, NIGHT, ("judge", "pairwise"))
    assert scores == {"judge_label": 0.9, "judge_value": 0.9, "pairwise": 0.9}, "it refused to answer one question"
    assert record == {
        "questions": 4, "refused": 1, "unreadable": 0, "prompt_tokens": 300, "completion_tokens": 4,
    }  # fmt: skip
    about, rest, pair = [request for request in services.requests if isinstance(request, JudgeRequest)]
    value, label = about.questions
    assert ("after dark" in value, "bus" in label, about.beside) == (True, True, None)
    assert ("by day" in rest.questions[0], rest.beside, rest.pairwise) == (True, SOURCE.image, False)
    assert (pair.beside, pair.pairwise) == (null, True)
    assert ask_judge(Replies(), SOURCE, null, null, NIGHT, ("object",)) == ({}, None)


def test_a_job_without_signals_sends_nothing() -> None:
    assert scored() == ([{}, {}], [])


@pytest.mark.parametrize(
    ("caption", "value"),
    [("A bus at night.", 1.0), ("A bus after dark.", 1.0), ("A bus in daytime, by day.", -1.0), ("A bus.", 0.0)],
)
def test_a_caption_names_the_new_or_the_old_value(caption: str, value: float) -> None:
    assert caption_signals(caption, NIGHT, "bus") == {"recaption_label": 1.0, "recaption_value": value}
    assert caption_signals(caption, NIGHT, None) == {"recaption_value": value}


MODEL = ValidityModel(
    intercept=0.0,
    signals={
        "object": SignalWeight(mean=0.5, scale=0.1, weight=1.0), "fit": SignalWeight(mean=0.0, scale=1.0, weight=1.0),
    },
    factors={"weather": 0.25},
    values={"night": 0.5},
    classes={"bus": -0.25, "car": 9.0},
    images=100,
    valid=60,
    auroc=Estimate(value=0.9, low=0.8, high=0.95),
    auroc_of_scores=Estimate(value=0.8, low=0.7, high=0.9),
)  # fmt: skip


def arm(name: bytes, verdict: Verdict = ACCEPTED) -> RenderedArm[int]:
    return RenderedArm(ImagePayload(png=name), 1, verdict, {"fit": 0.0}, 0, 1)


def judged(parameters: CheckParameters, *arms: RenderedArm[int], lowest: float = 0.5) -> list[RenderedArm[int]]:
    inputs = Inputs("m", "1", SOURCE, TASK, Replies(), parameters, 1)
    return judge_validity(inputs, [NIGHT] * len(arms), arms, [], {"validity": {"default": lowest}})


def test_the_model_scores_an_edit_and_its_threshold_refuses_it() -> None:
    refused = Verdict(False, "label", "")
    with_model = CheckParameters(validity=MODEL)
    kept, lost, earlier = judged(with_model, arm(b"kept"), arm(b"lost"), arm(b"lost", refused))
    assert kept.verdict.accepted
    assert kept.scores["validity"] == pytest.approx(1 / (1 + 2.718281828 ** -(3.0 + 0.5)))
    assert (lost.verdict.check, lost.scores["object"]) == ("validity", 0.1)
    assert earlier.verdict == refused, "the first check that fails names the verdict"
    assert "validity" in earlier.scores, "refused images are scored, too: calibration needs them"


def test_the_model_brings_the_signals_that_it_weighs() -> None:
    assert signals_of(MODEL) == ("object",)
    [kept] = judged(CheckParameters(validity=MODEL), arm(b"kept"))
    assert "recaption_label" not in kept.scores


def test_an_image_that_is_not_finite_is_left_alone() -> None:
    broken = RenderedArm(None, 1, Verdict(False, "not finite", ""), {}, 0, 1)
    kept, same = judged(CheckParameters(signals=("object",), validity=MODEL), arm(b"kept"), broken)
    assert same is broken or same == broken
    assert kept.scores["object"] == 0.8
