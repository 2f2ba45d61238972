"""Segmentation jobs on a small site."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gateway.database.tables import LOCAL_OWNER, Job, Owner, SourceImage
from gateway.model_services.image_shelf import ImageShelf
from shared.media.images import encode
from shared.media.label_maps import VOID
from tests.support.job_counts import store_counts
from tests.support.job_methods import job_methods
from tests.support.small_services import ROAD_CLASSES, SEGMENTER
from tests.support.work_site import METHODS, Site

MASKS = {"classes": [{"name": name, "index": place} for place, name in enumerate(ROAD_CLASSES)], "void": [255]}


Drawn = tuple[NDArray[np.uint8], NDArray[np.uint8] | None]


def scenes(count: int, seed: int = 5) -> list[Drawn]:
    """Pictures whose brightness is their class, with masks of that class except for a void row."""
    random = np.random.default_rng(seed)
    pairs: list[Drawn] = []
    for _ in range(count):
        mask = random.integers(0, 3, (12, 12)).astype(np.uint8)
        mask[0] = VOID
        shades = np.array([40, 120, 200], np.uint8)[mask.clip(max=2)]
        pairs.append((np.repeat(shades[..., None], 3, axis=2), mask))
    return pairs


def add_job(site: Site, job_id: str, pairs: Sequence[Drawn], methods: Sequence[dict[str, object]] = METHODS) -> None:
    with site.sessions.begin() as session:
        session.merge(Owner(id=LOCAL_OWNER, name="local"))
    shelf = ImageShelf(site.store, site.sessions, LOCAL_OWNER)
    stored = [(shelf.keep(encode(image)), None if mask is None else shelf.keep(encode(mask))) for image, mask in pairs]
    shelf.save({digest for pair in stored for digest in pair if digest})
    with site.sessions.begin() as session:
        masked = any(mask is not None for _, mask in pairs)
        session.add(
            Job(
                id=job_id, owner_id=LOCAL_OWNER, task_description="segment the street", kind="segmentation",
                classes=ROAD_CLASSES, methods=job_methods(methods), models=[SEGMENTER], profile="tiny",
                spec={"masks": MASKS} if masked else {},
            )
        )  # fmt: skip
        session.flush()
        session.add_all(
            SourceImage(
                id=f"{job_id}-{n}", job_id=job_id, position=n, digest=image, mask_digest=mask,
                mask_classes=None if mask is None else ROAD_CLASSES,
            )
            for n, (image, mask) in enumerate(stored)
        )  # fmt: skip
        store_counts(session, job_id)
