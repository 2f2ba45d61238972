"""The shapes score: moved shapes lower it; unseen ones and void pixels do not."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from evaluator_service.shapes import Shapes, boxes_left, to_job_classes
from shared.media.label_maps import OTHER, VOID, Map
from shared.media.regions import box_of, connected_regions
from shared.profiles.evaluator import ShapeJudge
from shared.schemas.evaluation import BoxedThing

SIDE = 48
KNOWN = [0, 1, 2]  # road, sky, car
CAR = 2


def street(left: int = 8, top: int = 20, width: int = 12, height: int = 9) -> Map:
    """Sky over road, and a car."""
    classes = np.zeros((SIDE, SIDE), np.uint8)
    classes[:16] = 1
    classes[top : top + height, left : left + width] = CAR
    return classes


def maps(most: int = 3) -> st.SearchStrategy[Map]:
    return arrays.arrays(np.uint8, (8, 8), elements=st.sampled_from([*range(most), OTHER]))


@given(
    reference=st.none() | maps().map(lambda classes: np.where(classes == OTHER, VOID, classes)),
    source=maps(),
    predicted=maps(),
)
def test_scores_are_shares_and_full_for_the_map_of_the_source(
    reference: Map | None, source: Map, predicted: Map
) -> None:
    shapes = Shapes(reference, source, KNOWN, KNOWN)
    assert shapes.classes(source) == [1.0] * len(shapes.judged)
    assert all(0 <= score <= 1 for score in shapes.classes(predicted))
    assert all(shapes.thing(source, thing) >= 0.5 for thing in shapes.things)
    assert all(0 <= shapes.thing(predicted, thing) <= 1 for thing in shapes.things)
    truth = source if reference is None else reference
    assert {*shapes.judged, *shapes.unjudged} == {place for place in np.unique(truth).tolist() if place < OTHER}
    if reference is None:
        assert not shapes.unjudged, "what it saw in the source it can look for"


@given(reference=maps(2), source=maps(), predicted=maps(), noise=maps(), void=arrays.arrays(np.bool_, (8, 8)))
def test_void_pixels_do_not_count(reference: Map, source: Map, predicted: Map, noise: Map, void: np.ndarray) -> None:
    reference = np.where(void | (reference == OTHER), VOID, reference).astype(np.uint8)
    clean, other = (
        Shapes(reference, np.where(void, source_map, source), KNOWN, KNOWN) for source_map in (source, noise)
    )
    assert clean.judged == other.judged
    assert clean.classes(predicted) == other.classes(np.where(void, noise, predicted))
    assert [clean.thing(predicted, thing) for thing in clean.things] == [
        other.thing(np.where(void, noise, predicted), thing) for thing in other.things
    ]


@given(maps(), maps(), maps(), st.permutations(KNOWN))
def test_the_order_of_classes_does_not_matter(reference: Map, source: Map, predicted: Map, order: list[int]) -> None:
    renamed = np.array([*order, *range(3, 256)], np.uint8)
    reference = np.where(reference == OTHER, VOID, reference).astype(np.uint8)
    plain, other = Shapes(reference, source, KNOWN, []), Shapes(renamed[reference], renamed[source], order, [])
    expected = {order[place]: score for place, score in zip(plain.judged, plain.classes(predicted), strict=True)}
    assert dict(zip(other.judged, other.classes(renamed[predicted]), strict=True)) == pytest.approx(expected)


@given(maps(), maps(), arrays.arrays(np.bool_, (8, 8)))
def test_losing_what_was_right_never_helps(source: Map, predicted: Map, lost: np.ndarray) -> None:
    shapes = Shapes(None, source, KNOWN, [])
    worse = np.where(lost & (predicted == source), OTHER, predicted).astype(np.uint8)
    assert all(less <= more for less, more in zip(shapes.classes(worse), shapes.classes(predicted), strict=True))


@given(st.integers(0, 12), st.sampled_from([-1, 1]))
def test_a_thing_that_moved_by_more_than_a_third_of_its_width_is_lost(by: int, side: int) -> None:
    shapes = Shapes(street(left=16), street(left=16), KNOWN, [CAR])
    (car,) = shapes.things
    predicted = street(left=16 + side * by)
    overlap = (12 - by) / (12 + by)
    assert shapes.thing(predicted, car) == pytest.approx(overlap)
    assert dict(zip(shapes.judged, shapes.classes(predicted), strict=True))[CAR] == pytest.approx(overlap)


def test_two_cars_are_two_things_and_one_that_is_gone_leaves_the_other() -> None:
    both = np.where(street(left=30) == CAR, CAR, street(left=8)).astype(np.uint8)
    shapes = Shapes(both, both, KNOWN, [CAR])
    assert [box_of(thing.mask) for thing in shapes.things] == [(8, 20, 20, 29), (30, 20, 42, 29)]
    assert [shapes.thing(street(left=8), thing) for thing in shapes.things] == [1.0, 0.0]


def test_specks_are_no_things() -> None:
    dots = np.zeros((100, 100), bool)
    dots[10, 10] = dots[50:53, 50:53] = True
    assert [int(region.sum()) for region in connected_regions(dots)] == [9]


def test_a_segmenters_own_weakness_is_not_held_against_the_image() -> None:
    truth, blind = street(), np.where(street() == CAR, 0, street()).astype(np.uint8)
    shapes = Shapes(truth, blind, KNOWN, [CAR])
    assert (shapes.judged, shapes.unjudged, shapes.things) == ([0, 1], [CAR], [])
    assert shapes.classes(blind) == [1.0, 1.0]
    coarse = street(width=8)  # a third of the car is missed, in the source and in the image
    shapes = Shapes(truth, coarse, KNOWN, [CAR])
    assert shapes.classes(coarse) == [1.0] * 3
    assert shapes.classes(blind)[CAR] == 0.0


def test_classes_unknown_to_the_segmenter_are_not_judged() -> None:
    truth = street()
    shapes = Shapes(truth, np.where(truth == CAR, OTHER, truth).astype(np.uint8), [0, 1], [CAR])
    assert (shapes.judged, shapes.unjudged, shapes.things) == ([0, 1], [CAR], [])
    assert shapes.classes(np.where(truth == CAR, 1, truth).astype(np.uint8)) == [1.0, 1.0]
    assert Shapes(truth, truth, [], [CAR]).judged == []


def test_labels_go_by_name_by_synonym_and_by_what_the_profile_says() -> None:
    judge = ShapeJudge(path="x", licence="", gigabytes=1, names={"vehicle": ["bus", "Car"], "rider": ["person"]})
    labels = ["road, route", "car", "Bus", "person", "tree"]
    assert judge.places(labels, ["Road", "vehicle", "Person"]) == [0, 1, 1, 2, None]
    assert judge.places(labels, ["car", "rider"]) == [None, 0, None, 1, None], (
        "a class that the job lacks is no obstacle"
    )
    assert to_job_classes(np.array([[0, 3], [4, 1]], np.uint8), [0, 1, None, 2]).tolist() == [[0, 2], [OTHER, 1]]


def test_sizes_must_agree() -> None:
    with pytest.raises(ValueError, match="mask and source"):
        Shapes(street()[1:], street(), KNOWN, [])
    with pytest.raises(ValueError, match="source and image"):
        Shapes(street(), street(), KNOWN, []).classes(street()[1:])


def test_a_label_may_stand_for_several_classes_and_means_the_one_of_the_job() -> None:
    names = {"car": ["object"], "bus": ["object"]}
    judge = ShapeJudge(path="x", licence="", gigabytes=1, names=names)
    assert judge.places(["background", "object"], ["car"]) == [None, 0], "not of the class that was named last"
    assert judge.places(["background", "object"], ["bus"]) == [None, 0]


def test_an_object_is_left_in_its_box_as_far_as_the_segmenter_still_sees_its_class_there() -> None:
    classes = ["road", "sky", "car", "tram"]
    car, faint, tram, outside = (8, 20, 20, 29), (8, 0, 48, 40), (8, 20, 20, 29), (60, 60, 70, 70)
    boxes = [BoxedThing(label="car", box=box) for box in (car, faint, outside)]
    boxes.append(BoxedThing(label="tram", box=tram))
    without = np.where(street() == CAR, 0, street()).astype(np.uint8)
    assert boxes_left(boxes, classes, street(), street()) == [1.0, None, None, None]
    assert boxes_left(boxes, classes, street(), without) == [0.0, None, None, None]
    assert boxes_left(boxes[:1], classes, street(), street(left=14)) == [0.5], "half of it left its box"
