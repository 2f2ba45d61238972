"""Classifiers under test on a source image and its counterfactuals: rows of predictions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from gateway.database.columns import PredictionColumns
from gateway.model_services.image_shelf import ImageShelf
from gateway.model_services.recorded import RecordedServices
from gateway.models_under_test.of_job import TestedModel
from gateway.worker.messages import TOP, ModelInput, payloads
from shared.seeds import derive_id


def classifier_predictions(
    source_id: str,
    models: Sequence[TestedModel],
    batches: Sequence[Sequence[ModelInput]],
    ground_truth: str | None,
    services: RecordedServices,
    shelf: ImageShelf,
    link: Callable[[str], str],
) -> Iterator[PredictionColumns]:
    """Rows of `tables.Prediction`. `batches`: images in batches, the original first. Raises what services raise."""
    for model in models:
        original: str | None = None
        for batch in batches:
            reply = services.predict(model.request(payloads(batch, shelf), link))
            for item, values in zip(batch, reply.probabilities, strict=True):
                probabilities = dict(zip(reply.classes, values, strict=True))
                row = _row(source_id, model.name, item.counterfactual_id, probabilities, ground_truth, original)
                original = original or row["predicted"]
                yield row


def _row(
    source_id: str,
    model: str,
    counterfactual_id: str | None,
    probabilities: Mapping[str, float],
    ground_truth: str | None,
    original: str | None,
) -> PredictionColumns:
    """`original`: the class that the model predicts for the original; None for the original itself."""
    ranked = sorted(probabilities.items(), key=lambda item: -item[1])
    predicted, probability = ranked[0]
    true = None if ground_truth is None else probabilities.get(ground_truth)
    return {
        "id": derive_id("prediction", counterfactual_id or source_id, model),
        "counterfactual_id": counterfactual_id,
        "model": model,
        "predicted": predicted,
        "probability": probability,
        "ground_truth_probability": true,
        "rank": None if true is None else 1 + sum(value > true for value in probabilities.values()),
        "flipped": None if counterfactual_id is None else predicted != original,
        "top": [{"class": name, "probability": value} for name, value in ranked[:TOP]],
        "map_digest": None,
        "overlaps": None,
        "confusion": None,
    }
