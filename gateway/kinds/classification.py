"""Classification: one class for an image, right or wrong.

`detail` of a prediction: `rank`, the place of the truth (1 is first; acc@k is `rank <= k`), and `truth_probability`,
its softmax value even outside `top`, which holds the five most probable classes. Without a truth, or for one that the
model does not know, both are None and there is no score.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from gateway.kinds.task_kind import TOP, Scored, TaskKind
from shared.endpoints import Services
from shared.schemas.base import ImagePayload
from shared.schemas.evaluation import PredictReply

Probabilities = Mapping[str, float]


def _answers(reply: PredictReply, classes: Sequence[str]) -> Iterator[Probabilities]:
    for values in reply.probabilities:
        yield dict(zip(reply.classes, values, strict=True))


def _judge(probabilities: Probabilities, truth: str | None, classes: Sequence[str]) -> Scored:
    ranked = sorted(probabilities.items(), key=lambda item: -item[1])
    predicted, probability = ranked[0]
    true = None if truth is None else probabilities.get(truth)
    rank = None if true is None else 1 + sum(value > true for value in probabilities.values())
    return Scored(
        predicted,
        probability,
        {} if truth is None or rank is None else {truth: float(rank == 1)},
        {
            "rank": rank,
            "truth_probability": true,
            "top": [{"name": name, "probability": value} for name, value in ranked[:TOP]],
        },
    )


def _label(label: str | None, mask: ImagePayload | None) -> str | None:
    return label


def _most_probable(probabilities: Probabilities) -> str:
    return max(probabilities, key=lambda name: probabilities[name])


def _changed(original: Scored, image: Scored) -> bool:
    return original.predicted != image.predicted


CLASSIFICATION = TaskKind(
    name="classification",
    metric="accuracy",
    endpoint=Services.predict,
    answers=_answers,
    truth_of=_label,
    as_truth=_most_probable,
    judge=_judge,
    changed=_changed,
)
