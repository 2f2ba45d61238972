"""Removes objects of the object store without a row: left by a crash, or of deleted jobs, models and repairs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from itertools import islice

from sqlalchemy import select
from sqlalchemy.orm import Session

from gateway.database.sessions import Sessions, insert_missing, reading
from gateway.database.tables import Image, ModelUnderTest, RecordedCall, Repair, Report
from gateway.model_services.image_shelf import canonical_png, image_row
from gateway.operations.object_cleaner import ObjectCleaner
from shared.problems import InvalidInput
from shared.storage import ObjectMissing, ObjectStore, StoredObject, call_key, image_key, model_key

KEYS_PER_QUERY = 500


def add_missing_rows(sessions: Sessions, cleaner: ObjectCleaner, grace: float, go_on: Callable[[], bool]) -> int:
    """Add a row for each image object without one, so that it is removed like any other. Returns their number."""

    def needed_keys(session: Session, keys: list[str]) -> set[str]:
        query = select(Image.digest).where(Image.digest.in_(map(_name_of, keys)))
        return set(map(image_key, session.scalars(query)))

    return sum(
        cleaner.attempt(key, partial(_add_row, sessions, cleaner.store, key))
        for key in _without_row(sessions, _older(cleaner.store.iterate("images/"), grace), go_on, needed_keys)
    )


def _add_row(sessions: Sessions, store: ObjectStore, key: str) -> None:
    try:
        image = canonical_png(store.get(key))
    except ObjectMissing:
        return
    except InvalidInput:
        image = None
    if image is None or image_key(image.digest) != key:
        store.delete(key)  # its content does not match its digest, so nobody can use it
        return
    with sessions.begin() as session:
        insert_missing(session, Image, [image_row(image)])


def remove_reports(sessions: Sessions, cleaner: ObjectCleaner, grace: float, go_on: Callable[[], bool]) -> int:
    """Remove the reports of deleted jobs."""

    def needed_keys(session: Session, keys: list[str]) -> set[str]:
        return set(session.scalars(select(Report.object_key).where(Report.object_key.in_(keys))))

    objects = _older(cleaner.store.iterate("reports/"), grace)
    return sum(map(cleaner.delete, _without_row(sessions, objects, go_on, needed_keys)))


def remove_vectors(sessions: Sessions, cleaner: ObjectCleaner, grace: float, go_on: Callable[[], bool]) -> int:
    """Remove the vectors of recorded calls without a row.

    A call that is recorded again meanwhile may lose its vectors to this; then it is sent once more.
    """

    def needed_keys(session: Session, keys: list[str]) -> set[str]:
        query = select(RecordedCall.key).where(RecordedCall.key.in_(map(_name_of, keys)))
        return set(map(call_key, session.scalars(query)))

    objects = _older(cleaner.store.iterate("calls/"), grace)
    return sum(map(cleaner.delete, _without_row(sessions, objects, go_on, needed_keys)))


def remove_models(sessions: Sessions, cleaner: ObjectCleaner, grace: float, go_on: Callable[[], bool]) -> int:
    """Remove model packages without a row.

    Keys are unique, so an object without a row after the grace period never gets one.
    """

    def needed_keys(session: Session, _: list[str]) -> set[str]:
        rows = session.execute(select(ModelUnderTest.digest, ModelUnderTest.id)).all()
        return {model_key(digest, model_id) for digest, model_id in rows}

    objects = _older(cleaner.store.iterate("models/"), grace)
    return sum(map(cleaner.delete, _without_row(sessions, objects, go_on, needed_keys)))


def remove_repairs(sessions: Sessions, cleaner: ObjectCleaner, grace: float, go_on: Callable[[], bool]) -> int:
    """Remove the objects of repairs that have no row or were cancelled.

    An order is stored before its row, so an object without a row after the grace period never gets one. A lease
    (`grant.json`) is stored after its row, so one without a row goes at once, which ends its trainer.
    """
    removed = 0
    listed = cleaner.store.iterate("repairs/")
    objects = (item for item in listed if item.key.endswith("/grant.json") or _is_older(item, grace))
    while go_on() and (portion := [item.key for item in islice(objects, KEYS_PER_QUERY)]):
        with reading(sessions) as session:
            needed = set(session.scalars(select(Repair.id).where(Repair.state != "cancelled")))
        for key in portion:
            if key.split("/")[1] not in needed:
                removed += cleaner.delete(key)
    return removed


def _without_row(
    sessions: Sessions,
    objects: Iterator[StoredObject],
    go_on: Callable[[], bool],
    needed: Callable[[Session, list[str]], set[str]],
) -> Iterator[str]:
    """The keys of those objects that are not among the needed keys of a portion."""
    while go_on() and (portion := [item.key for item in islice(objects, KEYS_PER_QUERY)]):
        with reading(sessions) as session:
            with_row = needed(session, portion)
        yield from sorted(set(portion) - with_row)


def _name_of(key: str) -> str:
    """The digest or key of the row that an object belongs to: its name without folders and suffix."""
    return key.rpartition("/")[2].partition(".")[0]


def _older(objects: Iterator[StoredObject], seconds: float) -> Iterator[StoredObject]:
    """Objects last written at least `seconds` ago by the store's clock; for 0, all objects."""
    return (item for item in objects if _is_older(item, seconds))


def _is_older(item: StoredObject, seconds: float) -> bool:
    return seconds <= 0 or (datetime.now(UTC) - item.modified).total_seconds() >= seconds
