"""A finished segmentation job for tests of results and pages: noisy maps of drawn masks. No model was run here."""

from __future__ import annotations

from functools import cache

import numpy as np
from sqlalchemy.orm import Session

from gateway.database.sessions import Sessions
from gateway.database.tables import LOCAL_OWNER, Counterfactual, Image, Job, OwnedImage, Owner, Prediction, SourceImage
from gateway.methods import read_method
from gateway.report.build import build_report
from shared.media.images import CanonicalImage, from_array
from shared.media.label_maps import OTHER, Map, confusion, named_overlaps, pack_counts
from shared.media.storage import ObjectStore, image_key
from shared.schemas.scores import lost_labels, with_mean
from tests.support.job_counts import store_counts
from tests.support.snapshots import Snapshot, put_unsynced, take_snapshot

CLASSES = ["sky", "straße, naß", 'a "quoted" car', "tram"]
MODEL = "segmenter"
SIDE = 12
VALUES = ("night", "rain")


def add_segmented_job(
    sessions: Sessions, store: ObjectStore, job: str = "segmented", *, sources: int = 14, masks: bool = True
) -> None:
    """A job with a report: each source image has a null arm and two edits. With masks, the last image has none."""
    _snapshot(job, sources, masks).restore(sessions, store)


@cache
def _snapshot(job: str, sources: int, masks: bool) -> Snapshot:
    return take_snapshot(lambda sessions, store: _fill(sessions, store, job, sources, masks))


def _fill(sessions: Sessions, store: ObjectStore, job: str, sources: int, masks: bool) -> None:
    with sessions.begin() as session:
        session.merge(Owner(id=LOCAL_OWNER, name="local"))
        session.flush()
        columns = {"task_description": "segment the street", "profile": "tiny", "kind": "segmentation"}
        methods = [read_method("dillema", {})]
        session.add(Job(id=job, owner_id=LOCAL_OWNER, state="done", classes=CLASSES, models=[MODEL], methods=methods,
                        spec={}, **columns))  # fmt: skip
        session.flush()
        for position in range(sources):
            _add_source(session, store, job, position, has_mask=masks and position < sources - 1, metamorphic=not masks)
        store_counts(session, job)
    build_report(sessions, store, job, [])


def _add_source(
    session: Session, store: ObjectStore, job: str, position: int, *, has_mask: bool, metamorphic: bool
) -> None:
    random = np.random.default_rng(position)
    mask = random.integers(0, 3 + position % 2, (SIDE, SIDE)).astype(np.uint8)  # every other image has a tram
    image = _keep(session, store, np.repeat(60 * mask[..., None], 3, axis=2))
    mask_columns = {"mask_digest": _keep(session, store, mask).digest, "mask_classes": _names(mask)}
    source = SourceImage(id=f"{job}-{position}", job_id=job, position=position, digest=image.digest, state="done",
                         **(mask_columns if has_mask else {}))  # fmt: skip
    session.add(source)
    session.flush()
    arms = [("null", ""), *(("edit", value) for value in VALUES)]
    rows = [_arm(source, ordinal, *arm, image.digest) for ordinal, arm in enumerate(arms)]
    session.add_all(rows)
    session.flush()
    reference = mask if has_mask else None
    for row in (None, *rows):
        found = _noisy(mask, random, 0.1 if row is None or row.arm == "null" else 0.4)
        if reference is None and metamorphic:
            reference = found.clip(max=len(CLASSES) - 1)
        session.add(_prediction(source, row, found, reference, _keep(session, store, found).digest))
    session.flush()


def _names(mask: Map) -> list[str]:
    return [CLASSES[place] for place in np.unique(mask)]


def _noisy(mask: Map, random: np.random.Generator, share: float) -> Map:
    """The mask with some pixels of other classes, and a few of a class that the job does not have."""
    found = np.where(random.random(mask.shape) < share * random.random(), random.integers(0, 4, mask.shape), mask)
    return np.where(random.random(mask.shape) < 0.005, OTHER, found).astype(np.uint8)


def _arm(source: SourceImage, ordinal: int, arm: str, value: str, digest: str) -> Counterfactual:
    edit = arm == "edit"
    change = {"factor": "weather", "from_phrase": "day", "to_phrase": value, "from_value": "day", "to_value": value}
    refused = edit and source.position % 5 == 3 and value == "rain"
    return Counterfactual(
        id=f"{source.id}-{ordinal}",
        job_id=source.job_id,
        source_image_id=source.id,
        position=source.position,
        method="dillema",
        ordinal=ordinal,
        arm=arm,
        null_ordinal=0 if edit else None,
        null_check=("structure" if source.position % 6 == 5 else "") if edit else None,
        seed=0,
        changes=[change] if edit else [],
        factor="weather" if edit else None,
        from_value="day" if edit else None,
        to_value=value or None,
        image_digest=digest,
        accepted=not refused,
        check="shapes" if refused else "",
        scores={"shapes": 0.9} if source.position % 3 else {},
    )


def _prediction(
    source: SourceImage, row: Counterfactual | None, found: Map, reference: Map | None, digest: str
) -> Prediction:
    counts = None if reference is None else confusion(reference, found, len(CLASSES))
    scores = {} if counts is None else with_mean(named_overlaps(counts, CLASSES))
    return Prediction(
        id=f"{source.id}-{'' if row is None else row.ordinal}-seen",
        job_id=source.job_id,
        source_image_id=source.id,
        counterfactual_id=None if row is None else row.id,
        model=MODEL,
        predicted=CLASSES[int(found.clip(max=3)[0, 0])],
        probability=0.5,
        flipped=None if row is None or counts is None else bool(lost_labels(scores, scores)),
        scores=scores,
        detail={"top": [], "confusion": None if counts is None else [*pack_counts(counts)]},
        image_digest=digest,
    )


def _keep(session: Session, store: ObjectStore, pixels: Map) -> CanonicalImage:
    image = from_array(np.asarray(pixels, np.uint8))
    put_unsynced(store, image_key(image.digest), image.png)
    session.merge(Image(digest=image.digest, mode=image.mode, width=SIDE, height=SIDE, bytes=len(image.png)))
    session.flush()
    session.merge(OwnedImage(owner_id=LOCAL_OWNER, digest=image.digest))
    return image
