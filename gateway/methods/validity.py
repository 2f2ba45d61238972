"""The score `validity` of an edit: its probability of being valid, from all its other scores.

The model is a logistic regression on counterfactuals that people, or models, judged (`contrafact calibrate`, written
into the profile's calibration). With a threshold it is the last check of an edit, `validity`. It judges the image that
a method has chosen, so it does not change which image of a sweep is kept. Null and sham arms have no such score: it
concerns the change, too.

Signals: scores of rendered edits by other models than the scorer. They refuse nothing by themselves.

object      `object`: the profile's segmenter finds the ground truth where it finds it in the source (IoU of both
            regions, relative to that in the source, 0 to 1); missing if it does not find it there
recaption   a new caption of the image, greedy and unprompted. `recaption_label`: 1 if it names the ground truth, else
            0. `recaption_value`: mean over the changes of 1 if it names the new value, less 1 if it names the old one
judge       the profile's vision-language judge: P(yes) to whether the object is still there (`judge_label`), the edit
            shows (`judge_value`, the least over the changes), and nothing else changed (`judge_rest`, beside the
            source). A question without an answer has no score
pairwise    the same judge, beside the null arm: P that the edit shows in this image and not there (`pairwise`)

A job names its signals, or uses a model of validity that weighs them (`validity.py`). What a judge is asked stands in
`shared.profiles.judge_audit`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Annotated

from pydantic import Field

from gateway.methods.arms import Pair, RenderedArm
from gateway.methods.checks import CHECKS, judge, named_share, new_captions
from gateway.methods.counterfactual import (
    Edit,
    JudgeRecord,
    Lineage,
    MethodImage,
    MethodParameters,
    Scores,
    TaskDescription,
    Thresholds,
)
from gateway.methods.schedule import Inputs
from gateway.methods.words import content_stems, names_class
from shared.chunks import chunks
from shared.profiles.judge_audit import LABEL, PAIRWISE, REST, VALUE, question_in_words
from shared.schemas.base import MAX_IMAGES_PER_MESSAGE, ImagePayload
from shared.schemas.evaluation import JudgeRequest, ShapesRequest
from shared.schemas.thresholds import ImageThresholds
from shared.schemas.validity import OTHER_MODELS, VALIDITY, EditKind, Signal, ValidityModel, signals_of
from shared.service.endpoints import Services


def _signals() -> Iterator[str]:
    """The scores of an image from which a model is fitted; those of the second scorer follow those of the scorer."""
    for of_scorer, checks in groupby(CHECKS.values(), lambda check: check.of_scorer):
        names = [name for check in checks if check.name != VALIDITY for name in (check.name, *check.more_signals)]
        yield from names
        if of_scorer:
            yield from (f"second_{name}" for name in names)
    yield from OTHER_MODELS


SIGNALS = tuple(_signals())


class CheckParameters(MethodParameters):
    """Thresholds of the image checks, what else they compute, and the model that combines all scores."""

    signals: Annotated[
        tuple[Signal, ...],
        Field(description="Scores by other models than the scorer: object (segmenter), recaption, judge, pairwise."),
    ] = ()
    validity: Annotated[
        ValidityModel | None,
        Field(description="Model of the score `validity`; default: that of the job's `calibration`, if it has one."),
    ] = None
    recaption: Annotated[
        bool,
        Field(description="Caption each rendered image; its caption must name the class (one more call per image)."),
    ] = False
    thresholds: Annotated[
        ImageThresholds,
        Field(description="Thresholds of image checks, by check and factor (or `default`); default: the profile's."),
    ] = Field(default_factory=dict)
    arm_thresholds: Annotated[
        ImageThresholds | None,
        Field(
            description="Thresholds at which null and sham arms are judged; null: those of edits. With a calibration: "
            "the profile's, and the calibration's where it has some for the same check."
        ),
    ] = None
    second_thresholds: Annotated[
        ImageThresholds,
        Field(description="The same of the profile's second scorer, which changes no verdict; default: the profile's."),
    ] = Field(default_factory=dict)

    @property
    def thresholds_for_arms(self) -> Thresholds:
        """The thresholds of null and sham arms. A calibration may leave edits only `validity`, which no arm has."""
        return self.thresholds if self.arm_thresholds is None else self.arm_thresholds


def signal_scores(
    services: Services,
    source: MethodImage,
    task: TaskDescription,
    images: Sequence[ImagePayload],
    edits: Sequence[Edit],
    signals: Sequence[Signal],
) -> list[Scores]:
    """The scores of signals for images of one source (at most 15); `edits` has the edit of each. Raises Problem."""
    scores: list[Scores] = [{} for _ in images]
    if not images:
        return scores
    if len(images) >= MAX_IMAGES_PER_MESSAGE:
        raise ValueError(f"send at most {MAX_IMAGES_PER_MESSAGE - 1} images of a source at once, not {len(images)}")
    if "object" in signals and source.ground_truth is not None:
        _add(scores, _object_scores(services, source, source.ground_truth, images))
    if "recaption" in signals:
        pairs = zip(new_captions(services, images), edits, strict=True)
        _add(scores, [caption_signals(caption, edit, source.ground_truth) for caption, edit in pairs])
    return scores


def _add(scores: Sequence[Scores], more: Sequence[Scores]) -> None:
    for scores_of_image, new in zip(scores, more, strict=True):
        scores_of_image.update(new)


def _object_scores(services: Services, source: MethodImage, label: str, images: Sequence[ImagePayload]) -> list[Scores]:
    name = label.split(",")[0]
    reply = services.shapes(ShapesRequest(source=source.image, images=list(images), classes=[name]))
    return [{"object": outcome.classes[0]} if outcome.classes else {} for outcome in reply.outcomes]


def caption_signals(caption: str, edit: Edit, label: str | None) -> Scores:
    """The scores of a new caption."""
    scores: Scores = {}
    if label is not None:
        scores["recaption_label"] = named_share(caption, [label])
    named = [
        float(_names(caption, change.to_value, change.to_phrase))
        - float(_names(caption, change.from_value, change.from_phrase))
        for change in edit.changes
    ]
    return scores | ({"recaption_value": sum(named) / len(named)} if named else {})


def _names(caption: str, value: str, phrase: str) -> bool:
    """Whether a caption has a value's name, or all content words of a phrase, by their stems."""
    words = content_stems(phrase)
    return names_class(caption, value) or (bool(words) and words <= content_stems(caption))


