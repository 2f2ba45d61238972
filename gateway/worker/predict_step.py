"""Models under test on a source image and its counterfactuals: rows of predictions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gateway.database.columns import PredictionColumns
from gateway.kinds import Scored
from gateway.methods.counterfactual import MethodImage
from gateway.model_services.image_shelf import ImageShelf
from gateway.model_services.recorded import RecordedServices
from gateway.worker.image_work import ImageWork, ModelInput, payloads
from shared.seeds import derive_id


def predictions(
    work: ImageWork,
    source: MethodImage,
    batches: Sequence[Sequence[ModelInput]],
    services: RecordedServices,
    shelf: ImageShelf,
    link: Callable[[str], str],
) -> list[PredictionColumns]:
    """Rows of `tables.Prediction`; their images are saved. `batches`: images in batches, the original first.

    In a job without ground truth a model's own answer for the original is the truth. Raises what services raise.
    """
    endpoint, ground_truth = work.kind.endpoint, work.kind.truth_of(source)
    rows: list[PredictionColumns] = []
    for model in work.models:
        kind, truth, original = work.kind_of(model.name), ground_truth, None
        for batch in batches:
            images = payloads(batch, shelf)
            request = model.request(endpoint, images, link, kind.asks(source))
            reply = services.call(endpoint, request)
            for item, image, answer in zip(batch, images, kind.answers(reply, work.classes), strict=True):
                if truth is None and work.metamorphic:
                    truth = kind.as_truth(answer)
                still_true = truth if truth is None or item.lost is None else kind.without(truth, item.lost)
                still_true = still_true if still_true is None else kind.after(still_true, item.values)
                scored: Scored = kind.judge(answer, still_true, work.classes)
                if still_true is not None and item.lost is not None:
                    with_added = kind.with_added(still_true, scored, source.image, image, services)
                    scored = scored if with_added is still_true else kind.judge(answer, with_added, work.classes)
                if original is None:
                    original = scored = kind.baseline(scored, request, reply, services)
                rows.append(
                    {
                        "id": derive_id("prediction", item.counterfactual_id or work.id, model.name),
                        "counterfactual_id": item.counterfactual_id,
                        "model": model.name,
                        "predicted": scored.predicted,
                        "probability": scored.probability,
                        "flipped": None if item.counterfactual_id is None else kind.changed(original, scored),
                        "scores": scored.scores,
                        "detail": scored.detail,
                        "image_digest": None if scored.image is None else shelf.keep(scored.image),
                    }
                )
        shelf.save({row["image_digest"] for row in rows if row["image_digest"] is not None})
    return rows
