"""Objects and boxes: what is found, what is extra, and the same average precision as pycocotools has on the files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from gateway.analysis.detection import (
    COUNTED,
    CROWD,
    DIFFICULT,
    DUPLICATE,
    FOUND,
    HALLUCINATION,
    IGNORED,
    MATCHED,
    MISCLASSIFIED,
    MISLOCATED,
    MISSED,
    TOLERATED,
    BoxedPair,
    Objects,
    Predicted,
    Resampled,
    average_precision,
    match,
    overlaps,
    precision_differences,
)

CAR, BUS = 0, 1
Boxes = Sequence[tuple[int, tuple[float, float, float, float]]]


def objects(boxes: Boxes, ignore: Sequence[int] | None = None) -> Objects:
    corners = np.array([box for _, box in boxes], float).reshape(-1, 4)
    area = (corners[:, 2] - corners[:, 0]) * (corners[:, 3] - corners[:, 1])
    return Objects(
        corners, np.array([label for label, _ in boxes], int), area, np.array(ignore or [COUNTED] * len(boxes), int)
    )


def predicted(boxes: Boxes) -> Predicted:
    """The first is the most confident one."""
    corners = np.array([box for _, box in boxes], float).reshape(-1, 4)
    return Predicted(corners, np.array([label for label, _ in boxes], int), np.linspace(0.99, 0.6, len(boxes)))


HERE, LOW, SHIFTED, AWAY = (0, 0, 10, 10), (0, 2, 10, 12), (0, 6, 10, 16), (50, 50, 60, 60)


@pytest.mark.parametrize(
    ("things", "boxes", "outcomes", "fates"),
    [
        ([(CAR, HERE)], [(CAR, HERE)], [FOUND], [MATCHED]),
        ([(CAR, HERE)], [(CAR, SHIFTED)], [MISLOCATED], [MATCHED]),
        ([(CAR, HERE)], [(BUS, LOW)], [MISCLASSIFIED], [MATCHED]),
        ([(CAR, HERE)], [(CAR, AWAY)], [MISSED], [HALLUCINATION]),
        ([(CAR, HERE)], [], [MISSED], []),
        ([], [(CAR, HERE)], [], [HALLUCINATION]),
        # One box is one object's: the more confident one, not the one that lies better.
        ([(CAR, HERE)], [(CAR, LOW), (CAR, HERE)], [FOUND], [MATCHED, DUPLICATE]),
        ([(CAR, HERE), (CAR, LOW)], [(CAR, HERE)], [FOUND, MISSED], [MATCHED]),
        # A wrong label on an object that is found is no hallucination; the right one counts even if it comes second.
        ([(CAR, HERE)], [(BUS, HERE), (CAR, LOW)], [FOUND], [DUPLICATE, MATCHED]),
        ([(CAR, HERE), (BUS, AWAY)], [(BUS, HERE), (CAR, AWAY)], [MISCLASSIFIED, MISCLASSIFIED], [MATCHED, MATCHED]),
    ],
)
def test_an_object_has_one_outcome_and_a_box_one_fate(
    things: Boxes, boxes: Boxes, outcomes: list[int], fates: list[int]
) -> None:
    matching = match(objects(things), predicted(boxes), 0.5)
    assert (matching.outcome.tolist(), matching.fate.tolist()) == (outcomes, fates)


def test_what_the_truth_ignores_is_neither_lost_nor_hallucinated() -> None:
    crowd = (0, 0, 100, 100)
    inside = [(CAR, (10, 10, 20, 20)), (CAR, (30, 10, 40, 20)), (BUS, (60, 60, 70, 70))]
    matching = match(objects([(CAR, crowd)], [CROWD]), predicted(inside), 0.5)
    assert (matching.outcome.tolist(), matching.fate.tolist()) == ([IGNORED], [TOLERATED] * 3)
    matching = match(objects([(CAR, crowd)], [DIFFICULT]), predicted([*inside, (CAR, crowd)]), 0.5)
    assert matching.fate.tolist() == [HALLUCINATION] * 3 + [TOLERATED]
    matching = match(objects([(CAR, HERE), (CAR, LOW)], [DIFFICULT, COUNTED]), predicted([(CAR, HERE)]), 0.5)
    assert matching.outcome.tolist() == [IGNORED, FOUND], "an object that counts comes first"


def test_overlaps() -> None:
    rows = np.array([HERE, LOW, AWAY], float)
    assert overlaps(rows, rows) == pytest.approx(np.array([[1, 8 / 12, 0], [8 / 12, 1, 0], [0, 0, 1]]))


@st.composite
def scenes(draw: st.DrawFn) -> list[BoxedPair]:
    """Images with up to five objects, some of which boxes meet well, badly, or with the wrong class."""
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    images = []
    for _ in range(draw(st.integers(1, 6))):
        n, extra = random.integers(0, 6), random.integers(1, 3)  # `loadRes` fails without any box
        corners = random.uniform(0, 200, (n, 2))
        sides = random.uniform(4, 150, (n, 2))
        boxes = np.hstack([corners, corners + sides])
        label, ignore = random.integers(0, 2, n), random.choice([COUNTED, COUNTED, COUNTED, CROWD], n)
        area = sides.prod(axis=1) * random.uniform(0.4, 1, n)
        moved = boxes + random.normal(0, 0.08, (n, 4)) * np.hstack([sides, sides])
        moved[:, 2:] = np.maximum(moved[:, 2:], moved[:, :2] + 1)
        far = random.uniform(0, 200, (extra, 2))
        guesses = np.vstack([moved, np.hstack([far, far + 20])])
        said = np.concatenate([np.where(random.random(n) < 0.8, label, 1 - label), random.integers(0, 2, extra)])
        score = np.sort(random.uniform(0, 1, n + extra))[::-1]
        shuffled = random.permutation(n + extra)
        images.append(
            BoxedPair(Objects(boxes, label, area, ignore), Predicted(guesses[shuffled], said[shuffled], score))
        )
    return images


@settings(max_examples=25, deadline=None)
@given(scenes=scenes())
def test_average_precision_is_that_of_pycocotools_on_the_files(
    scenes: list[BoxedPair], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("coco")
    reference = of_files(scenes, folder)
    ours = average_precision(scenes, 2)
    found = [ours.ap, ours.ap50, ours.ap75, ours.small, ours.medium, ours.large]
    assert [-1.0 if value is None else value for value in found] == pytest.approx(reference, abs=1e-9)


def of_files(scenes: Sequence[BoxedPair], folder: Path) -> list[float]:
    """What a user gets from annotations and results in COCO's own files, whose ids are sparse."""
    truths: list[dict[str, object]] = []
    results: list[dict[str, object]] = []
    for number, (things, boxes) in enumerate(scenes):
        image, rows = 100 + 7 * number, zip(*(part.tolist() for part in things), strict=True)
        for (left, top, right, bottom), label, area, ignore in rows:
            truths.append(
                {
                    "id": 1 + len(truths), "image_id": image, "category_id": 10 * (label + 1),
                    "bbox": [left, top, right - left, bottom - top], "area": area, "iscrowd": int(ignore == CROWD),
                }
            )  # fmt: skip
        for (left, top, right, bottom), label, score in zip(*(part.tolist() for part in boxes), strict=True):
            box = [left, top, right - left, bottom - top]
            results.append({"image_id": image, "category_id": 10 * (label + 1), "bbox": box, "score": score})
    images = [{"id": 100 + 7 * number, "width": 400, "height": 400} for number in range(len(scenes))]
    dataset = {"info": {}, "images": images, "categories": [{"id": 10}, {"id": 20}], "annotations": truths}
    (folder / "truth.json").write_text(json.dumps(dataset))
    coco = COCO(str(folder / "truth.json"))
    (folder / "results.json").write_text(json.dumps(results))
    evaluator = COCOeval(coco, coco.loadRes(str(folder / "results.json")), "bbox")
    evaluator.evaluate()
    evaluator.accumulate()
    evaluator.summarize()
    return [float(value) for value in evaluator.stats[:6]]


