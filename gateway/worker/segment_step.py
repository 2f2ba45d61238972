"""Segmenters under test on a source image and what was made of it: label maps kept, and counted against the reference.

The reference is the mask; in a job without masks it is each model's own map of the original (`Prediction` says how the
columns read). One map at a time is held as pixels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from gateway.analysis.segmentation import lost, named_overlaps
from gateway.model_services.recorded import ImageShelf, RecordedServices
from gateway.models_under_test.of_job import Tested
from shared.images import decode, encode
from shared.label_maps import OTHER, VOID, Map, class_indices, confusion, pack_counts
from shared.schemas.base import ImagePayload
from shared.seeds import derive_id

OTHER_NAME = "another class"
TOP = 5
Part = Sequence[tuple[str | None, ImagePayload]]


def segmented(
    source_id: str,
    models: Sequence[Tested],
    classes: Sequence[str],
    parts: Sequence[Part],
    reference: Map | None,
    metamorphic: bool,
    services: RecordedServices,
    shelf: ImageShelf,
    link: Callable[[str], str],
) -> list[dict[str, Any]]:
    """Rows of `tables.Prediction` without the job's and the image's ids; their label maps are on the shelf.

    `parts` are messages of images with the ids of their counterfactuals, the original (None) first of all. `reference`:
    the mask; where there is none in a `metamorphic` job, the map of the original. Raises what services raise.
    """
    rows = []
    for model in models:
        against, before = reference, None
        for image_id, found in _maps(model, classes, parts, services, link):
            if against is None and metamorphic:
                against = np.where(found == OTHER, np.uint8(VOID), found)  # the job has no such class to judge
            row = _row(image_id, found, against, classes, shelf)
            if image_id is None:
                before = row["overlaps"]
            elif before is not None:
                row["flipped"] = bool(lost(before, row["overlaps"]))
            seen = image_id or source_id
            rows.append({"id": derive_id("prediction", seen, model.name), "model": model.name, **row})
    shelf.save({row["map_digest"] for row in rows})
    return rows


def _maps(
    model: Tested,
    classes: Sequence[str],
    parts: Sequence[Part],
    services: RecordedServices,
    link: Callable[[str], str],
) -> Iterator[tuple[str | None, Map]]:
    """The model's label maps one by one, in the places of the job's classes."""
    for part in parts:
        reply = services.segment(model.segment_request([image for _, image in part], link))
        table = class_indices(reply.classes, classes)
        for (image_id, _), answered in zip(part, reply.maps, strict=True):
            yield image_id, table[decode(answered.png, "L")]


def _row(
    image_id: str | None, found: Map, against: Map | None, classes: Sequence[str], shelf: ImageShelf
) -> dict[str, Any]:
    pixels = np.bincount(np.minimum(found.ravel(), len(classes)), minlength=len(classes) + 1)
    names = [*classes, OTHER_NAME]
    most = [place for place in np.argsort(-pixels, kind="stable")[:TOP].tolist() if pixels[place]]
    shares = [{"class": names[place], "probability": float(pixels[place] / found.size)} for place in most]
    counts = None if against is None else confusion(against, found, len(classes))
    return {
        "counterfactual_id": image_id,
        "predicted": shares[0]["class"],
        "probability": shares[0]["probability"],
        "ground_truth_probability": None,
        "rank": None,
        "flipped": None,
        "top": shares,
        "map_digest": shelf.keep(encode(found)),
        "overlaps": None if counts is None else named_overlaps(counts, classes),
        "confusion": None if counts is None else pack_counts(counts),
    }
