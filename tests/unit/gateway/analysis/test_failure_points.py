"""Failure points: the first severity at which the prediction changes, for images that are right uncorrupted."""

from __future__ import annotations

import numpy as np

from gateway.analysis.effects import Outcomes, Predictions, Ranks
from gateway.analysis.failure_points import failure_points, first_change
from gateway.methods.corruptions import value_of
from shared.schemas.effects import Cell

RIGHT, WRONG = 0, 1


def predictions(predicted: list[int]) -> Predictions:
    classes = np.array(predicted, np.int64)
    return Predictions(np.where(classes == RIGHT, 0.9, 0.1), np.where(classes == RIGHT, 1, 2), classes)


def outcomes_of(answers: list[list[int]], unchanged: list[int]) -> Outcomes:
    """`answers[image][severity - 1]` under one corruption; images of two classes."""
    rows = [(image, severity) for image in range(len(answers)) for severity in range(1, 6)]
    cells: dict[Cell, list[int]] = {}
    for row, (image, severity) in enumerate(rows):
        label = ("bus", "car")[image % 2]
        value = value_of("gaussian_noise", severity)
        cells.setdefault(Cell(label=label, factor="other", value=value, direction="to"), []).append(row)
    null = predictions([unchanged[image] for image, _ in rows])
    return Outcomes.of(
        Ranks(null, null, predictions([answers[image][severity - 1] for image, severity in rows])),
        source=np.array([image for image, _ in rows]),
        ordinal=np.array([severity - 1 for _, severity in rows]),
        null_arm=np.array([image for image, _ in rows]),
        cells={cell: np.array(members) for cell, members in cells.items()},
    )


def test_the_first_change_counts_even_if_a_stronger_one_is_answered_right_again() -> None:
    answers = [[0, 0, 1, 0, 1], [0, 0, 0, 0, 0], [1, 1, 1, 1, 1], [0, 1, 1, 1, 1]]
    (points,) = failure_points(outcomes_of(answers, [RIGHT] * 4))
    assert points.corruption == "gaussian noise"
    assert (points.first, points.never, points.sources) == ([1, 1, 1, 0, 0], 1, 4)
    assert points.median == 2, "two of four have failed by severity 2"


def test_an_image_that_is_wrong_before_anything_is_done_to_it_is_not_counted() -> None:
    answers = [[0, 0, 0, 0, 0], [0, 0, 0, 0, 1], [1, 1, 1, 1, 1]]
    (points,) = failure_points(outcomes_of(answers, [RIGHT, WRONG, RIGHT]))
    assert (points.first, points.never, points.sources, points.median) == ([1, 0, 0, 0, 0], 1, 2, 1)
    (nothing,) = failure_points(outcomes_of(answers, [WRONG] * 3))
    assert (nothing.sources, nothing.never, nothing.median) == (0, 0, None)


def test_where_fewer_than_half_fail_there_is_no_median() -> None:
    (points,) = failure_points(outcomes_of([[0] * 5, [0] * 5, [0, 0, 0, 0, 1]], [RIGHT] * 3))
    assert (points.never, points.median) == (2, None)


def test_the_first_change_of_one_image() -> None:
    assert first_change("bus", {1: "bus", 4: "car", 3: "car", 5: "bus"}) == 3
    assert first_change("bus", {1: "bus", 2: "bus"}) is None