def test_found_objects_are_coco_true_positives() -> None:
    """At one IoU, what we count as found is what pycocotools matches."""
    random = np.random.default_rng(3)
    for _ in range(20):
        n = int(random.integers(1, 8))
        corners = random.uniform(0, 30, (n, 2))
        boxes = np.hstack([corners, corners + random.uniform(5, 20, (n, 2))])
        things = objects([(int(random.integers(0, 2)), tuple(box)) for box in boxes])
        guesses = predicted([(int(random.integers(0, 2)), tuple(box + random.normal(0, 1.5, 4))) for box in boxes])
        matching = match(things, guesses, 0.5)
        evaluator = COCOeval(coco_of(things), coco_of(guesses, guesses.score), "bbox")
        evaluator.params.iouThrs = np.array([0.5])
        evaluator.evaluate()
        evaluated = [entry for entry in evaluator.evalImgs if entry and entry["aRng"] == [0, 1e10]]
        hits = [int(thing) for entry in evaluated for thing in entry["dtMatches"][0] if thing]
        assert sorted(hits) == (np.flatnonzero(matching.outcome == FOUND) + 1).tolist()


def coco_of(boxes: Objects | Predicted, scores: Sequence[float] | np.ndarray | None = None) -> COCO:
    """One image in pycocotools' own form."""
    coco, sides = COCO(), boxes.boxes[:, 2:] - boxes.boxes[:, :2]
    annotations = [
        {
            "id": place + 1, "image_id": 1, "category_id": label + 1, "iscrowd": 0, "bbox": [*corner, *size],
            "area": size[0] * size[1], **({} if scores is None else {"score": float(scores[place])}),
        }
        for place, (label, corner, size) in enumerate(
            zip(boxes.label.tolist(), boxes.boxes[:, :2].tolist(), sides.tolist(), strict=True)
        )
    ]  # fmt: skip
    coco.dataset = {"images": [{"id": 1}], "categories": [{"id": 1}, {"id": 2}], "annotations": annotations}
    coco.createIndex()
    return coco


