"""Removes rows that no job needs any more: recorded calls, uploads, and images with their objects.

Searches lock nothing. The statement that removes checks again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Delete, Row, Select, Update, delete, exists, or_, select, tuple_, update

from gateway.database.sessions import Sessions, database_now, reading
from gateway.database.tables import Image, Job, OwnedImage, RecordedCall, SourceImage, Table, Upload
from gateway.operations.object_cleaner import ObjectCleaner
from shared.storage import image_key

IMAGES_PER_TRANSACTION = 50  # their rows are locked while their objects are deleted
ROWS_PER_STATEMENT = 500


def remove_calls(sessions: Sessions, grace: float, go_on: Callable[[], bool]) -> int:
    """Remove recorded calls about source images that no job of their owner has. Returns their number."""
    call = RecordedCall
    unneeded = call.created_at <= database_now(-grace), ~_in_a_job(call.owner_id, call.source_digest)
    query, total, after = select(call.key).where(*unneeded).order_by(call.key), 0, ""
    while go_on() and (portion := _first_rows(sessions, query.where(call.key > after))):
        after = portion[-1].key
        removal = delete(call).where(call.key.in_([row.key for row in portion]), *unneeded)
        total += _execute(sessions, removal)
    return total


def remove_uploads(sessions: Sessions, grace: float, go_on: Callable[[], bool]) -> int:
    """Remove uploads that no job of their owner has. Returns their number."""
    key = tuple_(Upload.owner_id, Upload.original_digest)
    unneeded = Upload.created_at <= database_now(-grace), ~_in_a_job(Upload.owner_id, Upload.digest)
    query = select(Upload.owner_id, Upload.original_digest).where(*unneeded)
    query, total, after = query.order_by(Upload.owner_id, Upload.original_digest), 0, ("", "")
    while go_on() and (portion := _first_rows(sessions, query.where(key > after))):
        after = portion[-1].owner_id, portion[-1].original_digest
        removal = delete(Upload).where(key.in_([tuple(row) for row in portion]), *unneeded)
        total += _execute(sessions, removal)
    return total


def _in_a_job(owner_id: Any, digest: Any) -> ColumnElement[bool]:
    """Whether a job of the owner has a source image with the digest."""
    return (
        exists()
        .where(SourceImage.digest == digest, SourceImage.job_id == Job.id, Job.owner_id == owner_id)
        .correlate(RecordedCall, Upload)
    )


def mark_images(sessions: Sessions, go_on: Callable[[], bool]) -> None:
    """Mark images that no row refers to. `remove_images` searches again, under the lock."""
    query = select(Image.digest).where(Image.unreferenced_since.is_(None), ~_is_referenced()).order_by(Image.digest)
    after = ""
    while go_on() and (portion := _first_rows(sessions, query.where(Image.digest > after))):
        after = portion[-1].digest
        unmarked = Image.digest.in_([row.digest for row in portion]), Image.unreferenced_since.is_(None)
        _execute(sessions, update(Image).where(*unmarked).values(unreferenced_since=database_now()))


def remove_images(sessions: Sessions, cleaner: ObjectCleaner, grace: float, go_on: Callable[[], bool]) -> int:
    """Remove images, with their objects, that were marked at least `grace` seconds ago. Returns their number."""
    total, after = 0, ""
    while go_on():
        with sessions.begin() as session:
            # Two statements: the second sees what was committed before the first had its locks.
            locked = session.scalars(
                select(Image.digest)
                .where(Image.unreferenced_since <= database_now(-grace), Image.digest > after)
                .order_by(Image.digest)
                .limit(IMAGES_PER_TRANSACTION)
                .with_for_update(skip_locked=True)
            ).all()
            unneeded = session.scalars(select(Image.digest).where(Image.digest.in_(locked), ~_is_referenced())).all()
            # Before its row: a row promises that the object is there.
            deleted = [digest for digest in unneeded if cleaner.delete(image_key(digest))]
            session.execute(delete(OwnedImage).where(OwnedImage.digest.in_(deleted)))
            session.execute(delete(Image).where(Image.digest.in_(deleted)))
            needed = update(Image).where(Image.digest.in_(set(locked) - set(unneeded))).values(unreferenced_since=None)
            session.execute(needed.execution_options(synchronize_session=False))
        total += len(deleted)
        if len(locked) < IMAGES_PER_TRANSACTION:
            break
        after = locked[-1]
    return total


def _is_referenced() -> ColumnElement[bool]:
    """Whether a row refers to the image. `OwnedImage` does not count: it only says who may see the image."""
    digest = Image.__table__.c.digest
    columns = [
        key.parent
        for table in Table.metadata.sorted_tables
        for key in table.foreign_keys
        if key.column is digest and table is not OwnedImage.__table__
    ]
    return or_(*(exists().where(column == digest).correlate(Image) for column in columns))


def _first_rows(sessions: Sessions, query: Select[*tuple[Any, ...]]) -> Sequence[Row[*tuple[Any, ...]]]:
    """The first rows of a search. It locks nothing: it may read many rows that stay."""
    with reading(sessions) as session:
        return session.execute(query.limit(ROWS_PER_STATEMENT)).all()


def _execute(sessions: Sessions, change: Delete | Update) -> int:
    """The number of rows that a statement of its own transaction changed."""
    with sessions.begin() as session:
        result = session.execute(change.execution_options(synchronize_session=False))
        return int(result.rowcount)  # type: ignore[attr-defined]
