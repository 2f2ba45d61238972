"""Models under test that are objects of this process (`contrafact.test`); a deployment never has one.

This module knows nothing about torch: `embedded.library.models` turns modules and pipelines into functions of images.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from shared.images import Pixels
from shared.problems import InvalidInput
from shared.schemas.base import Kind
from shared.schemas.service import WeightsInfo

SUM_TOLERANCE = 0.01


@dataclass(eq=False)  # batches are keyed by the object
class InProcessModel:
    """A classifier that the caller's own code computes.

    `predict` takes RGB images (height × width × 3, uint8, of any sizes) and returns images × classes, each row summing
    to 1. `revision` names its weights: recorded predictions are keyed by it.
    """

    kind: ClassVar[Kind] = "classification"
    licence: ClassVar[str] = ""
    description: ClassVar[str] = "an object of the calling process"

    classes: list[str]
    predict: Callable[[Sequence[Pixels]], NDArray[np.float64]]
    revision: str

    def probabilities(self, images: Sequence[Pixels]) -> NDArray[np.float64]:
        """Images × classes. Raises InvalidInput if the caller's code raises or returns no probabilities."""
        try:
            rows = np.asarray(self.predict(images), np.float64)
        except InvalidInput:
            raise
        except Exception as error:
            raise InvalidInput(f"the model raised {type(error).__name__}: {error}") from error
        refuse_other_rows(rows, len(images), len(self.classes))
        return rows

    def info(self, role: str) -> WeightsInfo:
        """The entry of `/v1/info`."""
        return WeightsInfo(role=role, id="in process", revision=self.revision, dtype="", licence="")


def refuse_other_rows(rows: NDArray[np.float64], images: int, classes: int) -> None:
    """Raise InvalidInput unless `rows` are probabilities, images × classes. NaN passes: it fails its own image."""
    if rows.shape != (images, classes):
        raise InvalidInput(
            f"the model returned shape {rows.shape} for {images} images; it must return images × {classes} classes"
        )
    finite = rows[np.isfinite(rows).all(axis=1)]
    if len(finite) and (finite.min() < -1e-6 or not np.allclose(finite.sum(axis=1), 1, atol=SUM_TOLERANCE)):
        raise InvalidInput('the model returned rows that are not probabilities; set output="logits"')
