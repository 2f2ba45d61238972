"""Signals: scores of rendered edits by other models than the scorer. They refuse nothing by themselves.

object      `object`: the profile's segmenter finds the ground truth where it finds it in the source (IoU of both
            regions, relative to that in the source, 0 to 1); missing if it does not find it there
recaption   a new caption of the image, greedy and unprompted. `recaption_label`: 1 if it names the ground truth, else
            0. `recaption_value`: mean over the changes of 1 if it names the new value, less 1 if it names the old one
judge       the profile's vision-language judge: P(yes) to `LABEL_QUESTION` (`judge_label`) and to `VALUE_QUESTION`
            (`judge_value`, the least over the changes)

A job names its signals, or uses a model of validity that weighs them (`validity.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from gateway.methods.counterfactual import Edit, MethodImage, Scores, TaskDescription
from gateway.methods.words import content_stems, in_captions, names_class
from shared.endpoints import Services
from shared.schemas.base import MAX_IMAGES_PER_MESSAGE, Contract, ImagePayload
from shared.schemas.caption import CaptionRequest
from shared.schemas.evaluation import JudgeRequest, ShapesRequest
from shared.schemas.validity import Signal, ValidityModel

LABEL_QUESTION = "Is there a complete and recognisable {} in this image?"
VALUE_QUESTION = "Does this image show the following? {}"


class SignalParameters(Contract):
    """A job's parameters for signals, and for the model that combines all scores."""

    signals: Annotated[
        tuple[Signal, ...],
        Field(description="Scores by other models than the scorer: object (segmenter), recaption, judge."),
    ] = ()
    validity: Annotated[
        ValidityModel | None,
        Field(description="Model of the score `validity`; default: that of the job's `calibration`, if it has one."),
    ] = None


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
        captions = services.caption(CaptionRequest(images=list(images))).captions
        pairs = zip(captions, edits, strict=True)
        _add(scores, [caption_signals(caption, edit, source.ground_truth) for caption, edit in pairs])
    if "judge" in signals:
        pairs_of_images = zip(images, edits, strict=True)
        _add(scores, [_judge_scores(services, image, edit, source.ground_truth) for image, edit in pairs_of_images])
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
        scores["recaption_label"] = float(names_class(caption, in_captions(label)))
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


def _judge_scores(services: Services, image: ImagePayload, edit: Edit, label: str | None) -> Scores:
    questions = [VALUE_QUESTION.format(change.to_phrase) for change in edit.changes[:7]]
    if label is not None:
        questions.append(LABEL_QUESTION.format(label.split(",")[0]))
    if not questions:
        return {}
    [answers] = services.judge(JudgeRequest(images=[image], questions=questions)).yes
    scores: Scores = {"judge_label": answers.pop()} if label is not None else {}
    return scores | ({"judge_value": min(answers)} if answers else {})
