"""Is each object still there, by the shipped segmenter of the checks, on scenes drawn with and without it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from evaluator_service.models_under_test.kinds.segmentation import ImageSegmenter
from evaluator_service.shapes import shapes_reply
from gateway.kinds import KINDS
from gateway.methods.checks import STILL_THERE, find_objects
from shared.media.images import decode, encode
from shared.profiles.evaluator import ShapeJudge
from shared.profiles.profile import load_profile
from shared.schemas.base import ImagePayload
from shared.schemas.boxes import Detected, PredictedBox, TrueBox
from shared.schemas.evaluation import ShapesReply, ShapesRequest
from tinyworld.roads.demo import boxes_of_instances
from tinyworld.roads.own_distribution import own_distribution
from tinyworld.roads.render import render
from tinyworld.roads.world import THINGS, Scene

SCENE = next(
    scene
    for scene in (own_distribution(number, "demo") for number in range(100))
    if (scene.time, scene.weather, scene.pedestrian) == ("day", "clear", "standing")
)


class ShapeEvaluator:
    """The evaluator's answer on shapes, in this process."""

    def __init__(self, segmenter: ShapeJudge) -> None:
        self._names, self._segmenter = segmenter, ImageSegmenter(segmenter, device="cpu")

    def shapes(self, request: ShapesRequest) -> ShapesReply:
        images = [decode(payload.png) for payload in (request.source, *request.images)]
        places = self._names.places(self._segmenter.classes, request.classes)
        return shapes_reply(request, self._segmenter.run(images), places)


@pytest.fixture(scope="module")
def evaluator() -> ShapeEvaluator:
    segmenter = load_profile("tiny-roads").evaluator.segmenter
    assert segmenter is not None
    return ShapeEvaluator(segmenter)


def picture(scene: Scene) -> ImagePayload:
    return ImagePayload(png=encode(np.ascontiguousarray(render(scene).image)))


def boxes(scene: Scene) -> Sequence[TrueBox]:
    drawn = render(scene)
    return boxes_of_instances(drawn.instances, drawn.instance_classes)


def test_at_night_the_pedestrian_is_still_there_and_one_that_was_left_out_is_gone(evaluator: ShapeEvaluator) -> None:
    truth = boxes(SCENE)
    images = [picture(SCENE.changed(time="night")), picture(SCENE.changed(pedestrian="none"))]
    night, without = find_objects(evaluator, picture(SCENE), images, dict(enumerate(truth)))
    (pedestrian,) = {it.box for it in truth} - {it.box for it in boxes(SCENE.changed(pedestrian="none"))}
    [place] = [place for place, it in enumerate(truth) if it.box == pedestrian]
    assert (night[place] or 0) >= STILL_THERE
    assert (without[place] or 0) < STILL_THERE


def test_a_pedestrian_whom_the_editor_added_is_no_hallucination(evaluator: ShapeEvaluator) -> None:
    kind, alone = KINDS["detection"], SCENE.changed(pedestrian="none")
    truth = boxes(alone)
    answer = [PredictedBox(box=it.box, label=it.label, score=0.9) for it in boxes(SCENE)]
    answer.append(PredictedBox(box=(0, 0, 30, 20), label="pedestrian", score=0.8))  # in the sky
    scored = kind.judge(answer, truth, THINGS)
    with_added = kind.with_added(truth, scored, picture(alone), picture(SCENE), evaluator)
    before, after = (
        Detected.model_validate(kind.judge(answer, boxes_of, THINGS).detail["detected"])
        for boxes_of in (truth, with_added)
    )
    assert [[extra.score for extra in detected.extras] for detected in (before, after)] == [[0.9, 0.8], [0.8]]
    assert [it.outcome for it in after.objects] == ["found"] * len(truth) + ["ignored"]
    same = kind.with_added(truth, scored, picture(SCENE), picture(SCENE), evaluator)
    assert same is truth, "the source has it, too: nobody annotated it"