def ask_judge(
    services: Services,
    source: MethodImage,
    image: ImagePayload,
    null: ImagePayload | None,
    edit: Edit,
    signals: Sequence[Signal],
) -> tuple[Scores, JudgeRecord | None]:
    """The judge's answers on an image, beside its source and its null arm (None: it has none); None: nothing is asked.

    A question without an answer has no score; the record counts it.
    """
    changes = [(change.from_phrase, change.to_phrase) for change in edit.changes[:7]]
    subject = (source.ground_truth or "").split(",")[0]
    label = [question_in_words(LABEL, subject, changes)] if subject else []
    about = [*(question_in_words(VALUE, subject, [change]) for change in changes), *label]
    requests: dict[str, JudgeRequest] = {}
    if "judge" in signals and about:
        requests[VALUE] = JudgeRequest(images=[image], questions=about)
    if "judge" in signals and changes:
        rest = [question_in_words(REST, subject, changes)]
        requests[REST] = JudgeRequest(images=[image], questions=rest, beside=source.image)
    if "pairwise" in signals and changes and null is not None:
        pair = [question_in_words(PAIRWISE, subject, changes)]
        requests[PAIRWISE] = JudgeRequest(images=[image], questions=pair, beside=null, pairwise=True)
    if not requests:
        return {}, None
    scores: Scores = {}
    record = JudgeRecord(questions=0, refused=0, unreadable=0, prompt_tokens=0, completion_tokens=0)
    for name, request in requests.items():
        reply = services.judge(request)
        [answers] = reply.yes
        record["questions"] += len(answers)
        record["refused"] += answers.count("refused")
        record["unreadable"] += answers.count("unclear") + answers.count("cut off")
        for usage in reply.usage or ():
            record["prompt_tokens"] += usage.prompt if usage else 0
            record["completion_tokens"] += usage.completion if usage else 0
        if name == VALUE and label:
            answer = answers.pop()
            scores |= {} if isinstance(answer, str) else {LABEL: answer}
        answered = [answer for answer in answers if not isinstance(answer, str)]
        if answers and len(answered) == len(answers):
            scores[name] = min(answered)
    return scores, record


def judge_validity(
    inputs: Inputs[CheckParameters],
    edits: Sequence[Edit],
    arms: Sequence[RenderedArm[Pair]],
    nulls: Sequence[RenderedArm[Pair]],
    thresholds: Thresholds,
) -> list[RenderedArm[Pair]]:
    """The arms of edits with the scores of their signals and `validity`, and the verdict of the check `validity`.

    `nulls`: their null arms. Without signals and model nothing is sent, and the arms are unchanged.
    """
    p = inputs.parameters
    signals = tuple(dict.fromkeys([*p.signals, *(signals_of(p.validity) if p.validity else ())]))
    if not signals and p.validity is None:
        return list(arms)
    null_images = {null.pair: null.image for null in nulls}
    judged = []
    for batch in chunks(list(zip(edits, arms, strict=True)), MAX_IMAGES_PER_MESSAGE - 1):
        finite = [(edit, arm.image) for edit, arm in batch if arm.image is not None]
        images, of_images = [image for _, image in finite], [edit for edit, _ in finite]
        scored = iter(signal_scores(inputs.services, inputs.image, inputs.task, images, of_images, signals))
        for edit, arm in batch:
            signals_of_arm: Scores = {} if arm.image is None else next(scored)
            if arm.image is not None:
                null = null_images.get(arm.pair)
                answers, record = ask_judge(inputs.services, inputs.image, arm.image, null, edit, signals)
                signals_of_arm |= answers
                arm = arm if record is None else replace(arm, lineage=Lineage(**arm.lineage, judge=record))
            kind = EditKind(
                tuple(change.factor for change in edit.changes),
                tuple(change.to_value for change in edit.changes),
                () if inputs.image.ground_truth is None else (inputs.image.ground_truth,),
            )
            scores = {**arm.scores, **signals_of_arm}
            probability = p.validity.probability(scores, kind) if p.validity and arm.image else None
            judged.append(_judge(edit, arm, scores, probability, thresholds))
    return judged


def _judge(
    edit: Edit, arm: RenderedArm[Pair], scores: Scores, probability: float | None, thresholds: Thresholds
) -> RenderedArm[Pair]:
    if probability is not None:
        scores = {**scores, VALIDITY: probability}
    verdict = judge(scores, edit, thresholds, [VALIDITY]) if arm.verdict.accepted else arm.verdict
    return replace(arm, verdict=verdict, scores=scores)
