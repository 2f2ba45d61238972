"""The principal plane: distances in it, its share of the variance, degenerate inputs."""

from __future__ import annotations

import numpy as np
import pytest

from gateway.analysis.projection import principal_plane


def test_points_of_a_plane_keep_their_distances() -> None:
    random = np.random.default_rng(0)
    basis = np.linalg.qr(random.normal(size=(16, 2)))[0].T
    flat = random.normal(size=(50, 2)) * (3, 1)
    plane = principal_plane(flat @ basis + 7)
    assert plane.share == pytest.approx(1)
    expected = np.linalg.norm(flat[:, None] - flat, axis=2)
    assert np.allclose(np.linalg.norm(plane.points[:, None] - plane.points, axis=2), expected)
    assert plane.points[:, 0].std() > plane.points[:, 1].std()


def test_the_same_points_in_another_order_have_the_same_places() -> None:
    vectors = np.random.default_rng(1).normal(size=(30, 8))
    assert np.allclose(principal_plane(vectors[::-1]).points[::-1], principal_plane(vectors).points)


def test_the_share_of_noise_in_all_directions_is_small() -> None:
    assert principal_plane(np.random.default_rng(2).normal(size=(2_000, 20))).share == pytest.approx(0.1, abs=0.03)


@pytest.mark.parametrize("vectors", [np.zeros((0, 4)), np.ones((1, 4)), np.ones((5, 4)), np.ones((3, 1))])
def test_points_that_do_not_differ_lie_together(vectors: np.ndarray) -> None:
    plane = principal_plane(vectors)
    assert plane.points.shape == (len(vectors), 2)
    assert np.allclose(plane.points, 0)
    assert plane.share == 0
