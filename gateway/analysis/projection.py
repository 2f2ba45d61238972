"""The plane in which points of many dimensions differ most: principal component analysis."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gateway.analysis.effects import Floats


class Plane(NamedTuple):
    """n points in the plane of the first two principal components, n × 2 around 0, in the units of the vectors.

    `share`: of the variance that the plane holds, 0 … 1.
    """

    points: Floats
    share: float


def principal_plane(vectors: Floats) -> Plane:
    """The plane of n × d vectors. The component of largest size in each axis is positive, so the picture is stable."""
    if not len(vectors):
        return Plane(np.zeros((0, 2)), 0.0)
    centred = vectors - vectors.mean(axis=0)
    _, sizes, axes = np.linalg.svd(centred, full_matrices=False)
    axes = axes[:2] * np.sign(np.take_along_axis(axes[:2], np.abs(axes[:2]).argmax(axis=1)[:, None], axis=1))
    plane = np.zeros((len(vectors), 2))
    plane[:, : len(axes)] = centred @ axes.T
    variance = float((sizes**2).sum())
    return Plane(plane, float((sizes[:2] ** 2).sum()) / variance if variance else 0.0)