def test_a_difference_in_precision_has_an_interval_over_sources() -> None:
    there, gone = predicted([(CAR, HERE)]), predicted([])
    things = objects([(CAR, HERE)])
    images = [BoxedPair(things, gone if number % 2 else there) for number in range(16)]
    others = [BoxedPair(things, there)] * 16
    differences = precision_differences(images, others, np.arange(16), 2, seed=0)
    assert set(differences) == {"ap", "ap50", "ap75", "small"}, "no object is medium or large"
    for difference, interval in ((each.difference, each.interval) for each in differences.values()):
        assert difference == pytest.approx(-0.5, abs=0.01)
        assert interval is not None
        assert -0.85 < interval.low < -0.5 < interval.high < -0.15
    assert precision_differences(images[:8], others[:8], np.arange(8), 2, seed=0)["ap"].interval is None
    one_sequence = precision_differences(images, others, np.zeros(16, int), 2, seed=0)
    assert one_sequence["ap"].interval is None


def test_a_sample_of_images_with_repetitions_has_the_precision_of_the_list() -> None:
    """Weights of images in place of repetitions are the same figures as pycocotools', without ranking again."""
    random = np.random.default_rng(11)
    scenes = []
    for _ in range(12):
        things = random_objects(random)
        near = Predicted(
            things.boxes + random.normal(0, 6, (6, 4)), things.label, np.sort(random.uniform(0, 1, 6))[::-1]
        )
        scenes.append(BoxedPair(things, near))
    resampled = Resampled(scenes, 2)
    for drawn in (np.arange(12), random.integers(12, size=12), np.array([3] * 12)):
        whole = average_precision([scenes[place] for place in drawn], 2)
        figures = resampled.figures(np.bincount(drawn, minlength=12))
        expected = [np.nan if value is None else value for value in whole.model_dump().values()]
        np.testing.assert_allclose(figures, np.array(expected, float), atol=1e-9)


def random_objects(random: np.random.Generator) -> Objects:
    corners = random.uniform(0, 200, (6, 2))
    boxes = np.hstack([corners, corners + random.uniform(8, 150, (6, 2))])
    return objects([(int(label), tuple(box)) for label, box in zip(random.integers(0, 2, 6), boxes, strict=True)])
