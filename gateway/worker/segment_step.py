"""Segmenters under test on a source image and its counterfactuals: label maps and confusion counts.

The reference is the mask; in a job without masks it is each model's own map of the original. `Prediction` explains the
columns. Only one map at a time is in memory as pixels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from gateway.analysis.segmentation import lost_classes, named_overlaps
from gateway.database.columns import PredictionColumns, StoredShare
from gateway.model_services.image_shelf import ImageShelf
from gateway.model_services.recorded import RecordedServices
from gateway.models_under_test.of_job import TestedModel
from gateway.worker.messages import TOP, ModelInput, payloads
from shared.images import decode, encode
from shared.label_maps import OTHER, VOID, Map, class_indices, confusion, pack_counts
from shared.seeds import derive_id

OTHER_NAME = "another class"


def segmenter_predictions(
    source_id: str,
    models: Sequence[TestedModel],
    classes: Sequence[str],
    batches: Sequence[Sequence[ModelInput]],
    mask: Map | None,
    metamorphic: bool,
    services: RecordedServices,
    shelf: ImageShelf,
    link: Callable[[str], str],
) -> list[PredictionColumns]:
    """Rows of `tables.Prediction`; their label maps are on the shelf.

    `batches`: images in batches, the original first. The reference is the mask, or in a `metamorphic` job the
    map of the original. Raises what services raise.
    """
    rows: list[PredictionColumns] = []
    for model in models:
        reference, original = mask, None
        for image_id, label_map in _maps(model, classes, batches, services, shelf, link):
            if reference is None and metamorphic:
                reference = np.where(label_map == OTHER, np.uint8(VOID), label_map)  # OTHER is not evaluated
            row = _row(source_id, model.name, image_id, label_map, reference, classes, shelf)
            if image_id is None:
                original = row["overlaps"]
            elif original is not None and row["overlaps"] is not None:
                row["flipped"] = bool(lost_classes(original, row["overlaps"]))
            rows.append(row)
        shelf.save({row["map_digest"] for row in rows if row["map_digest"] is not None})
    return rows


def _maps(
    model: TestedModel,
    classes: Sequence[str],
    batches: Sequence[Sequence[ModelInput]],
    services: RecordedServices,
    shelf: ImageShelf,
    link: Callable[[str], str],
) -> Iterator[tuple[str | None, Map]]:
    """The model's label maps one by one, with indices of the job's classes."""
    for batch in batches:
        reply = services.segment(model.segment_request(payloads(batch, shelf), link))
        table = class_indices(reply.classes, classes)
        for item, label_map in zip(batch, reply.maps, strict=True):
            yield item.counterfactual_id, table[decode(label_map.png, "L")]


def _row(
    source_id: str,
    model: str,
    image_id: str | None,
    label_map: Map,
    reference: Map | None,
    classes: Sequence[str],
    shelf: ImageShelf,
) -> PredictionColumns:
    pixels = np.bincount(np.minimum(label_map.ravel(), len(classes)), minlength=len(classes) + 1)
    names = [*classes, OTHER_NAME]
    most = [place for place in np.argsort(-pixels, kind="stable")[:TOP].tolist() if pixels[place]]
    shares: list[StoredShare] = [
        {"class": names[place], "probability": float(pixels[place] / label_map.size)} for place in most
    ]
    counts = None if reference is None else confusion(reference, label_map, len(classes))
    return {
        "id": derive_id("prediction", image_id or source_id, model),
        "counterfactual_id": image_id,
        "model": model,
        "predicted": shares[0]["class"],
        "probability": shares[0]["probability"],
        "ground_truth_probability": None,
        "rank": None,
        "flipped": None,
        "top": shares,
        "map_digest": shelf.keep(encode(label_map)),
        "overlaps": None if counts is None else named_overlaps(counts, classes),
        "confusion": None if counts is None else pack_counts(counts),
    }
