"""The score `validity` of an edit: its probability of being valid, from all its other scores.

The model is a logistic regression on counterfactuals that people, or models, judged (`contrafact calibrate`, written
into the profile's calibration). With a threshold it is the last check of an edit, `validity`. It judges the image that
a method has chosen, so it does not change which image of a sweep is kept. Null and sham arms have no such score: it
concerns the change, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gateway.methods.arms import Pair, RenderedArm
from gateway.methods.checks import judge
from gateway.methods.counterfactual import Edit, Scores, Thresholds
from gateway.methods.schedule import Inputs
from gateway.methods.signals import SignalParameters, signal_scores
from shared.chunks import chunks
from shared.schemas.base import MAX_IMAGES_PER_MESSAGE
from shared.schemas.validity import VALIDITY, EditKind, signals_of


def judge_validity(
    inputs: Inputs[SignalParameters],
    edits: Sequence[Edit],
    arms: Sequence[RenderedArm[Pair]],
    thresholds: Thresholds,
) -> list[RenderedArm[Pair]]:
    """The arms of edits with the scores of their signals and `validity`, and the verdict of the check `validity`.

    Without signals and model nothing is sent, and the arms are unchanged.
    """
    p = inputs.parameters
    signals = tuple(dict.fromkeys([*p.signals, *(signals_of(p.validity) if p.validity else ())]))
    if not signals and p.validity is None:
        return list(arms)
    judged = []
    for batch in chunks(list(zip(edits, arms, strict=True)), MAX_IMAGES_PER_MESSAGE - 1):
        finite = [(edit, arm.image) for edit, arm in batch if arm.image is not None]
        images, of_images = [image for _, image in finite], [edit for edit, _ in finite]
        scored = iter(signal_scores(inputs.services, inputs.image, inputs.task, images, of_images, signals))
        for edit, arm in batch:
            signals_of_arm = {} if arm.image is None else next(scored)
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
