"""The value that says what is particular to a kind of task, and what it makes of a reply."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from shared.endpoints import Endpoint
from shared.schemas.base import ImagePayload, JsonObject, Kind
from shared.schemas.effects import Metric

TOP = 5  # classes that a prediction keeps

Answer = TypeVar("Answer")
Truth = TypeVar("Truth")


class Scored(NamedTuple):
    """A prediction for one image, and its scores by label of the truth, 0 … 1; without truth, none.

    `predicted` and `probability` are what is shown of it first. Kinds with several labels in an image have their mean
    under `ALL_CLASSES`. `detail` is the kind's own. `image`: a PNG of the prediction.
    """

    predicted: str
    probability: float
    scores: dict[str, float]
    detail: JsonObject
    image: bytes | None = None


@dataclass(frozen=True, slots=True)
class TaskKind(Generic[Answer, Truth]):
    """Everything about a kind that is not about all kinds.

    `answers`: of a reply of the `endpoint`, for each image, by the classes of the job. `truth_of` reads the ground
    truth of a source image, from its label and its mask. `as_truth` turns the answer for an original into the truth of
    a job without ground truth. `changed`: whether an edit changed the prediction, given that for the original; None if
    it is not known.
    """

    name: Kind
    metric: Metric
    endpoint: Endpoint[Any, Any]
    answers: Callable[[Any, Sequence[str]], Iterator[Answer]]
    truth_of: Callable[[str | None, ImagePayload | None], Truth | None]
    as_truth: Callable[[Answer], Truth]
    judge: Callable[[Answer, Truth | None, Sequence[str]], Scored]
    changed: Callable[[Scored, Scored], bool | None]
