"""Whether images are of the profile's domain: a linear discriminant of what the scorer's first layers see.

The scorer's embeddings cannot tell: it was trained on the domain alone and maps everything else into it. Its first two
layers can (docs/measurements.md). Of each, the features are mean and deviation of every channel over the patches.
`research.photographs.domain` fits the discriminant.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from evaluator_service.similarity import Scorer
from shared.images import Pixels


@dataclass(frozen=True, slots=True, eq=False)
class Discriminant:
    """The log odds of being outside are Σ weightᵢ (featureᵢ − meanᵢ) / scaleᵢ + bias; above 0 an image is outside."""

    mean: NDArray[np.float64]
    scale: NDArray[np.float64]
    weights: NDArray[np.float64]
    bias: float

    @classmethod
    def load(cls, file: Path) -> Self:
        """Read a file that `save` wrote. Raises FileNotFoundError."""
        tensors = {name: value.astype(np.float64) for name, value in load_file(file).items()}
        return cls(tensors["mean"], tensors["scale"], tensors["weights"], float(tensors["bias"][0]))

    def save(self, file: Path) -> None:
        """Write safetensors in single precision."""
        tensors = {"mean": self.mean, "scale": self.scale, "weights": self.weights, "bias": np.array([self.bias])}
        save_file({name: np.ascontiguousarray(value, np.float32) for name, value in tensors.items()}, file)

    def log_odds(self, features: NDArray[np.float64]) -> NDArray[np.float64]:
        """Of each row of features."""
        return (features - self.mean) / self.scale @ self.weights + self.bias


class DomainJudge:
    """A scorer with the discriminant that belongs to its weights."""

    def __init__(self, scorer: Scorer, statistics: Path) -> None:
        self._scorer = scorer
        self._discriminant = Discriminant.load(statistics)

    def log_odds(self, images: Sequence[Pixels]) -> NDArray[np.float64]:
        """The log odds of each image to be outside the domain."""
        return self._discriminant.log_odds(self._scorer.layer_statistics(images))
