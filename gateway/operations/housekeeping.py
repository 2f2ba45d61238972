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
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime

from sqlalchemy import update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from gateway.database.sessions import Sessions, database_now, insert_missing
from gateway.database.tables import Chore
from gateway.operations.deletion import remove_rows
from gateway.operations.object_cleaner import ObjectCleaner
from gateway.operations.objects_without_row import (
    add_missing_rows,
    remove_models,
    remove_repairs,
    remove_reports,
    remove_vectors,
)
from gateway.operations.unneeded_rows import mark_images, remove_calls, remove_images, remove_uploads
from gateway.settings import Settings
from shared.problems import DependencyFailed
from shared.storage import ObjectStore

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
    """Whether the last housekeeping began at least `seconds` ago. If so, records that the caller's begins now."""
    insert_missing(session, Chore, [{"name": name, "begun_at": _BEGINNING}])
    begun = session.scalar(
        update(Chore)
        .where(Chore.name == name, Chore.begun_at <= database_now(-seconds))
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
