"""Housekeeping: removes what no row needs from database and object store, some time after its last use.

    deleted jobs     their rows (`gateway.operations.deletion`)
    recorded calls   about source images that no job of their owner has any more
    vectors          of recorded calls without a row
    uploads          that no job of their owner has, some weeks after the upload
    objects          of images without a row (left by a crash): they get a row, and then the next line applies
    images           that no row refers to: marked when first seen, removed with their objects after the grace period
    reports          of deleted jobs
    models           packages of models under test without a row: deleted models, or left by a crash during an upload
    repairs          objects of repairs that have no row or were cancelled

Code that is about to refer to an image calls `gateway.storage.images.protect` first, which clears the mark. Removal
locks the row and checks again. So housekeeping can run at any time, beside any work and other housekeeping, and can be
killed. Nothing else may run during housekeeping without a grace period. `contrafact housekeeping` runs it now;
`--no-grace` skips the grace period.

Removes objects of the object store without a row: left by a crash, or of deleted jobs, models and repairs.

Removes rows that no job needs any more: recorded calls, uploads, and images with their objects.

Searches lock nothing. The statement that removes checks again.

Clean the objects of the store one by one; an error on one object does not stop the others.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from typing import Any

from sqlalchemy import ColumnElement, Delete, Row, Select, Update, delete, exists, or_, select, tuple_, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from gateway.database.sessions import Sessions, database_now, insert_missing, reading
from gateway.database.tables import (
    Chore,
    Image,
    Job,
    ModelUnderTest,
    OwnedImage,
    RecordedCall,
    Repair,
    Report,
    SourceImage,
    Table,
    Upload,
)
from gateway.model_services.image_shelf import canonical_png, image_row
from gateway.operations.deletion import remove_rows
from gateway.settings import Settings
from shared.media.storage import ObjectMissing, ObjectStore, StoredObject, call_key, image_key, model_key
from shared.problems import DependencyFailed, InvalidInput

MOST_ERRORS = 20  # in a row; then the store is probably away, and each further attempt may last until a timeout


@dataclass(slots=True)
class ObjectCleaner:
    """`errors` counts the objects that failed; they stay for the next run."""

    store: ObjectStore
    errors: int = 0
    _in_a_row: int = 0

    def delete(self, key: str) -> bool:
        """Delete an object. Returns whether that succeeded."""
        return self.attempt(key, lambda: self.store.delete(key))

    def attempt(self, key: str, work: Callable[[], None]) -> bool:
        """Run `work` on an object. Returns whether it succeeded. After `MOST_ERRORS` in a row, nothing more is run."""
        if self._in_a_row >= MOST_ERRORS:
            return False
        try:
            work()
        except Exception as error:  # no error on one object may stop the others
            self.errors += 1
            self._in_a_row += 1
            logger.warning("housekeeping leaves %s for its next run: %s: %s", key, type(error).__name__, error)
            return False
        self._in_a_row = 0
        return True

    def refuse_broken(self) -> None:
        """Raises DependencyFailed if the run gave up."""
        if self._in_a_row >= MOST_ERRORS:
            raise DependencyFailed(f"{MOST_ERRORS} objects in a row could not be cleaned; the log says why")


IMAGES_PER_TRANSACTION = 50  # their rows are locked while their objects are deleted
ROWS_PER_STATEMENT = 500
KEYS_PER_QUERY = 500
NAME, LISTING = "housekeeping", "listing of the object store"
LOOK_SECONDS = 60.0
_BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)


logger = logging.getLogger("contrafact.housekeeping")


@dataclass(frozen=True, slots=True)
class Graces:
    """Grace periods in seconds: of rows and objects that nothing refers to, and of uploads since they were sent."""

    unreferenced: float
    uploads: float


def graces_of(settings: Settings) -> Graces:
    """What the settings say."""
    return Graces(settings.grace_seconds, settings.upload_grace_seconds)


@dataclass(slots=True)
class Removed:
    """Counts of what one housekeeping removed, of the objects without a row that it met, and of its errors."""

    recorded_calls: int = 0
    vectors: int = 0
    uploads: int = 0
    images: int = 0
    reports: int = 0
    models: int = 0
    repairs: int = 0
    found_objects: int = 0
    errors: int = 0


def housekeeping_loop(sessions: Sessions, store: ObjectStore, settings: Settings, stopping: threading.Event) -> None:
    """Run housekeeping whenever it is due, until stopped. One thread of a worker does this.

    The object store is listed less often than the database is read: a listing takes requests and time for each object.
    """
    seconds = settings.housekeeping_seconds
    while not stopping.wait(min(LOOK_SECONDS, seconds)):
        try:
            remove_rows(sessions, stopping.wait)  # as long as it works: others need the database too
            with sessions.begin() as session:
                due = is_due(session, seconds)
                listing = due and is_due(session, settings.listing_seconds, LISTING)
            if due:
                graces = graces_of(settings)
                removed = run_housekeeping(sessions, store, graces, lambda: not stopping.is_set(), listing)
                logger.info("housekeeping removed %s", asdict(removed))
        except (DBAPIError, DependencyFailed) as error:  # database or store are away: the next run will do it
            logger.warning("housekeeping broke off: %s", error)
        except Exception:  # a bug must not end the thread: the next run does what it can
            logger.exception("housekeeping broke off")


def is_due(session: Session, seconds: float, name: str = NAME) -> bool:
    """Whether the last housekeeping began at least `seconds` ago. If so, records that the caller's begins now.

    One that began later than now was dated by a clock that has been set back since.
    """
    insert_missing(session, Chore, [{"name": name, "begun_at": _BEGINNING}])
    begun = session.scalar(
        update(Chore)
        .where(Chore.name == name, or_(Chore.begun_at <= database_now(-seconds), Chore.begun_at > database_now()))
        .values(begun_at=database_now())
        .returning(Chore.name)
        .execution_options(synchronize_session=False)
    )
    return begun is not None


def run_housekeeping(
    sessions: Sessions,
    store: ObjectStore,
    graces: Graces,
    go_on: Callable[[], bool] = lambda: True,
    listing: bool = True,
) -> Removed:
    """Remove what is not needed, in small portions, while `go_on()` holds.

    `listing`: also list the whole object store, and not only its repairs, for objects without a row. An object
    that fails is counted in `errors` and stays for the next run. Raises what the database raises, and DependencyFailed
    when the store is away.
    """
    removed, grace, cleaner = Removed(), graces.unreferenced, ObjectCleaner(store)
    remove_rows(sessions, lambda _: not go_on())
    removed.recorded_calls = remove_calls(sessions, grace, go_on)
    removed.uploads = remove_uploads(sessions, graces.uploads, go_on)
    if listing:
        removed.found_objects = add_missing_rows(sessions, cleaner, grace, go_on)
    mark_images(sessions, go_on)
    removed.images = remove_images(sessions, cleaner, grace, go_on)
    if listing:
        removed.vectors = remove_vectors(sessions, cleaner, grace, go_on)
        removed.reports = remove_reports(sessions, cleaner, grace, go_on)
        removed.models = remove_models(sessions, cleaner, grace, go_on)
    removed.repairs = remove_repairs(sessions, cleaner, grace, go_on)  # few objects, and a lease keeps a trainer
    removed.errors = cleaner.errors
    cleaner.refuse_broken()
    return removed


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
