"""Models under test that are objects of this process (`contrafact.test`); a deployment never has one.

This module knows nothing about torch: `embedded.library.models` turns modules and pipelines into functions of images.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from numpy.typing import NDArray

from shared.media.images import Pixels
from shared.problems import InvalidInput
from shared.schemas.base import Kind
from shared.schemas.service import WeightsInfo


@dataclass(eq=False)  # batches are keyed by the object
class InProcessModel:
    """A model that the caller's own code computes.

    `predict` takes RGB images (height × width × 3, uint8, of any sizes) and returns an answer of the kind for each. It
    raises InvalidInput for what is none. `revision` names the weights: recorded predictions are keyed by it.
    """

    licence: ClassVar[str] = ""
    description: ClassVar[str] = "an object of the calling process"

    kind: Kind
    classes: list[str]
    predict: Callable[[Sequence[Pixels]], NDArray[Any] | Sequence[NDArray[Any]]]
    revision: str

    def run(self, images: Sequence[Pixels]) -> NDArray[Any] | Sequence[NDArray[Any]]:
        """One answer for each image. Raises InvalidInput if the caller's code raises."""
        try:
            return self.predict(images)
        except InvalidInput:
            raise
        except Exception as error:
            raise InvalidInput(f"the model raised {type(error).__name__}: {error}") from error

    def info(self, role: str) -> WeightsInfo:
        """The entry of `/v1/info`."""
        return WeightsInfo(role=role, id="in process", revision=self.revision, dtype="", licence="")


class AnsweringFunction(InProcessModel):
    """A function of the caller that answers questions: an image and a question in, text out. One call at a time."""

    def __init__(self, kind: Kind, function: Callable[[Pixels, str], str], revision: str) -> None:
        super().__init__(kind, [], self._no_images_alone, revision)
        self._function, self._turn = function, threading.Lock()

    def answer(self, image: Pixels, question: str) -> str:
        """What the function says of an RGB image (height × width × 3). Raises InvalidInput if it raises, or no text."""
        try:
            with self._turn:
                answer = self._function(image, question)
        except Exception as error:
            raise InvalidInput(f"the model raised {type(error).__name__}: {error}") from error
        if not isinstance(answer, str):
            raise InvalidInput(f"the model returned a {type(answer).__name__}; return the answer as text")
        return answer

    @staticmethod
    def _no_images_alone(images: Sequence[Pixels]) -> list[NDArray[Any]]:
        raise InvalidInput("this model answers questions; it makes nothing of images alone")
